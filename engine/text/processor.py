"""Text in, token ids out, and back: the part of a checkpoint's tokenizer that a client of the engine needs.

No torch and no transformers: `tokenizers`, sandboxed Jinja and the checkpoint's own files. Text that imitates a
control token (`<|end|>` in a user's message) stays text: only what the chat template itself writes is control.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec
from tokenizers import Encoding, Tokenizer

from engine.checkpoint.errors import CheckpointError
from engine.checkpoint.opening import open_checkpoint
from engine.text.chat_template import ChatTemplate, ChatTemplateError, ChatTemplateTooCostly, Message
from engine.text.detokenizer import IncrementalDetokenizer, StopMatcher, TokenBytes, detokenize
from engine.text.imitations import Rendered
from engine.text.rendering import TemplateInput, TemplateRenderer

__all__ = [
    "ChatTemplateError",
    "IncrementalDetokenizer",
    "Message",
    "SamplingDefaults",
    "StopMatcher",
    "TextProcessor",
]

_GREETING = {"role": "user", "content": "Hello"}
_TOOL = {"type": "function", "function": {"name": "now", "description": "", "parameters": {"type": "object"}}}
_HERE = "THE_MESSAGE_IS_CONTINUED_HERE "
"""Marks the end of a message that is to be continued, while the template is rendered. Templates that strip white space
from messages take the space away."""
_tried: set[str] = set()
"""Digests of processors whose templates have rendered a greeting within limits."""


class SamplingDefaults(msgspec.Struct, frozen=True):
    """Sampling parameters that the checkpoint's authors recommend (generation_config.json); greedy unless given."""

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0


class TextProcessor:
    """A checkpoint's tokenizer and chat template. Methods are pure and may be called from any thread."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        template: ChatTemplate,
        *,
        context: int,
        eos_token_ids: Sequence[int] = (),
        defaults: SamplingDefaults | None = None,
    ) -> None:
        # tokenizer.json may carry a training-time limit, which would cut prompts silently.
        tokenizer.no_truncation()
        tokenizer.no_padding()
        self._tokenizer = tokenizer
        self._template = template
        self._pieces = TokenBytes(tokenizer)
        self.context = context
        """Most tokens of prompt and output together, as the checkpoint declares it; engines may differ."""
        self.eos_token_ids = tuple(eos_token_ids)
        self.special_token_ids = self._pieces.special
        self.defaults = defaults or SamplingDefaults()
        self._control = {
            token: entry.content
            for token, entry in tokenizer.get_added_tokens_decoder().items()
            if (entry.special or template.writes(entry.content)) and not entry.content.isspace()
        }
        tokens = sorted(self._control.values(), key=len, reverse=True)
        self._written = re.compile("|".join(map(re.escape, tokens)) or "(?!)")
        self._unknown = _unknown_token(tokenizer)
        self.renderer = TemplateRenderer(template, tokens)
        """Renders conversations for threads."""

    @classmethod
    def from_path(cls, path: str | Path) -> TextProcessor:
        """Read what a checkpoint, a folder or a GGUF file, says of text.

        Raises:
            ValueError: a file is missing or cannot be used; the message names it.
            OSError: the process that renders chat templates cannot be started.
        """
        checkpoint = open_checkpoint(path)
        processor = cls(
            checkpoint.tokenizer(),
            ChatTemplate(checkpoint.templates, checkpoint.special_tokens),
            context=checkpoint.context,
            eos_token_ids=checkpoint.eos_token_ids,
            defaults=_sampling_defaults(checkpoint.generation),
        )
        processor._try_template()
        return processor

    def _try_template(self) -> None:
        """Render a greeting, so that a template that exceeds limits for any conversation is refused before it serves.

        Raises:
            CheckpointError: it does.
        """
        if not self._template.sources or self.digest in _tried:
            return
        for tools in (None, [_TOOL]):
            try:
                self.render([_GREETING], tools=tools)
            except ChatTemplateTooCostly as error:
                raise CheckpointError(
                    f"chat template: for a greeting it {error.cost}; use another checkpoint"
                ) from error
            except ChatTemplateError:
                pass  # it wants other messages
        self.renderer.close()
        _tried.add(self.digest)

    @property
    def vocabulary(self) -> int:
        """Number of the tokenizer's tokens; a model may have room for more."""
        size: int = self._tokenizer.get_vocab_size()
        return size

    @cached_property
    def digest(self) -> str:
        """Digest that is equal for checkpoints in which a conversation has the same token ids."""
        return self._template.digest(self._tokenizer.to_str())

    def render(
        self,
        messages: Sequence[Message],
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        **variables: Any,
    ) -> str:
        """Render the prompt text of a conversation, for people to read. To run it use `encode_chat`.

        Raises:
            ChatTemplateError: the template refuses the messages or exceeds a limit, or there is none.
        """
        return self.renderer.render(
            TemplateInput(
                messages=messages,
                mark=False,
                add_generation_prompt=add_generation_prompt,
                tools=tools,
                variables=variables,
            )
        )

    def encode_chat(
        self,
        messages: Sequence[Message],
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        *,
        continue_final_message: bool = False,
        **variables: Any,
    ) -> list[int]:
        """Return the token ids of a conversation. Control tokens come from the template alone, never from a message.

        Equals transformers' `apply_chat_template(..., sanitize_control_tokens=True)`.

        Args:
            continue_final_message: whether they end inside the last message, so that a model goes on with it.

        Raises:
            ChatTemplateError: the template refuses the messages or exceeds a limit, or there is none, or it leaves out
                the message to be continued, or the tokenizer cannot spell an imitated control token as text.
        """
        asked = self.conversation(messages, add_generation_prompt, tools, continue_final_message, variables)
        return self.encode_rendered(self.renderer.render(asked), cut=continue_final_message)

    def conversation(
        self,
        messages: Sequence[Message],
        add_generation_prompt: bool,
        tools: Sequence[Mapping[str, Any]] | None,
        continue_final_message: bool,
        variables: Mapping[str, Any],
    ) -> TemplateInput:
        """Return what has to be rendered for `encode_chat`."""
        if continue_final_message:
            *before, last = messages
            messages = [*before, {**last, "content": last["content"] + _HERE}]
        return TemplateInput(
            messages=messages, mark=True, add_generation_prompt=add_generation_prompt, tools=tools, variables=variables
        )

    def encode_rendered(self, marked: str, *, cut: bool) -> list[int]:
        """Return the token ids of a rendered `conversation`. Args: cut: whether its final message is continued.

        Raises:
            ChatTemplateError: see `encode_chat`.
        """
        rendered = Rendered(_until_here(marked) if cut else marked)
        text = rendered.text
        encoding = self._tokenizer.encode(text, add_special_tokens=False)
        imitated, own = self._imitated(rendered, encoding)
        if not imitated:
            ids: list[int] = encoding.ids
            return ids
        starts, ends = zip(*imitated, strict=True)
        following = [text[end:start] for end, start in zip(ends, (*starts[1:], len(text)), strict=True)]
        pieces = [self._ids(self._tokenizer, text[: starts[0]]), *self._encode_inside(self._tokenizer, following)]
        if sum(id in self._control and id != self._unknown for piece in pieces for id in piece) != own:
            raise ChatTemplateError("messages: text in them cannot be told from control tokens; remove it")
        spelled = {token: self._spell(token) for token in {text[start:end] for start, end in imitated}}
        ids = pieces[0]
        for (start, end), piece in zip(imitated, pieces[1:], strict=True):
            ids += spelled[text[start:end]]
            ids += piece
        return ids

    def _imitated(self, rendered: Rendered, encoding: Encoding) -> tuple[list[tuple[int, int]], int]:
        """Return the places of control tokens that the template has not written, and how many it has written."""
        imitated, own = [], 0
        for index, id in enumerate(encoding.ids):
            token = self._control.get(id)
            if token is None:
                continue
            span = encoding.token_to_chars(index)
            assert span is not None
            start, end = span
            at = rendered.text.find(token, start, end)  # a token may take white space around it
            if at < 0 and id != self._unknown:
                # Not spelled out: the tokenizer reads other characters as this token, as no template means it.
                imitated.append((start, end))
            elif at >= 0 and rendered.imitates(at, at + len(token)):
                imitated.append((at, self._until(rendered, at, at + len(token))))
            else:
                own += id != self._unknown
        return imitated, own

    def _until(self, rendered: Rendered, start: int, end: int) -> int:
        """Return where an imitation ends: one that reaches into a token of the template must leave that whole."""
        for found in self._written.finditer(rendered.text, start + 1):
            if found.start() >= end:
                break
            if not rendered.imitates(*found.span()):
                return found.start()
        return end

    def encode(self, text: str, special: bool = True) -> list[int]:
        """Return token ids of a plain prompt; `special` adds what the tokenizer puts around a text (such as BOS).

        Control tokens spelled out in `text` are recognised: a plain prompt is the caller's own.
        """
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=special).ids
        return ids

    def encode_inside(self, text: str) -> list[int]:
        """Return token ids of a text that stands inside another one, as `encode` does."""
        (ids,) = self._encode_inside(self._tokenizer, [text])
        return ids

    def decode(self, tokens: Sequence[int], skip_special: bool = True) -> str:
        """Return the text of `tokens`; equal to the concatenated deltas of a `detokenizer`."""
        return detokenize(self._pieces, tokens, skip_special=skip_special)

    def detokenizer(self, skip_special: bool = True, shown: Collection[int] = ()) -> IncrementalDetokenizer:
        """Return a fresh incremental detokenizer for one answer; `shown` special tokens become text too."""
        return IncrementalDetokenizer(self._pieces, skip_special=skip_special, shown=shown)

    def spelled(self, tokens: Sequence[int]) -> list[str]:
        """Return tokens as the vocabulary writes them, which byte-level ones do in letters that stand for bytes.

        Raises:
            ValueError: one is not in the vocabulary.
        """
        found = []
        for token in tokens:
            text = self._tokenizer.id_to_token(token)
            if text is None:
                raise ValueError(f"{token} is not in the vocabulary")
            found.append(text)
        return found

    @property
    def info(self) -> dict[str, Any]:
        """Control tokens by their names, and the chat template: what `tokenizer_config.json` has of them."""
        ends = [self._tokenizer.id_to_token(token) for token in self.eos_token_ids]
        named = {"eos_token": ends[0] if ends else None, **self._template.special_tokens}
        return {"tokenizer_class": "PreTrainedTokenizerFast", **named, "chat_template": self.template_source() or None}

    def template_source(self, *, tools: bool = False) -> str:
        """Return the chat template for a conversation with or without tools; empty if there is none."""
        return self._template.source(tools=tools)

    def special_token(self, text: str) -> int | None:
        """Return the special token that is written like this, if there is one."""
        token: int | None = self._tokenizer.token_to_id(text)
        return token if token in self.special_token_ids else None

    def token_bytes(self, token: int) -> bytes:
        """Return the bytes that `token` adds inside a text, maybe a part of a character. For log-probabilities."""
        return self._pieces(token)

    def _spell(self, control: str) -> list[int]:
        """Return token ids of a control token's name as ordinary text."""
        forbidden = {*self._control} - {self._unknown} | {self._tokenizer.token_to_id(control)}
        (ids,) = self._encode_inside(self._plain, [control])
        if forbidden & {*ids}:  # a unigram model may have the name among its pieces: spell it letter by letter
            ids = [id for letter in self._encode_inside(self._plain, list(control)) for id in letter]
        if forbidden & {*ids}:
            raise ChatTemplateError(f"messages: this model cannot read {control!r} as text; remove it")
        return ids

    def _encode_inside(self, tokenizer: Tokenizer, texts: Sequence[str]) -> list[list[int]]:
        """Return token ids of texts that do not stand at the start, where sentencepiece would add a space to them."""
        newline = self._ids(tokenizer, "\n")
        encoded = tokenizer.encode_batch([f"\n{text}" if text else "" for text in texts], add_special_tokens=False)
        inside = []
        for text, ids in zip(texts, (encoding.ids for encoding in encoded), strict=True):
            # Where the line break merges with the text, the text at worst gets a space in front.
            inside.append(ids[len(newline) :] if ids[: len(newline)] == newline else self._ids(tokenizer, text))
        return inside

    @cached_property
    def _plain(self) -> Tokenizer:
        """The tokenizer without any added token."""
        description = json.loads(self._tokenizer.to_str())
        description["added_tokens"] = []
        return Tokenizer.from_str(json.dumps(description))

    @staticmethod
    def _ids(tokenizer: Tokenizer, text: str) -> list[int]:
        ids: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
        return ids


def _until_here(rendered: str) -> str:
    """Return the text before `_HERE`, as transformers cuts it."""
    before, found, after = rendered.rpartition(_HERE.strip())
    if not found:
        raise ChatTemplateError("messages: the chat template leaves out the last one, which cannot be continued then")
    return before if after.startswith(" ") else before.rstrip()


def _unknown_token(tokenizer: Tokenizer) -> int | None:
    """Return the token that stands for characters which are not in the vocabulary."""
    model = json.loads(tokenizer.to_str())["model"]
    unknown: int | None = model.get("unk_id")
    return unknown if model.get("unk_token") is None else tokenizer.token_to_id(model["unk_token"])


def _sampling_defaults(generation: Mapping[str, Any]) -> SamplingDefaults:
    common = {"repetition_penalty": generation.get("repetition_penalty") or 1.0}
    if not generation.get("do_sample"):
        return msgspec.convert(common, SamplingDefaults)
    names = {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0}
    sampled = {name: generation[name] if generation.get(name) is not None else off for name, off in names.items()}
    return msgspec.convert(common | sampled, SamplingDefaults)
