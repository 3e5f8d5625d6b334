"""How a turn is written for servers that take messages."""

from __future__ import annotations

from typing import Any

import pytest

from engine.client.conversation import MESSAGE_TOKENS, ChatCall, ChatPromptMessage
from engine.text.processor import SamplingDefaults
from engine.wire import Grammar
from gateway.pipeline.conversing import conversed, refused, refused_by
from gateway.protocol.output_format import OutputFormat
from gateway.protocol.requests import CONTINUED, Message, Sampling, ToolCall, TurnRequest
from gateway.protocol.tools import Tool, ToolUse
from gateway.upstreams.dialects import MESSAGE_DIALECTS

NOW, THEN = Tool("now", "Tells the time."), Tool("then")


def asked(**fields: Any) -> TurnRequest:
    return TurnRequest(model="m", **fields)


def use(**fields: Any) -> ToolUse:
    return ToolUse(**{"tools": (NOW, THEN), "allowed": ("now", "then"), **fields})


def test_instructions_calls_and_outputs_are_messages() -> None:
    said = [
        Message("user", "What time is it?"),
        Message("assistant", "", (ToolCall("1", "now", "{}"),)),
        Message("tool", "noon", answers="1"),
    ]
    assert conversed(asked(instructions="Be brief."), said).messages == [
        ChatPromptMessage("system", "Be brief."),
        ChatPromptMessage("user", "What time is it?"),
        ChatPromptMessage("assistant", "", (ChatCall("1", "now", "{}"),)),
        ChatPromptMessage("tool", "noon", answers="1"),
    ]


def test_only_functions_that_may_be_called_are_offered() -> None:
    found = conversed(asked(tools=use(allowed=("now",), mode="required", parallel=False)), [])
    assert [tool.name for tool in found.tools] == ["now"]
    assert (found.must_call, found.parallel) == (True, False)
    assert found.tools[0].parameters["type"] == "object"
    nothing = conversed(asked(tools=use(mode="none")), [])
    assert (nothing.tools, nothing.must_call, nothing.parallel) == ([], False, True)


def test_its_length_is_an_estimate_that_grows_with_what_is_said() -> None:
    def length(*texts: str, **fields: Any) -> int:
        return len(conversed(asked(**fields), [Message("user", text) for text in texts]))

    assert length("a" * 400) == MESSAGE_TOKENS + 100
    assert length("漢" * 400) == MESSAGE_TOKENS + 400
    assert length("a" * 40, "a" * 40) == 2 * MESSAGE_TOKENS + 20
    assert length("a", tools=use()) > length("a") + 20
    assert length() == 0


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": "Once"}, "prompt"),
        ({"prompt": (5, 6)}, "prompt"),
        ({"template": CONTINUED}, "messages"),
        ({"template": {"enable_thinking": False}}, "chat_template_kwargs"),
        ({"skip_special_tokens": False}, "skip_special_tokens"),
        ({"sampling": Sampling(prompt_logprobs=0)}, "prompt_logprobs"),
        ({"sampling": Sampling(stop_token_ids=(5,))}, "stop_token_ids"),
    ],
)
def test_what_such_servers_cannot_be_asked_is_refused_by_name(fields: dict[str, Any], param: str) -> None:
    refusal = refused(asked(**fields))
    assert refusal is not None
    assert (refusal.param, refusal.status) == (param, 400)
    assert str(refusal).startswith(f"{param}: ")


FORMAT = OutputFormat(Grammar("regex", "[ab]+"), "structured_outputs.regex", {})


@pytest.mark.parametrize(
    ("dialect", "fields", "param"),
    [
        ("openai", {"sampling": Sampling(top_k=5)}, "top_k"),
        ("openai", {"format": FORMAT}, "structured_outputs.regex"),
        ("tgi", {"format": FORMAT}, None),
        ("anthropic", {"sampling": Sampling(logprobs=2)}, "logprobs"),
        ("anthropic", {"sampling": Sampling(top_k=5)}, None),
        ("ollama", {"tools": use(mode="required")}, "tool_choice"),
        ("openai", {"tools": use(mode="required")}, None),
    ],
)
def test_what_servers_of_one_dialect_cannot_be_asked_is_refused_by_name(
    dialect: str, fields: dict[str, Any], param: str | None
) -> None:
    request = asked(**fields)
    refusal = refused_by(MESSAGE_DIALECTS[dialect], request, conversed(request, []), SamplingDefaults())
    assert (refusal and refusal.param) == param


def test_the_rest_can_be_asked() -> None:
    assert refused(asked(sampling=Sampling(temperature=0.0, logprobs=2), stop=("x",))) is None
