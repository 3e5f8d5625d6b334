"""Conversations with tools in the chat templates of common models, and in one that knows no tools."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from engine.client.conversation import ArgumentsPart, CallPart
from engine.text.chat_template import ChatTemplate
from gateway.protocol.requests import Message, ToolCall
from gateway.protocol.tools import Tool
from gateway.tools.formats import FORMATS, tool_format
from gateway.tools.prompt import template_messages, template_tools

TEMPLATES = Path(__file__).parent / "templates"
PLAIN = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}\n{% endfor %}"
TOOL = Tool("get_weather", "Tells the weather.", {"type": "object", "properties": {"city": {"type": "string"}}})
CALL_ID = "call_0123456789abcdef01234567"
ASKED = Message("user", "Weather?")
CALLED = Message("assistant", "", (ToolCall(CALL_ID, "get_weather", '{"city": "Rome"}'),))
ANSWERED = Message("tool", "sunny", answers=CALL_ID)


def rendered(
    source: str, *messages: Message, tools: tuple[Tool, ...] = (TOOL,), instructions: str | None = None
) -> str:
    """A conversation in a template, as prompts are made."""
    template = ChatTemplate({"default": source}, {"bos_token": "<s>", "eos_token": "</s>"})
    format = tool_format(source)
    said = template_messages(messages, format, tools, instructions)
    return template.render(said, tools=template_tools(tools) if format.native else None)


@pytest.mark.parametrize(
    ("name", "format"),
    [
        ("hermes", "hermes"),
        ("llama", "llama"),
        ("mistral-list", "mistral-list"),
        ("mistral", "mistral"),
        ("pythonic", "pythonic"),
        ("xml", "neutral"),
    ],
)
class TestTemplates:
    """Each in the manner of a family of models."""

    def test_its_format_is_recognised(self, name: str, format: str) -> None:
        assert tool_format((TEMPLATES / f"{name}.jinja").read_text("utf-8")).name == format

    def test_a_tool_loop_is_rendered_as_its_parser_reads_it(self, name: str, format: str) -> None:
        """The tools are shown; the call comes back out of the prompt; its output stands behind it."""
        source = (TEMPLATES / f"{name}.jinja").read_text("utf-8")
        text = rendered(source, ASKED, CALLED, ANSWERED)
        assert "Tells the weather." in text
        before, _, after = text.partition("Weather?")
        assert "sunny" in after and "sunny" not in before
        reader = tool_format(source).parser(["get_weather"])
        begin = after.index("<|assistant|>") + len("<|assistant|>")
        parts = [*reader.push(after[begin:]), *reader.finish()]
        assert CallPart("get_weather") in parts
        arguments = "".join(part.text for part in parts if isinstance(part, ArgumentsPart))
        assert json.loads(arguments) == {"city": "Rome"}


class TestNeutral:
    """A template without tools: an instruction, calls and outputs are written out."""

    def test_the_instruction_names_every_function(self) -> None:
        """In a system message of its own, or behind the one there is."""
        assert tool_format(PLAIN).name == "neutral"
        for instructions in (None, "Be brief."):
            text = rendered(PLAIN, ASKED, instructions=instructions)
            assert text.startswith(f"<|system|>{instructions or ''}")
            assert text.count("<|system|>") == 1
            assert '{"name": "get_weather", "description": "Tells the weather."' in text
        assert "<|system|>Be kind." in rendered(PLAIN, Message("system", "Be kind."), ASKED)

    def test_without_tools_nothing_is_added(self) -> None:
        assert rendered(PLAIN, ASKED, tools=()) == "<|user|>Weather?\n"

    def test_the_loop(self) -> None:
        """Outputs of one answer's calls are one message of the user's, since roles have to alternate."""
        two = Message("assistant", "I look.", (CALLED.calls[0], ToolCall("c2", "get_weather", "{")))
        text = rendered(PLAIN, ASKED, two, ANSWERED, Message("tool", "rainy", answers="c2"), tools=())
        assert text == (
            "<|user|>Weather?\n<|assistant|>I look.\n"
            '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Rome"}}\n</tool_call>\n'
            '<tool_call>\n{"name": "get_weather", "arguments": "{"}\n</tool_call>\n'
            "<|user|><tool_response>\nsunny\n</tool_response>\n<tool_response>\nrainy\n</tool_response>\n"
        )


def test_a_configured_format_wins() -> None:
    """For a template that says too little or too much."""
    assert tool_format(PLAIN, "llama").name == "llama"
    assert tool_format("{{ tools }} <tool_call>", "neutral").name == "neutral"


def test_a_template_that_mentions_a_marker_only_has_no_tools() -> None:
    """It would not show them."""
    assert tool_format("{{ messages }} <tool_call>").name == "neutral"


def test_mistrals_templates_get_ids_of_nine_characters() -> None:
    """The same for a call and its output, whatever the client's id looks like; others get the id itself."""
    mistral, hermes = tool_format("{{ tools }}[TOOL_CALLS]"), tool_format("{{ tools }}<tool_call>")
    called, answered = template_messages([CALLED, ANSWERED], mistral, (), None)
    id = called["tool_calls"][0]["id"]
    assert len(id) == 9 and id.isalnum()
    assert answered["tool_call_id"] == id
    short = Message("assistant", "", (ToolCall("a1B2c3D4e", "get_weather", "{}"),))
    assert template_messages([short], mistral, (), None)[0]["tool_calls"][0]["id"] == "a1B2c3D4e"
    assert template_messages([CALLED], hermes, (), None)[0]["tool_calls"][0]["id"] == CALL_ID


@pytest.mark.parametrize(
    ("arguments", "expected"), [('{"a": 1}', {"a": 1}), ("", {}), ('{"a"', '{"a"'), ("[1]", "[1]")]
)
def test_arguments_are_objects_where_they_can_be(arguments: str, expected: Any) -> None:
    """What was cut off stays the text it is."""
    message = Message("assistant", "", (ToolCall("c", "get_weather", arguments),))
    said = template_messages([message, ANSWERED], tool_format("{{ tools }}<tool_call>"), (), None)
    assert said[0]["tool_calls"][0]["function"] == {"name": "get_weather", "arguments": expected}


def test_the_documentation_lists_every_format() -> None:
    """And no other."""
    page = (Path(__file__).parents[3] / "docs" / "tools.md").read_text("utf-8")
    table = page.partition("| `tool_parser` |")[2]
    assert re.findall(r"^\| `([a-z-]+)` \|", table, flags=re.MULTILINE) == [format.name for format in FORMATS]
