"""The rows of the conformance table, and what its tests share."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from engine.client.answer_stream import AnswerStream, Delta
from engine.client.conversation import ArgumentsPart, CallEndPart, CallPart, ChatTool
from engine.client.upstream import Upstream
from engine.wire import SamplingParams
from tests.gateway.upstreams.subjects import Subject

FEATURES: dict[str, str] = {}
"""What each test asks for, by the test's name."""
REFUSED: dict[str, frozenset[str]] = {}
"""Servers that refuse what a test asks for, which the test checks too."""
WITHOUT: dict[str, frozenset[str]] = {}
"""Servers that lack it, though no request asks for it."""
GRAMMARS: set[str] = set()
"""Tests of what a dialect makes of grammars."""
_Test = TypeVar("_Test", bound=Callable[..., Any])


def feature(
    what: str, *, refused: tuple[str, ...] = (), without: tuple[str, ...] = (), grammar: bool = False
) -> Callable[[_Test], _Test]:
    """Make a test a row of the conformance table."""

    def row(test: _Test) -> _Test:
        name = test.__name__
        FEATURES[name], REFUSED[name], WITHOUT[name] = what, frozenset(refused), frozenset(without)
        if grammar:
            GRAMMARS.add(name)
        return test

    return row


def greedy(tokens: int, **fields: Any) -> SamplingParams:
    return SamplingParams(**{"max_tokens": tokens, "temperature": 0.0, "ignore_eos": True, **fields})


QUESTION = "Name three colours."
STORY = "Tell a long story about three trains."
"""Question to servers that cannot be kept from ending an answer early."""


def prompt(subject: Subject) -> list[int]:
    return subject.text.encode_chat([{"role": "user", "content": QUESTION}])


def ask(subject: Subject, client: Upstream, tokens: int = 16, **options: Any) -> AnswerStream:
    question = options.pop("question", STORY if subject.takes_messages else QUESTION)
    sampling = options.pop("sampling", None) or greedy(tokens)
    if subject.takes_messages:  # such servers have no such parameter
        sampling = msgspec.structs.replace(sampling, ignore_eos=False)
    return subject.ask(client, question, sampling, **options)


async def collect(generation: AnswerStream) -> list[Delta]:
    async with generation:
        return [delta async for delta in generation]


async def text_of(generation: AnswerStream) -> str:
    return "".join(delta.text for delta in await collect(generation))


async def until_running(subject: Subject, count: int) -> None:
    while await subject.running() != count:  # noqa: ASYNC110  nothing announces it
        await asyncio.sleep(0.01)


CALL = '<tool_call>\n{"name": "now", "arguments": {"zone": "UTC"}}\n</tool_call>'
ZONE = {"type": "object", "properties": {"zone": {"type": "string", "enum": ["UTC"]}}, "required": ["zone"]}
NOW = ChatTool("now", "Tells the time.", {**ZONE, "additionalProperties": False})


async def expect_call(answer: AnswerStream) -> None:
    """Check that an answer is a call of `NOW`."""
    parts = [part for delta in await collect(answer) for part in delta.parts]
    assert [part.name for part in parts if isinstance(part, CallPart)] == ["now"]
    arguments = "".join(part.text for part in parts if isinstance(part, ArgumentsPart))
    assert json.loads(arguments) == {"zone": "UTC"}
    assert [part.complete for part in parts if isinstance(part, CallEndPart)] == [True]
    assert answer.result.finish_reason == "stop"
