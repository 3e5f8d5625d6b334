"""Chat templates as Hugging Face checkpoints carry them: sandboxed Jinja with the helpers that templates expect.

A template comes with the checkpoint, its messages from users: neither is trusted. The sandbox allows no attribute
that leads out of it, and the data a template sees is plain JSON. What it costs, only another process can limit
(`rendering.py`).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import cached_property
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

_MAX_SOURCE = 256 * 1024
Message = Mapping[str, Any]
"""A message of a conversation: `role`, `content` (text or a list of parts) and all else that a template reads."""


class ChatTemplateError(ValueError):
    """The template is missing, malformed, or refuses these messages; the message says which."""


class ChatTemplateTooCostly(ChatTemplateError):
    """Rendering takes more time or memory than it may, or makes too long a text, as `cost` says: "takes more than"."""

    def __init__(self, cost: str) -> None:
        super().__init__(f"messages: the chat template {cost}; shorten them")
        self.cost = cost


class ChatTemplate:
    """The templates of one checkpoint: a default one and possibly one for conversations with tools."""

    def __init__(self, sources: Mapping[str, str], special_tokens: Mapping[str, str]) -> None:
        """Read the templates, by name, and run nothing of them.

        Raises:
            ChatTemplateError: one is malformed or too long.
        """
        self.sources, self.special_tokens = dict(sources), dict(special_tokens)
        self._environment = _environment()
        parsed = [self._parse(source) for source in sources.values()]
        self.literals = frozenset(literal for each in parsed for literal in _literals(each)).union(
            special_tokens.values()
        )
        """Texts that the templates write themselves, special tokens included."""

    def _parse(self, source: str) -> nodes.Template:
        if len(source) > _MAX_SOURCE:
            raise ChatTemplateError(f"chat template: it has {len(source):,} characters; {_MAX_SOURCE:,} are the most")
        try:
            return self._environment.parse(source)
        except jinja2.TemplateError as error:
            raise ChatTemplateError(f"chat template: {error}") from error
        except RecursionError as error:
            raise ChatTemplateError("chat template: it is nested too deeply") from error

    @cached_property
    def _templates(self) -> dict[str, jinja2.Template]:
        # To compile a template computes its constants: a hostile one may take any time and memory for that already.
        return {name: self._environment.from_string(source) for name, source in self.sources.items()}

    def source(self, *, tools: bool) -> str:
        """Return the template's source, with or without tools; empty if there is none."""
        return (self.sources.get("tool_use") if tools else None) or self.sources.get("default") or ""

    def digest(self, tokenizer: str) -> str:
        """Return the digest of a tokenizer's description together with these templates and their variables."""
        content = [tokenizer, sorted(self.sources.items()), sorted(self.special_tokens.items())]
        return hashlib.sha256(json.dumps(content).encode()).hexdigest()

    def writes(self, token: str) -> bool:
        """Whether `token` is part of a template's own text."""
        return any(token in literal for literal in self.literals)

    def render(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        **variables: Any,
    ) -> str:
        """Render the conversation as the text that the model was trained on.

        Raises:
            ChatTemplateError: the checkpoint has no template, there are no messages, or the template refuses them.
        """
        if not self.source(tools=bool(tools)):
            raise ChatTemplateError("this model has no chat template; send a plain prompt to /v1/completions instead")
        if not messages:
            raise ChatTemplateError("messages: at least one message is needed")
        # Templates test for missing keys; OpenAI's clients send null for what they leave out.
        present = [{key: value for key, value in message.items() if value is not None} for message in messages]
        try:
            template = (self._templates.get("tool_use") if tools else None) or self._templates["default"]
            return template.render(
                messages=present,
                tools=list(tools) if tools else None,
                documents=None,
                add_generation_prompt=add_generation_prompt,
                **self.special_tokens,
                **variables,
            )
        except jinja2.TemplateError as error:
            raise ChatTemplateError(f"messages: the chat template refuses them: {error}") from error
        except (TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RecursionError) as error:
            # A template is a program: messages of a shape it does not expect make it fail like one.
            raise ChatTemplateError(f"messages: the chat template cannot render them: {error}") from error


def _literals(template: nodes.Template) -> list[str]:
    data = [node.data for node in template.find_all(nodes.TemplateData)]
    return data + [node.value for node in template.find_all(nodes.Const) if isinstance(node.value, str)]


class _Generation(Extension):
    """`{% generation %}` marks the assistant's text for training; in serving it is transparent."""

    tags = {"generation"}  # noqa: RUF012 (jinja2 declares it as an instance attribute)

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
    )
    environment.filters |= {"tojson": _tojson, "replace": _replace}
    helpers: dict[str, Callable[..., Any]] = {"raise_exception": _raise_exception, "strftime_now": _strftime_now}
    environment.globals.update(helpers)
    return environment


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Jinja's own filter escapes for HTML, which no model was trained on.
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _replace(value: Any, old: str, new: str, count: int = -1) -> str:
    # Jinja's own filter makes a plain string of what may know where it comes from, see `engine/text/imitations.py`.
    text: str = value if isinstance(value, str) else str(value)
    return text.replace(old, new, count)


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _strftime_now(format: str) -> str:
    return datetime.now().strftime(format)
