"""No text of a client becomes a control token, whatever a chat template makes of it.

Conversations and tools are made of pieces of control tokens, rendered by every template that the tests know and by some
that join, cut and rewrite what they are given, and tokenised by every family of tokenizers. The control tokens that
come out must be those of the same conversation in harmless words.
"""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, normalizers

from engine.text.chat_template import ChatTemplate, ChatTemplateError
from engine.text.processor import TextProcessor
from gateway.protocol.requests import Message, ToolCall
from gateway.protocol.tools import Tool
from gateway.tools.formats import ToolFormat, tool_format
from gateway.tools.prompt import template_messages, template_tools
from tests.amounts import DEEP, examples
from tests.engine.tokenizer_zoo import FAMILIES, SPECIAL, TEMPLATE
from tests.gateway.conftest import _TEMPLATE

ROOT = Path(__file__).parents[3]
TURNS = "{% for m in messages %}<|{{ m.role }}|>"
ENDED = "<|end|>\n{% endfor %}"
TEMPLATES: dict[str, str] = {
    "zoo": TEMPLATE,
    "tests": _TEMPLATE,
    "demo": (ROOT / "deploy" / "demo" / "model" / "chat_template.jinja").read_text("utf-8"),
    **{path.stem: path.read_text("utf-8") for path in (Path(__file__).parent / "templates").glob("*.jinja")},
    # As Qwen3-Coder does with what it does not know of a schema: keys in angle brackets.
    "keys": """{% macro extra(value) %}{% for key in value %}
<{{ key }}>{{ extra(value[key]) if value[key] is mapping else value[key] }}</{{ key }}>{% endfor %}{% endmacro %}
{% for tool in tools or [] %}<|system|>{{ extra(tool.function.parameters) }}{% endfor %}"""
    + TURNS
    + """{{ m.content }}{% for call in m.tool_calls or [] %}<tool_call><function={{ call.function.name }}>
{{ extra(call.function.arguments) }}</tool_call>{% endfor %}"""
    + ENDED,
    # Texts of several fields beside each other, and beside what the template writes.
    "joined": "{% for t in tools or [] %}<|system|>{{ t.function.name ~ t.function.description }}"
    "{% for k, v in t.function.parameters.items() %}{{ k + v | string }}{% endfor %}|>{% endfor %}"
    + TURNS
    + "{{ m.content }}{% for c in m.tool_calls or [] %}<{{ c.function.name }}{{ c.id }}"
    "{{ c.function.arguments.values() | join }}{% endfor %}>" + ENDED,
    # As Gemma 4 drops what an earlier answer has thought: parts are put together without what was between.
    "dropped": TURNS
    + """{% set all = namespace(text='') %}{% for part in m.content.split('</think>') %}
{%- set all.text = all.text + (part.split('<think>')[0] if '<think>' in part else part) %}{% endfor %}
{{- all.text | trim }}"""
    + ENDED,
    "rewritten": TURNS
    + "{{ m.content | replace('x', '') }}<{{ m.content[1:] or '-' }}|end|>{{ (' ' ~ m.content) | trim | lower }}"
    + "{{ m.content | upper }}{{ m.content.strip('x ') }}{% for c in m.content[:8] %}{{ c }}{% endfor %}"
    + ENDED,
}


@cache
def processor(name: str, family: str) -> TextProcessor:
    """A tokenizer of this family whose control tokens are all that the template writes and some that look like them."""
    tokenizer: Tokenizer = FAMILIES[family.removesuffix("+nfkc")]()
    tags = re.findall(r"</?[a-z_|]+>|\[/?[A-Z_]+\]", TEMPLATES[name])
    tags += ["<tool_call>", "</tool_call>", "<think>", "</think>", "<tool_response>", "[INST]", "<|END|>", "<x>"]
    if family.endswith("+nfkc"):
        before = tokenizer.normalizer
        tokenizer.normalizer = normalizers.Sequence([*([before] if before else []), normalizers.NFKC()])
    for index, tag in enumerate(dict.fromkeys(tags)):
        # Most checkpoints look for tokens in the text as it is, some in the normalised text. Where that adds spaces,
        # the template's own tokens are found behind spaces only, as transformers finds them.
        normalized = bool(index % 2) and family != "llama2"
        tokenizer.add_special_tokens([AddedToken(tag, special=True, normalized=normalized)])
    template = ChatTemplate({"default": TEMPLATES[name]}, {"bos_token": "<s>", "eos_token": "</s>"})
    return TextProcessor(tokenizer, template, context=10_000)


def format_of(name: str) -> ToolFormat:
    """How it is given tools; `keys` as they are, although nobody here reads calls in XML."""
    return tool_format(TEMPLATES[name], "hermes" if name == "keys" else "auto")


def encoded(name: str, family: str, said: list[Message], tools: tuple[Tool, ...]) -> list[int]:
    """As the gateway makes prompts."""
    text, format = processor(name, family), format_of(name)
    shown = template_messages(said, format, tools, None)
    return text.encode_chat(shown, tools=template_tools(tools) if format.native and tools else None)


TOKENS = [*SPECIAL, "<tool_call>", "</tool_call>", "<think>", "</think>", "[TOOL_CALLS]", "[INST]", "<x>", "<|END|>"]
PIECES = [token[start:end] for token in TOKENS for start in (0, 1, 2) for end in (2, len(token) - 1, len(token))]
PIECES += [*TOKENS * 3, "x", " ", "\n", '"', "\\", "\\ufdd0", "ufdd0", "\uff1c", "\uff5c", "tool_call", "end", "a b"]
TEXT = st.lists(st.sampled_from(PIECES), max_size=5).map("".join)
FORGED = st.lists(st.sampled_from([*PIECES, "\ufdd0"]), max_size=5).map("".join)
VALUE = st.recursive(
    TEXT | st.integers(0, 9) | st.booleans() | st.none(),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(TEXT, inner, max_size=2),
    max_leaves=5,
)
OBJECT = st.dictionaries(TEXT, VALUE, max_size=3)
NAME = st.sampled_from(["tool_call", "think", "end", "x", "user", "get_weather"])


def harmless(value: Any) -> Any:
    """The same in harmless words, of which no two keys are the same."""
    if isinstance(value, str):
        return "word"
    if isinstance(value, list):
        return [harmless(item) for item in value]
    return {f"k{i}": harmless(item) for i, item in enumerate(value.values())} if isinstance(value, dict) else value


def conversation(user: str, name: str, id: str, arguments: dict[str, Any], output: str) -> list[Message]:
    call = ToolCall(id, name, json.dumps(arguments))
    return [
        Message("system", user),
        Message("user", user),
        Message("assistant", output, ()),
        Message("user", output),
        Message("assistant", "", (call,)),
        Message("tool", output, answers=id),
    ]


KINDS = [*FAMILIES, "byte-level+nfkc", "unigram+nfkc"]
EACH = len(KINDS) if DEEP else 2
"""With how many kinds of tokenizers a template is tried: each pair has a process that renders. All kinds have some."""


@pytest.mark.parametrize("name", TEMPLATES)
@settings(max_examples=examples(20))
@given(
    kind=st.integers(0, EACH - 1),
    user=FORGED,
    tool=NAME,
    id=TEXT.filter(bool),
    arguments=OBJECT,
    output=FORGED,
    described=FORGED,
    schema=OBJECT,
)
def test_no_text_of_a_client_becomes_a_control_token(
    name: str,
    kind: int,
    user: str,
    tool: str,
    id: str,
    arguments: dict[str, Any],
    output: str,
    described: str,
    schema: dict[str, Any],
) -> None:
    family = KINDS[(2 * list(TEMPLATES).index(name) + kind) % len(KINDS)]
    text = processor(name, family)
    unknown = text.special_token("<unk>")
    control = {text.special_token(token) for token in (*TOKENS, *text_tokens(text))} - {None, unknown}

    def tokens(said: list[Message], tools: tuple[Tool, ...]) -> list[int]:
        return [token for token in encoded(name, family, said, tools) if token in control]

    expected = tokens(
        conversation("word", "word", "word", harmless(arguments), "word"), (Tool("word", "word", harmless(schema)),)
    )
    try:
        found = tokens(conversation(user, tool, id, arguments, output), (Tool(tool, described, schema),))
    except ChatTemplateError as error:
        # What this model cannot spell at all is refused.
        assert "as text; remove it" in str(error) or "cannot be told" in str(error)
        assert family in ("words", "metaspace-never", "unigram", "unigram+nfkc")
    else:
        assert found == expected


def text_tokens(text: TextProcessor) -> list[str]:
    return [text.token_bytes(id).decode() for id in text.special_token_ids]


@pytest.mark.parametrize("name", TEMPLATES)
@settings(max_examples=examples(20))
@given(user=TEXT, tool=NAME, id=TEXT.filter(bool), arguments=OBJECT, output=TEXT, described=TEXT, schema=OBJECT)
def test_the_model_reads_what_the_template_has_written(
    name: str,
    user: str,
    tool: str,
    id: str,
    arguments: dict[str, Any],
    output: str,
    described: str,
    schema: dict[str, Any],
) -> None:
    """Marks change no branch of a template and no character of its text: the ids spell what it renders without them."""
    text, format = processor(name, "byte-level"), format_of(name)
    said, tools = conversation(user, tool, id, arguments, output), (Tool(tool, described, schema),)
    rendered = text.render(
        template_messages(said, format, tools, None), tools=template_tools(tools) if format.native else None
    )
    assert text.decode(encoded(name, "byte-level", said, tools), skip_special=False) == rendered
