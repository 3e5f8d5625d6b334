"""Turns the chunks of a server's stream into the parts of an answer. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from math import ceil

import msgspec
from msgspec import Struct

from engine.client.conversation import (
    AnswerPart,
    ArgumentsPart,
    CallEndPart,
    CallPart,
    TextLogprob,
    TextPart,
    estimated_tokens,
)
from engine.wire import FinishReason
from gateway.upstreams.messages.dialect import CallFragment, MessageChunk, ServerUsage


class MessageOutput(Struct, frozen=True):
    """What a chunk adds to an answer."""

    parts: Sequence[AnswerPart] = ()
    tokens: int = 0
    """Estimated number of tokens of the answer so far."""


class MessageEnd(Struct, frozen=True):
    """How an answer has ended."""

    parts: Sequence[AnswerPart]
    finish: FinishReason
    filtered: bool


class UnofferedCall(Exception):
    """The model calls a function that it was not offered."""


class MessageReader:
    """Reads one answer."""

    def __init__(self, functions: Collection[str], logprobs: int | None = None) -> None:
        """
        Args:
            functions: names of those that may be called.
            logprobs: tokens beside the chosen one whose log-probabilities were asked for; None: not even its own.
        """
        self._functions = functions
        self._wanted = logprobs
        self._call: int | None = None
        """Number of the call that is being read."""
        self._name = ""
        """Function that it calls."""
        self._arguments: list[str] = []
        self._events = 0
        self._estimated = 0.0
        self._finish: FinishReason | None = None
        self._filtered = False
        self.usage = ServerUsage()
        """What the server has counted."""

    @property
    def tokens(self) -> int:
        """Number of tokens of the answer so far. Most servers send an event per token."""
        return max(self._events, ceil(self._estimated))

    @property
    def ended(self) -> bool:
        """Whether the server has said that the answer has ended."""
        return self._finish is not None

    def read(self, chunk: MessageChunk) -> MessageOutput:
        """Return what a chunk adds to the answer.

        Raises:
            ValueError: it makes no sense after those before it.
            UnofferedCall: see there.
        """
        if chunk.usage is not None:
            told = {name: count for name, count in msgspec.structs.asdict(chunk.usage).items() if count is not None}
            self.usage = msgspec.structs.replace(self.usage, **told)
        if chunk.finish is not None:
            self._finish, self._filtered = chunk.finish, chunk.filtered
        parts: list[AnswerPart] = []
        scores = self._scores(chunk)
        if chunk.text or scores:
            parts += [*self._end_call(), TextPart(chunk.text, scores)]
        for fragment in chunk.calls:
            parts += self._read_call(fragment)
        said = chunk.text + chunk.reasoning + "".join(call.arguments for call in chunk.calls)
        said += "".join(part.name for part in parts if isinstance(part, CallPart))
        if said or chunk.logprobs:
            self._events += max(1, len(chunk.logprobs))
            self._estimated += estimated_tokens(said)
        return MessageOutput(parts, self.tokens)

    def end(self) -> MessageEnd | None:
        """Return how the answer has ended, when the stream has; None if the server has not said."""
        if self._finish is None:
            return None
        whole = self._finish == "stop" and not self._filtered
        return MessageEnd(self._end_call(whole=whole), self._finish, self._filtered)

    def _scores(self, chunk: MessageChunk) -> list[TextLogprob]:
        """Return what was asked for of a chunk's log-probabilities, the likeliest tokens first: some servers tell more,
        and those of what is no text."""
        if self._wanted is None or (not chunk.text and (chunk.calls or chunk.reasoning)):
            return []
        return [
            msgspec.structs.replace(each, top=sorted(each.top, key=lambda other: -other.logprob)[: self._wanted])
            for each in chunk.logprobs
        ]

    def _read_call(self, fragment: CallFragment) -> list[AnswerPart]:
        parts: list[AnswerPart] = []
        if fragment.index != self._call or self._begins(fragment.name):
            if fragment.name is None:
                raise ValueError("it goes on with a call that it has not begun")
            if fragment.name not in self._functions:
                raise UnofferedCall
            parts += [*self._end_call(), CallPart(fragment.name)]
            self._call, self._name = fragment.index, fragment.name
        if fragment.arguments:
            self._arguments.append(fragment.arguments)
            parts.append(ArgumentsPart(fragment.arguments))
        return parts

    def _begins(self, name: str | None) -> bool:
        """Whether a name begins another call though the number is the same: some servers number no calls, and others
        repeat the name with each fragment of one."""
        if name is None or not self._arguments:
            return False
        return name != self._name or _is_object("".join(self._arguments))

    def _end_call(self, *, whole: bool = True) -> list[AnswerPart]:
        """Args: whole: whether nothing has cut it off."""
        if self._call is None:
            return []
        text, self._call, self._arguments = "".join(self._arguments), None, []
        if not text and whole:
            return [ArgumentsPart("{}"), CallEndPart(complete=True)]
        return [CallEndPart(complete=_is_object(text))]


def _is_object(text: str) -> bool:
    try:
        return isinstance(msgspec.json.decode(text), dict)
    except (msgspec.DecodeError, RecursionError):
        return False
