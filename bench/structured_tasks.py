"""A hundred tasks for calls of functions and answers by a schema, and how an answer to one is graded."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from jsonschema import Draft202012Validator, FormatChecker

FILE = Path(__file__).with_suffix(".json")

Json = dict[str, Any]


class ExpectedCall(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A call of a function with the arguments that it must have; others may be there."""

    name: str
    arguments: Json


class Task(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A request of a user, and what a right answer has: either calls, or a document by a schema."""

    ask: str
    tools: list[str] = []
    """Names of the functions that the model may call."""
    calls: list[ExpectedCall] = []
    """Calls of a right answer, in any order; none: the model must not call."""
    schema: str | None = None
    """Name of the schema that the answer must keep to."""
    expected: Json = {}
    """Properties of a right document; others may have any value."""


class OfferedTool(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    description: str
    parameters: Json


class Tasks(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All tasks, and the functions and schemas that they name."""

    tools: dict[str, OfferedTool]
    schemas: dict[str, Json]
    tasks: list[Task]


class Grade(msgspec.Struct, frozen=True):
    """What is right about one answer; each field needs the one before."""

    parses: bool
    """Calls, or a document, and nothing else where one is expected."""
    valid: bool
    """Arguments, or the document, keep to their schema."""
    right: bool
    """Calls and arguments, or the document's properties, are those that were asked for."""


def read() -> Tasks:
    return msgspec.json.decode(FILE.read_bytes(), type=Tasks)


def grade_calls(task: Task, tools: Mapping[str, OfferedTool], calls: Sequence[tuple[str, str]]) -> Grade:
    """Grade calls, each a function's name and its arguments as JSON."""
    read = [(name, _json(text)) for name, text in calls]
    parses = bool(calls) == bool(task.calls) and all(isinstance(found, dict) for _, found in read)
    valid = parses and all(name in tools and keeps_to(found, tools[name].parameters) for name, found in read)
    left = list(task.calls)
    for name, found in read if valid else ():
        match = next((call for call in left if call.name == name and _has(found, call.arguments)), None)
        if match is None:
            return Grade(parses, valid, False)
        left.remove(match)
    return Grade(parses, valid, valid and not left)


def grade_document(task: Task, schema: Json, text: str) -> Grade:
    """Grade an answer; marks of a block of code around the document are no fault."""
    found = _json(text.strip().removeprefix("```json").removeprefix("```").removesuffix("```"))
    parses = isinstance(found, dict)
    valid = parses and keeps_to(found, schema)
    return Grade(parses, valid, valid and _has(found, task.expected))


def keeps_to(document: object, schema: Json) -> bool:
    validator: Draft202012Validator = Draft202012Validator(schema, format_checker=FormatChecker())
    return bool(validator.is_valid(document))


def _json(text: str) -> object:
    """The document that `text` is, or None."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _has(found: object, expected: object) -> bool:
    """Whether a value is the expected one, but for capitals, outer spaces and properties that nobody asked for."""
    if isinstance(expected, dict):
        return isinstance(found, dict) and all(
            name in found and _has(found[name], value) for name, value in expected.items()
        )
    if isinstance(expected, list):
        return isinstance(found, list) and len(found) == len(expected) and all(map(_has, found, expected))
    if isinstance(expected, str):
        return isinstance(found, str) and found.strip().casefold() == expected.casefold()
    return isinstance(found, bool) == isinstance(expected, bool) and found == expected
