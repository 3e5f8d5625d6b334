"""Reads an answer that may hold calls: the grammar that constrains it, the tokens that are shown, and the events of its
text."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from llguidance import regex_to_lark
from msgspec import Struct

from engine.client.conversation import AnswerPart, ArgumentsPart, CallEndPart, CallPart, TextPart
from engine.wire import Grammar
from gateway.protocol.requests import TurnRequest
from gateway.protocol.stream import ArgumentsDelta, CallBegun, CallEnded, TextDelta, TokenLogprob, TurnEvent
from gateway.protocol.tools import Tool, ToolUse
from gateway.tools.formats import ToolFormat
from gateway.tools.grammar import ANYTHING, Calls, Function
from gateway.tools.parser import CallParser

SpecialToken = Callable[[str], int | None]
"""Function that returns the special token of a marker, if the tokenizer has one."""


class Constraint(Struct, frozen=True):
    """The grammar that constrains an answer."""

    grammar: Grammar
    param: str
    """Path of the request's field to name if it cannot be compiled."""


def constraint(request: TurnRequest, format: ToolFormat, token: SpecialToken) -> Constraint | None:
    """Return the grammar for the answer to a request, from a model that writes calls in `format`; None: free text."""
    wanted, tools = request.format, request.tools
    if tools is None or not tools.active or not (tools.enforced or wanted):
        return Constraint(wanted.grammar, wanted.param) if wanted else None
    calls = Calls(
        functions=[Function(tool.name, _enforced(tools, tool)) for tool in tools.callable],
        required=tools.mode == "required",
        parallel=tools.parallel,
        text=_rule(wanted.grammar) if wanted else None,
    )

    def marker(text: str) -> str:
        id = token(text)
        return json.dumps(text) if id is None else f"<[{id}]>"

    only = tools.callable[0] if len(tools.callable) == 1 else None
    strict = any(tool.strict for tool in tools.callable) or (wanted is not None and not wanted.grammar.lenient)
    grammar = Grammar("lark", format.grammar(calls, marker), lenient=not strict)
    return Constraint(grammar, only.param if only else "tools")


def shown_tokens(request: TurnRequest, format: ToolFormat, token: SpecialToken) -> frozenset[int]:
    """Return the special tokens that have to become text, because they surround calls."""
    if request.tools is None or not request.tools.active:
        return frozenset()
    return frozenset(id for marker in format.markers if (id := token(marker)) is not None)


class AnswerReader:
    """Turns what a model writes into the events of its turn."""

    def __init__(self, request: TurnRequest, format: ToolFormat, new_id: Callable[[], str]) -> None:
        """Args: new_id: makes the id of a call."""
        tools = request.tools
        self._parser: CallParser | None = None
        if tools is not None and tools.active:
            names = (tool.name for tool in tools.callable)
            self._parser = format.parser(names, bare=request.format is None)
        self._new_id = new_id
        self._tokens: tuple[int, ...] = ()
        """Tokens that were read, but not yet given out with an event."""
        self._logprobs: tuple[TokenLogprob, ...] = ()
        """Log-probabilities of tokens whose text has not come yet; those of calls are dropped."""

    def read(self, text: str, tokens: Sequence[int], logprobs: tuple[TokenLogprob, ...]) -> Iterable[TurnEvent]:
        """Read more of the answer."""
        if self._parser is None:
            return [TextDelta(text, tuple(tokens), logprobs)]
        self._tokens += tuple(tokens)
        self._logprobs += logprobs
        return self._events(self._parser.push(text))

    def finish(self) -> Iterable[TurnEvent]:
        """Read the end of the answer."""
        return self._events(self._parser.finish()) if self._parser else []

    def _events(self, parsed: Iterable[AnswerPart]) -> Iterable[TurnEvent]:
        for part in parsed:
            if not isinstance(part, TextPart):
                self._logprobs = ()
            match part:
                case TextPart():
                    yield TextDelta(part.text, self._taken(), self._scores(len(part.text.encode())))
                case CallPart():
                    yield CallBegun(self._new_id(), part.name)
                case ArgumentsPart():
                    yield ArgumentsDelta(part.text, self._taken())
                case CallEndPart():
                    yield CallEnded(part.complete)

    def _scores(self, length: int) -> tuple[TokenLogprob, ...]:
        """Take the log-probabilities of the tokens that a text of so many bytes is made of."""
        taken = 0
        while length > 0 and taken < len(self._logprobs):
            length -= len(self._logprobs[taken].bytes)
            taken += 1
        found, self._logprobs = self._logprobs[:taken], self._logprobs[taken:]
        return found

    def _taken(self) -> tuple[int, ...]:
        tokens, self._tokens = self._tokens, ()
        return tokens


def _enforced(tools: ToolUse, tool: Tool) -> Mapping[str, Any]:
    """Return the schema that a function's arguments are constrained to: its own if it is strict or if a call is
    required."""
    return tool.schema if tool.strict or tools.mode == "required" else ANYTHING


def _rule(grammar: Grammar) -> str:
    """Return a format as the right side of a rule."""
    match grammar.kind:
        case "json_schema":
            return f"%json {grammar.source}"
        case "json_object":
            return f"%json {json.dumps(ANYTHING)}"
        case "choice":
            # One expression: thousands of alternatives would be too many for a grammar to follow.
            escaped = (re.sub(r"[\\.+*?()|\[\]{}^$]", r"\\\g<0>", choice) for choice in json.loads(grammar.source))
            return f"/{regex_to_lark('|'.join(escaped), '')}/"
        case "regex":
            return f"/{regex_to_lark(grammar.source, '')}/"
        case "lark":
            raise ValueError("a grammar cannot be a part of another")
