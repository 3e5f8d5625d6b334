"""Grammars of calls: whatever they let a model write is read as calls that keep to their schemas."""

from __future__ import annotations

import functools
import json
import random
from typing import Any

import jsonschema
import llguidance.numpy
import numpy
import pytest
from llguidance import LLMatcher, LLTokenizer
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from engine.client.conversation import AnswerPart, ArgumentsPart, CallEndPart, CallPart, TextPart
from engine.grammar.source import GrammarLimits, to_llguidance
from engine.wire import Grammar
from gateway.tools.formats import FORMATS, ToolFormat
from gateway.tools.grammar import ANYTHING, Calls, Function
from tests.gateway.tools.functions import WEATHER

EITHER: dict[str, Any] = {
    "type": "object",
    "anyOf": [
        {
            "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 9}},
            "required": ["n"],
            "additionalProperties": False,
        },
        {"properties": {"m": {"type": "boolean"}}, "required": ["m"], "additionalProperties": False},
    ],
}
NESTED: dict[str, Any] = {
    "type": "object",
    "properties": {
        "class": {"type": "array", "items": {"type": "string", "maxLength": 3}, "maxItems": 2},
        "deep": {
            "type": "object",
            "properties": {"x": {"type": "number", "minimum": 0, "maximum": 1}},
            "required": ["x"],
            "additionalProperties": False,
        },
    },
    "required": ["deep"],
    "additionalProperties": False,
}
NOTHING: dict[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}
SCHEMAS = {"get_weather": WEATHER, "either": EITHER, "nested": NESTED, "ping": NOTHING}
VALIDATORS = {name: jsonschema.Draft202012Validator(schema) for name, schema in SCHEMAS.items()}
EOS = 2


@functools.cache
def tokenizer(special: bool) -> Tokenizer:
    """Bytes and a few merges; with or without a token for each marker."""
    markers = sorted({marker for format in FORMATS for marker in format.markers}) if special else []
    made = Tokenizer(models.BPE())
    made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=["<pad>", "<s>", "</s>", *markers],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator(['<tool_call>\n{"name": "get_weather", "arguments": {"city": "Berlin"}}\n'] * 9, trainer)
    return made


@functools.cache
def matcher_tokens(special: bool) -> LLTokenizer:
    return LLTokenizer(tokenizer(special).to_str(), eos_token=EOS)


def grammar(format: ToolFormat, special: bool, **calls: Any) -> str:
    functions = [Function(name, schema) for name, schema in SCHEMAS.items()]

    def marker(text: str) -> str:
        id = tokenizer(special).token_to_id(text)
        return json.dumps(text) if id is None else f"<[{id}]>"

    fields: dict[str, Any] = {"functions": functions, "required": True, "parallel": True, **calls}
    return format.grammar(Calls(**fields), marker)


@functools.cache
def compiled(source: str, special: bool) -> LLMatcher:
    made = LLMatcher(matcher_tokens(special), to_llguidance(Grammar("lark", source), GrammarLimits()))
    assert not made.is_error(), made.get_error()
    return made


def matcher(source: str, special: bool) -> LLMatcher:
    return compiled(source, special).deep_copy()


def walk(source: str, special: bool, seed: int, favoured: tuple[int, ...] = ()) -> str | None:
    """A text that a model might write which draws its tokens at random; None if it does not come to an end."""
    step, draw, written = matcher(source, special), random.Random(seed), []
    size = matcher_tokens(special).vocab_size
    mask = llguidance.numpy.allocate_token_bitmask(1, size)
    for _ in range(400):
        llguidance.numpy.fill_next_token_bitmask(step, mask, 0)
        allowed = numpy.flatnonzero(numpy.unpackbits(mask.view(numpy.uint8), count=size, bitorder="little")).tolist()
        wanted = [token for token in favoured if token in allowed]
        token = draw.choice(wanted) if wanted and draw.random() < 0.3 else draw.choice(allowed)
        if token == EOS:
            text: str = tokenizer(special).decode(written, skip_special_tokens=False)
            return text
        assert step.consume_token(token), step.get_error()
        written.append(token)
        if step.is_stopped():
            return str(tokenizer(special).decode(written, skip_special_tokens=False))
    return None


def parsed(format: ToolFormat, text: str) -> list[AnswerPart]:
    reader = format.parser(SCHEMAS)
    return [*reader.push(text), *reader.finish()]


def valid_calls(parts: list[AnswerPart]) -> list[str]:
    """Names of the calls, each of which must keep to its schema."""
    names, arguments = [], ""
    for part in parts:
        match part:
            case CallPart(name):
                names.append(name)
                arguments = ""
            case ArgumentsPart(more):
                arguments += more
            case CallEndPart(complete):
                assert complete
                VALIDATORS[names[-1]].validate(json.loads(arguments))
    return names


@pytest.mark.parametrize("special", [False, True], ids=["text", "tokens"])
@pytest.mark.parametrize("format", FORMATS, ids=lambda format: format.name)
class TestEveryFormat:
    """With markers that are tokens, and with markers that are text."""

    def test_required(self, format: ToolFormat, special: bool) -> None:
        """Calls and nothing but calls; all functions come up, and more than one call in some answers."""
        texts = [walk(grammar(format, special), special, seed) for seed in range(24)]
        answers = [parsed(format, text) for text in texts if text is not None]
        names = [valid_calls(parts) for parts in answers]
        assert len(answers) > 12
        assert not any(isinstance(part, TextPart) for parts in answers for part in parts)
        assert all(names) and any(len(calls) > 1 for calls in names)
        assert {name for calls in names for name in calls} == set(SCHEMAS)

    def test_one_call_at_most(self, format: ToolFormat, special: bool) -> None:
        """Without parallel calls."""
        source = grammar(format, special, parallel=False)
        texts = [walk(source, special, seed) for seed in range(8)]
        assert all(len(valid_calls(parsed(format, text))) == 1 for text in texts if text is not None)
        assert any(texts)

    def test_text_or_calls(self, format: ToolFormat, special: bool) -> None:
        """Free text is free, a call is not: what begins one has to become a valid one."""
        source = grammar(format, special, required=False)
        ids = [tokenizer(special).token_to_id(marker) for marker in format.markers]
        favoured = tuple(id for id in ids if id is not None)
        for seed in range(8):
            text = walk(source, special, seed, favoured)
            if text is not None:
                valid_calls(parsed(format, text))
        said = tokenizer(special).encode("It is 5 o'clock {now} [so].", add_special_tokens=False).ids
        step = matcher(source, special)
        assert step.try_consume_tokens(said) == len(said)
        assert step.is_accepting()

    def test_text_of_a_format_or_calls(self, format: ToolFormat, special: bool) -> None:
        """An answer in words keeps to the format that was asked for."""
        source = grammar(format, special, required=False, text='"yes" | "no"')
        texts = {walk(source, special, seed) for seed in range(24)}
        words = {text for text in texts if text is not None and not valid_calls(parsed(format, text))}
        assert words == {"yes", "no"}
        assert any(valid_calls(parsed(format, text)) for text in texts if text is not None)


@pytest.mark.parametrize("format", FORMATS, ids=lambda format: format.name)
def test_a_call_that_has_begun_in_text_cannot_be_broken(format: ToolFormat) -> None:
    """After the marker only a call may follow, though free text was allowed before."""
    begin = {"llama": '{"name', "pythonic": "["}.get(format.name, format.markers[0])
    before = "" if format.name in ("llama", "pythonic") else "Let me see. "
    step = matcher(grammar(format, False, required=False), special=False)
    prefix = tokenizer(False).encode(before + begin, add_special_tokens=False).ids
    assert step.try_consume_tokens(prefix) == len(prefix)
    assert not step.is_accepting()
    wrong = tokenizer(False).encode("nonsense", add_special_tokens=False).ids
    assert step.try_consume_tokens(wrong) < len(wrong)


@pytest.mark.parametrize("begin", ["{", "```json\n{", " ```\n{ "])
def test_an_answer_that_begins_with_an_object_is_a_valid_call_or_no_call(begin: str) -> None:
    """What the format's reader takes for a call is held to the schema; other objects are free."""
    format = FORMATS[0]
    step = matcher(grammar(format, False, required=False), special=False)
    assert format.name == "hermes"

    def written(text: str) -> bool:
        tokens = tokenizer(False).encode(begin + text, add_special_tokens=False).ids
        step.reset()
        return bool(step.try_consume_tokens(tokens) == len(tokens)) and step.is_accepting()

    for call in (
        '"name": "ping", "arguments": {}}',
        '\n "name": "ping",\n "arguments": {}}\n```',
        '"name": "ping", "arguments": {}}\n{"name": "get_weather", "arguments": {"city": "Berlin"}}',
    ):
        assert written(call)
        assert valid_calls(parsed(format, begin + call))
    for text in ('"city": "Berlin"}', '"names": []} is it', '"na', "}"):
        assert written(text)
        assert parsed(format, begin + text) == [TextPart(begin + text)]
    for broken in (
        '"name": "pong"',
        '"name": 1',
        '"name": "ping", "arguments": {"a"',
        '"arguments": {}, "name": "ping"}',
        '"n\\u0061me": "ping"}',
    ):
        assert not written(broken)


def test_a_function_without_strictness_takes_any_object() -> None:
    """As in `auto`: only the name and the braces are certain."""
    format = FORMATS[0]
    source = grammar(format, False, functions=[Function("get_weather", ANYTHING)])
    step = matcher(source, special=False)
    text = '<tool_call>\n{"name": "get_weather", "arguments": {"anything": [1, "x"]}}\n</tool_call>'
    tokens = tokenizer(False).encode(text, add_special_tokens=False).ids
    assert step.try_consume_tokens(tokens) == len(tokens)
    assert step.is_accepting()


@pytest.mark.parametrize("format", FORMATS, ids=lambda format: format.name)
def test_a_json_answer_and_calls_that_begin_alike(format: ToolFormat) -> None:
    """Both can be written where either is allowed, though some formats begin a call as JSON does."""
    document = json.dumps({"properties": {"ok": {"type": "boolean"}}, "required": ["ok"], "type": "object"})
    source = grammar(format, False, required=False, text=f"%json {document}")
    call = {
        "llama": '<|python_tag|>{"name": "ping", "parameters": {}}',
        "mistral": "[TOOL_CALLS]ping[ARGS]{}",
        "mistral-list": '[TOOL_CALLS] [{"name": "ping", "arguments": {}}]',
        "pythonic": "[ping()]",
    }.get(format.name, '<tool_call>\n{"name": "ping", "arguments": {}}\n</tool_call>')
    for text in ('{"ok": true}', call):
        step = matcher(source, special=False)
        tokens = tokenizer(False).encode(text, add_special_tokens=False).ids
        assert step.try_consume_tokens(tokens) == len(tokens), text
        assert step.is_accepting()
