"""Parsers of calls: however the text is cut, whatever a model writes."""

from __future__ import annotations

import ast
import itertools
import json
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.client.conversation import AnswerPart, ArgumentsPart, CallEndPart, CallPart, TextPart
from gateway.tools.formats import FORMATS, ToolFormat
from gateway.tools.parser import MAX_CALLS, CallParser, JsonValue
from gateway.tools.parsers import MAX_LITERAL, HermesParser, LlamaParser, MistralParser, PythonicParser

NAMES = ("f", "get_weather")
PARSERS: tuple[type[CallParser], ...] = (HermesParser, LlamaParser, MistralParser, PythonicParser)


def joined(parts: Iterable[AnswerPart]) -> list[AnswerPart]:
    """Neighbouring texts and arguments as one."""
    whole: list[AnswerPart] = []
    for part in parts:
        last = whole[-1] if whole else None
        if isinstance(part, TextPart) and isinstance(last, TextPart):
            whole[-1] = TextPart(last.text + part.text)
        elif isinstance(part, ArgumentsPart) and isinstance(last, ArgumentsPart):
            whole[-1] = ArgumentsPart(last.text + part.text)
        else:
            whole.append(part)
    return whole


def parse(parser: type[CallParser], *pieces: str) -> list[AnswerPart]:
    reader = parser(NAMES)
    return joined([*(part for piece in pieces for part in reader.push(piece)), *reader.finish()])


def called(name: str, arguments: str, complete: bool = True) -> list[AnswerPart]:
    return [CallPart(name), ArgumentsPart(arguments), CallEndPart(complete)]


@pytest.mark.parametrize(
    ("parser", "text", "parts"),
    [
        (HermesParser, '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>', called("f", '{"a": 1}')),
        (
            HermesParser,
            'I look.\n<tool_call>{"name": "f", "arguments": {}}</tool_call>\n'
            '<tool_call>{"name": "get_weather", "arguments": {"b": "}"}}</tool_call>\nDone. ',
            [TextPart("I look."), *called("f", "{}"), *called("get_weather", '{"b": "}"}'), TextPart("Done. ")],
        ),
        # Keys in another order, an id, arguments as a string, none at all.
        (HermesParser, '<tool_call>{"arguments": {"a": [1]}, "id": 5, "name": "f"}', called("f", '{"a": [1]}')),
        (HermesParser, '<tool_call>{"name": "f", "arguments": "{\\"a\\": 1}"}</tool_call>', called("f", '{"a": 1}')),
        (HermesParser, '<tool_call>{"name": "f"}</tool_call>', called("f", "{}")),
        (HermesParser, '<tool_call>{"name": "f", "arguments": null}</tool_call>', called("f", "{}")),
        # No object: the client is told so.
        (HermesParser, '<tool_call>{"name": "f", "arguments": [1]}</tool_call>', called("f", "[1]", complete=False)),
        (HermesParser, '<tool_call>{"name": "f", "arguments": {"a" 1}}', called("f", '{"a" 1}', complete=False)),
        # Cut off.
        (HermesParser, '<tool_call>{"name": "f", "arguments": {"a": tr', called("f", '{"a": tr', complete=False)),
        (HermesParser, '<tool_call>{"name": "f", "arg', [CallPart("f"), CallEndPart(False)]),
        (HermesParser, '<tool_call>{"name": "', [TextPart('<tool_call>{"name": "')]),
        (HermesParser, "so <tool_ca", [TextPart("so <tool_ca")]),
        # No calls at all.
        (HermesParser, "  the tag <tool_call> is a tag\n", [TextPart("  the tag <tool_call> is a tag\n")]),
        (
            HermesParser,
            '<tool_call>{"name": "g", "arguments": {}}',
            [TextPart('<tool_call>{"name": "g", "arguments": {}}')],
        ),
        (HermesParser, '<tool_call>{"question": 1}', [TextPart('<tool_call>{"question": 1}')]),
        (HermesParser, '<tool_call><tool_call>{"name": "f"}', [TextPart("<tool_call>"), *called("f", "{}")]),
        # Without markers, where the answer begins.
        (HermesParser, '```json\n{\n  "name": "f",\n  "arguments": {"a": 1}\n}\n```', called("f", '{"a": 1}')),
        (HermesParser, '{"name": "f", "arguments": {"a": 1}}\n', called("f", '{"a": 1}')),
        (
            HermesParser,
            ' ```\n{"name": "f"}\n{"name": "f"}\n```\n```json\n{"name": "get_weather"}\n```\nDone.',
            [*called("f", "{}"), *called("f", "{}"), *called("get_weather", "{}"), TextPart("Done.")],
        ),
        (
            HermesParser,
            '{"name": "f"}<tool_call>{"name": "f"}</tool_call>',
            [*called("f", "{}"), *called("f", "{}")],
        ),
        (
            HermesParser,
            '<tools>\n{"name": "f", "arguments": {"a": 1}}\n{"name": "f"}\n</tools>\nDone.',
            [*called("f", '{"a": 1}'), *called("f", "{}"), TextPart("Done.")],
        ),
        (HermesParser, '<tools>{"type": "function"}</tools>', [TextPart('<tools>{"type": "function"}</tools>')]),
        (HermesParser, '</tools>{"name": "f"}', [TextPart('</tools>{"name": "f"}')]),
        (HermesParser, '```json\n{"name": "f", "arguments": {"a": t', called("f", '{"a": t', complete=False)),
        (HermesParser, '```json\n{"name": "g"}\n```', [TextPart('```json\n{"name": "g"}\n```')]),
        (
            HermesParser,
            '```json\n{"name": "f", "age": 1}\n```',
            [CallPart("f"), CallEndPart(False), TextPart(": 1}\n```")],
        ),
        (HermesParser, 'So:\n```json\n{"name": "f"}\n```', [TextPart('So:\n```json\n{"name": "f"}\n```')]),
        (HermesParser, "```python\nf()\n```", [TextPart("```python\nf()\n```")]),
        (LlamaParser, '{"name": "f", "parameters": {"a": 1}}', called("f", '{"a": 1}')),
        (LlamaParser, ' {"type": "function", "name": "f", "parameters": {}}', called("f", "{}")),
        (LlamaParser, '<|python_tag|>{"name": "f", "parameters": {}}', called("f", "{}")),
        (
            LlamaParser,
            '{"name": "f", "parameters": {}}; {"name": "get_weather", "parameters": {}}\n{"name": "f"}',
            [*called("f", "{}"), *called("get_weather", "{}"), *called("f", "{}")],
        ),
        (
            LlamaParser,
            'Look: <|python_tag|>{"name": "f"} there',
            [TextPart("Look:"), *called("f", "{}"), TextPart("there")],
        ),
        (LlamaParser, '{"answer": {"name": "f"}}', [TextPart('{"answer": {"name": "f"}}')]),
        (LlamaParser, 'It is {"name": "f", "parameters": {}}', [TextPart('It is {"name": "f", "parameters": {}}')]),
        (LlamaParser, '{"name": "f"}; and', [*called("f", "{}"), TextPart("; and")]),
        (LlamaParser, "\n hi", [TextPart("\n hi")]),
        (
            MistralParser,
            'ok[TOOL_CALLS] [{"name": "f", "arguments": {"a": 1}}, {"name": "f", "arguments": {}}] bye',
            [TextPart("ok"), *called("f", '{"a": 1}'), *called("f", "{}"), TextPart("bye")],
        ),
        (
            MistralParser,
            '[TOOL_CALLS]f[ARGS]{"a": 1}[TOOL_CALLS]get_weather[CALL_ID]a1B2c3D4e[ARGS]{}',
            [*called("f", '{"a": 1}'), *called("get_weather", "{}")],
        ),
        (MistralParser, '[TOOL_CALLS]f{"a": 1}', called("f", '{"a": 1}')),
        (MistralParser, "[TOOL_CALLS]g[ARGS]{}", [TextPart("[TOOL_CALLS]g[ARGS]{}")]),
        (
            MistralParser,
            '[TOOL_CALLS][{"name": "f"}, {"name": "g"}]',
            [*called("f", "{}"), TextPart(', {"name": "g"}]')],
        ),
        (MistralParser, '[TOOL_CALLS]f[ARGS]{"a"', called("f", '{"a"', complete=False)),
        (
            PythonicParser,
            "[f(a=1, b='x,)\"', c={'k': [None, True, 1.5]}), get_weather()]",
            [
                *called("f", '{"a": 1, "b": "x,)\\"", "c": {"k": [null, true, 1.5]}}'),
                *called("get_weather", "{}"),
            ],
        ),
        (
            PythonicParser,
            '[f(a={"k": [null, true]}, **{"b": "ü"})]',
            called("f", '{"a": {"k": [null, true]}, "b": "ü"}'),
        ),
        (PythonicParser, "<|python_start|>[f(a=1)]<|python_end|> so", [*called("f", '{"a": 1}'), TextPart("so")]),
        (PythonicParser, "well <|python_start|>[f()]", [TextPart("well"), *called("f", "{}")]),
        (PythonicParser, "[f(a=1, 5)]", [*called("f", '{"a": 1', complete=False), TextPart(")]")]),
        (PythonicParser, "[f(a=open('x'))]", [CallPart("f"), CallEndPart(False), TextPart(")]")]),
        (PythonicParser, "[f(a=b'x')]", [CallPart("f"), CallEndPart(False), TextPart(")]")]),
        (PythonicParser, "[f(a='\\ud800')]", called("f", '{"a": "\\ud800"}')),
        (PythonicParser, "[1, 2] is a list", [TextPart("[1, 2] is a list")]),
        (PythonicParser, "[g()]", [TextPart("[g()]")]),
    ],
)
def test_what_models_write(parser: type[CallParser], text: str, parts: list[AnswerPart]) -> None:
    """Whole, and character by character."""
    assert parse(parser, text) == parts
    assert parse(parser, *text) == parts


def test_an_answer_by_a_schema_is_no_call_without_a_marker() -> None:
    """Though it may look like one."""
    document = '{"name": "f"}'
    for parser, marker in ((HermesParser, HermesParser.begin), (LlamaParser, LlamaParser.tag)):
        reader = parser(NAMES, bare=False)
        assert joined([*reader.push(document), *reader.finish()]) == [TextPart(document)]
        reader = parser(NAMES, bare=False)
        assert joined([*reader.push(marker + document), *reader.finish()]) == called("f", "{}")


FRAGMENTS = [
    "```json\n",
    "\n```",
    "<tool_call>",
    "</tool_call>",
    "<tools>",
    "</tools>",
    "<|python_tag|>",
    "[TOOL_CALLS]",
    "[ARGS]",
    "[CALL_ID]",
    "<|python_start|>",
    "<|python_end|>",
    '{"name": "f", "arguments": {"a": "\\"}"}}',
    '{"name": "g", "parameters": {}}',
    '{"name": ',
    '"f"',
    '"parameters": ',
    "get_weather",
    "(a=1, b='x')",
    "f(",
    "**",
    *"{}[](),;:=\"\\ \n'x<é",
]
mixtures = st.lists(st.sampled_from(FRAGMENTS) | st.text(max_size=3), max_size=14).map("".join)


def cut(text: str, places: list[int]) -> list[str]:
    edges = [0, *sorted(place % (len(text) + 1) for place in places), len(text)]
    return [text[start:end] for start, end in itertools.pairwise(edges)]


@pytest.mark.parametrize("parser", PARSERS)
@given(text=mixtures, places=st.lists(st.integers(0, 1000), max_size=12))
def test_how_the_text_is_cut_does_not_matter(parser: type[CallParser], text: str, places: list[int]) -> None:
    """Any text in any pieces gives what the whole text gives."""
    assert parse(parser, *cut(text, places)) == parse(parser, text)


@pytest.mark.parametrize("parser", PARSERS)
@given(text=mixtures)
def test_calls_begin_and_end_in_turn_and_are_known(parser: type[CallParser], text: str) -> None:
    """Begin, arguments, end; never text in between, never a function that was not offered, never lying."""
    inside, arguments = False, ""
    for part in parse(parser, text):
        match part:
            case CallPart(name):
                assert not inside and name in NAMES
                inside, arguments = True, ""
            case ArgumentsPart(more):
                assert inside
                arguments += more
            case CallEndPart(complete):
                assert inside
                assert complete == is_object(arguments)
                inside = False
            case TextPart(said):
                assert not inside and said
    assert not inside


def is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except ValueError:
        return False


@pytest.mark.parametrize("parser", PARSERS)
@given(text=mixtures)
def test_text_without_a_call_comes_back_as_it_was(parser: type[CallParser], text: str) -> None:
    """Every character of it."""
    reader = parser(())  # nothing may be called
    parts = joined([*reader.push(text), *reader.finish()])
    assert parts == ([TextPart(text)] if text else [])


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
keywords = st.dictionaries(st.from_regex(r"[a-z_]{1,4}", fullmatch=True), json_values, max_size=3)


def written(format: ToolFormat, calls: list[tuple[str, dict[str, Any]]], python: bool) -> str:
    """Calls as a model of a format writes them."""
    objects = [json.dumps({"name": name, "arguments": arguments}) for name, arguments in calls]
    match format.name:
        case "hermes" | "neutral":
            return "\n".join(f"<tool_call>\n{text}\n</tool_call>" for text in objects)
        case "llama":
            return "; ".join(objects)
        case "mistral-list":
            return f"[TOOL_CALLS] [{', '.join(objects)}]"
        case "mistral":
            return "".join(f"[TOOL_CALLS]{name}[ARGS]{json.dumps(arguments)}" for name, arguments in calls)
        case "pythonic":
            spell = repr if python else json.dumps
            listed = (f"{name}({', '.join(f'{k}={spell(v)}' for k, v in kw.items())})" for name, kw in calls)
            return f"[{', '.join(listed)}]"


@pytest.mark.parametrize("format", FORMATS, ids=lambda format: format.name)
@given(
    calls=st.lists(st.tuples(st.sampled_from(NAMES), keywords), min_size=1, max_size=4),
    python=st.booleans(),
    places=st.lists(st.integers(0, 1000), max_size=8),
)
def test_what_is_written_is_read(
    format: ToolFormat, calls: list[tuple[str, dict[str, Any]]], python: bool, places: list[int]
) -> None:
    """Names and arguments survive in every format, whatever strings hold."""
    reader = format.parser(NAMES)
    pieces = cut(written(format, calls, python), places)
    parts = joined([*(part for piece in pieces for part in reader.push(piece)), *reader.finish()])
    names = [part.name for part in parts if isinstance(part, CallPart)]
    arguments = [json.loads(part.text) for part in parts if isinstance(part, ArgumentsPart)]
    assert list(zip(names, arguments, strict=True)) == calls
    assert all(part.complete for part in parts if isinstance(part, CallEndPart))
    assert not any(isinstance(part, TextPart) for part in parts)


def test_arguments_stream() -> None:
    """What is certain is given out at once, not at the end of the call."""
    reader = HermesParser(NAMES)
    assert reader.push('Hm <tool_call>{"name": "f", ') == [TextPart("Hm"), CallPart("f")]
    assert reader.push('"arguments": {"a": "x') == [ArgumentsPart('{"a": "x')]
    assert reader.push("y") == [ArgumentsPart("y")]
    assert reader.push('"}}') == [ArgumentsPart('"}'), CallEndPart(True)]
    pythonic = PythonicParser(NAMES)
    assert pythonic.push("[f(a=1, b=") == [CallPart("f"), ArgumentsPart('{"a": 1')]


def test_calls_are_counted() -> None:
    """An answer of calls only cannot have any number of items."""
    parts = parse(HermesParser, '<tool_call>{"name": "f"}</tool_call>' * (MAX_CALLS + 1))
    assert sum(isinstance(part, CallPart) for part in parts) == MAX_CALLS
    assert parts[-1] == TextPart('<tool_call>{"name": "f"}</tool_call>')


@pytest.mark.parametrize(
    "value",
    ["(" * 50_000, "[" * 50_000, "-" * 50_000, "9" * 50_000, "'" + "x" * MAX_LITERAL + "'", "1e999", "{1: {2}}"],
)
def test_monstrous_python_is_no_value(value: str) -> None:
    """It ends its call and nothing else."""
    parts = parse(PythonicParser, f"[f(a={value})]")
    assert parts[:2] == [CallPart("f"), CallEndPart(False)]


@pytest.mark.parametrize("parser", PARSERS)
def test_deep_and_long_arguments_cost_no_recursion(parser: type[CallParser]) -> None:
    """Nesting is counted, not followed."""
    deep = '{"a": ' * 20_000
    for text in (f'<tool_call>{{"name": "f", "arguments": {deep}', f"[TOOL_CALLS]f[ARGS]{deep}", deep, "[f(a=" + deep):
        parse(parser, text, *([deep] * 3))


@pytest.mark.parametrize("arguments", ["[" * 20_000 + "]" * 20_000, '"' + "[" * 20_000 + "]" * 20_000 + '"'])
@pytest.mark.parametrize("first", ["name", "arguments"])
def test_arguments_that_are_nested_without_end_are_those_of_a_broken_call(arguments: str, first: str) -> None:
    """Also where they are held back or unwrapped: they end their call, not the turn."""
    fields = ['"name": "f"', f'"arguments": {arguments}']
    text = ", ".join(fields if first == "name" else reversed(fields))
    assert parse(HermesParser, f"<tool_call>{{{text}}}</tool_call>") == called("f", arguments, complete=False)


@given(value=json_values, after=st.sampled_from([",", "}", " ", "]", "\n"]), places=st.lists(st.integers(0, 99)))
def test_the_end_of_a_json_value_is_found(value: Any, after: str, places: list[int]) -> None:
    """In any pieces, and nothing after it is read."""
    text = json.dumps(value)
    scanner, read = JsonValue(), ""
    for piece in cut(text + after, places):
        read += piece[: scanner.feed(piece, 0)]
        if scanner.done:
            break
    assert scanner.done
    assert ast.literal_eval(repr(json.loads(read))) == value
