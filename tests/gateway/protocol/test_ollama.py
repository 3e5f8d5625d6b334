"""Ollama's requests as turns."""

from __future__ import annotations

from typing import Any

import pytest
from ollama._types import Options

from gateway.errors import InvalidRequest
from gateway.protocol.ollama.requests import OllamaOptions, parse_ollama_chat, parse_ollama_generate
from gateway.protocol.requests import Message, ToolCall, TurnRequest

CHAT: dict[str, Any] = {"model": "auto", "messages": [{"role": "user", "content": "hi"}]}


def chat(**fields: Any) -> TurnRequest:
    (turn,) = parse_ollama_chat({**CHAT, **fields}).turns
    return turn


def generate(**fields: Any) -> TurnRequest:
    (turn,) = parse_ollama_generate({"model": "auto", "prompt": "hi", **fields}).turns
    return turn


def test_every_option_of_ollamas_is_known() -> None:
    """Served or refused by name, but for those of embeddings and of llama.cpp's older versions."""
    known = {*OllamaOptions.__struct_fields__, "embedding_only", "logits_all", "vocab_only"}
    assert set(Options.model_fields) <= known


def test_options_reach_the_turn() -> None:
    given: dict[str, Any] = {"temperature": 0.5, "top_p": 0.9, "top_k": 3, "min_p": 0.1, "seed": 4}
    turn = chat(options={**given, "num_predict": 7, "stop": ["x"], "repeat_penalty": 1.2, "num_ctx": 2048})
    assert {name: getattr(turn.sampling, name) for name in given} == given
    assert (turn.max_output_tokens, turn.stop, turn.sampling.repetition_penalty) == (7, ("x",), 1.2)
    assert chat(options={"num_predict": -1}).max_output_tokens is None


def test_a_stream_is_the_default() -> None:
    assert [parse_ollama_chat({**CHAT, "stream": stream}).stream for stream in (None, True, False)] == [
        True,
        True,
        False,
    ]


def test_outputs_answer_calls_by_name_or_in_their_order() -> None:
    calls = [{"function": {"name": name, "arguments": {"x": 1}}} for name in ("f", "g", "f")]
    messages = [
        {"role": "assistant", "content": "", "tool_calls": calls},
        {"role": "tool", "content": "of g", "tool_name": "g"},
        {"role": "tool", "content": "of f"},
    ]
    said, *outputs = chat(messages=messages).messages
    assert said.calls == tuple(ToolCall(f"call_0_{n}", name, '{"x":1}') for n, name in enumerate("fgf"))
    assert [(each.content, each.answers) for each in outputs] == [("of g", "call_0_1"), ("of f", "call_0_0")]


def test_a_message_that_was_begun_is_continued() -> None:
    begun = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "I"}]
    assert chat(messages=begun).template == {"add_generation_prompt": False, "continue_final_message": True}
    called = {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f", "arguments": {}}}]}
    assert chat(messages=[called]).template == chat().template == {}


def test_a_prompt_is_a_question_unless_it_is_raw() -> None:
    assert generate(system="s").messages == (Message("system", "s"), Message("user", "hi"))
    assert (generate(raw=True).prompt, generate(raw=True).messages) == ("hi", ())


@pytest.mark.parametrize(("format", "kind"), [("json", "json_object"), ({"type": "object"}, "json_schema")])
def test_formats(format: Any, kind: str) -> None:
    wanted = generate(format=format).format
    assert wanted is not None and wanted.grammar.kind == kind


@pytest.mark.parametrize(
    ("change", "where"),
    [
        ({"options": {"temperature": 3}}, "options.temperature"),
        ({"options": {"mirostat": 1}}, "mirostat"),
        ({"options": {"nonsense": 1}}, "options.nonsense"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "user", "content": "x", "images": ["eA=="]}]}, "messages[0].images"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0]"),
        ({"template": "x"}, "template"),
        ({"format": "yaml"}, "format"),
        ({"tools": [{"type": "web"}]}, "tools[0].type"),
    ],
)
def test_what_is_refused(change: dict[str, Any], where: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        chat(**change)
    assert caught.value.param == where
