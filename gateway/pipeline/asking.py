"""Asks a server for an answer in the way in which its pool takes prompts, and reads what comes as events of a turn."""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import Protocol

from msgspec import Struct

from engine.client.answer_stream import AnswerStream, Delta
from engine.client.conversation import (
    ArgumentsPart,
    CallEndPart,
    CallPart,
    ChatPrompt,
    Prompt,
    TextLogprob,
    TextPart,
)
from engine.client.upstream import GenerateOptions
from engine.wire import SamplingParams
from gateway.engines.engine import Engine
from gateway.engines.placement import salt_of
from gateway.pipeline import prompts
from gateway.pipeline.conversing import asked_format
from gateway.pipeline.service_tier import Share
from gateway.protocol.requests import TurnRequest
from gateway.protocol.stream import (
    ArgumentsDelta,
    CallBegun,
    CallEnded,
    PromptScored,
    TextDelta,
    TokenLogprob,
    TurnEvent,
)
from gateway.tools.answer import AnswerReader, Constraint, constraint, shown_tokens
from gateway.turns import Turn
from router.in_flight import InFlightRequest


class EngineRequest(Struct, frozen=True, kw_only=True):
    """The request to one engine for a turn."""

    turn: Turn
    engine: Engine
    prompt: Prompt
    """Prompt as this engine's pool takes it."""
    sampling: SamplingParams
    flight: AbstractContextManager[InFlightRequest]
    """Counts the request as load of its engine while it is open."""
    share: Share
    adapter: str | None
    """Version of the LoRA adapter, if one is used."""
    queue_timeout: float | None
    """Seconds that the request may wait in the engine for its first step; None: as long as it takes."""
    move_timeout: float
    """Seconds that an answer waits for an engine that can take it up."""


class PromptMode(Protocol):
    """One request to an engine, and the reading of its answer."""

    bound: Constraint | None
    """The grammar that constrains the answer."""
    certain: bool
    """Whether the engine can find no fault in the request."""

    def ask(self) -> AnswerStream:
        """Start the request, see `engine.client.upstream.Upstream`."""

    def read(self, delta: Delta) -> Iterable[TurnEvent]:
        """Read more of the answer."""

    def finish(self) -> Iterable[TurnEvent]:
        """Read the end of the answer."""

    def scored(self, answer: AnswerStream) -> PromptScored | None:
        """Return the prompt's log-probabilities, if the request asked for them."""


def asking(asked: EngineRequest) -> PromptMode:
    """Return what asks for an answer in the way of the prompt."""
    if isinstance(asked.prompt, ChatPrompt):
        return _AskingWithMessages(asked, asked.prompt)
    return _AskingWithTokens(asked, asked.prompt)


class _AskingWithTokens:
    """Has an engine continue token ids: text and calls are read out of them here."""

    def __init__(self, asked: EngineRequest, prompt: prompts.TokenIds) -> None:
        request, pool = asked.turn.request, asked.engine.pool
        self._asked = asked
        self._prompt = prompt
        self._reader = AnswerReader(request, pool.tools, _call_id)
        self.bound = constraint(request, pool.tools, pool.text.special_token) if request.generate else None
        self.certain = self.bound is None and not _names_tokens(request)

    def ask(self) -> AnswerStream:
        asked, request = self._asked, self._asked.turn.request
        pool = asked.engine.pool
        shown = shown_tokens(request, pool.tools, pool.text.special_token)
        return asked.engine.client.generate(
            self._prompt,
            asked.sampling,
            text=pool.text,
            stop=request.stop,
            shown=shown if request.skip_special_tokens else pool.text.special_token_ids,
            **_options(asked, self.bound),
        )

    def read(self, delta: Delta) -> Iterable[TurnEvent]:
        shown = delta.logprobs if self._asked.turn.request.sampling.logprobs is not None else None
        text = self._asked.engine.pool.text
        logprobs = tuple(prompts.logprob(entry, text) for entry in shown or ())
        return self._reader.read(delta.text, delta.token_ids, logprobs)

    def finish(self) -> Iterable[TurnEvent]:
        return self._reader.finish()

    def scored(self, answer: AnswerStream) -> PromptScored | None:
        if self._asked.turn.request.sampling.prompt_logprobs is None:
            return None
        return prompts.scored(self._prompt, answer.prompt_logprobs, self._asked.engine.pool.text)


class _AskingWithMessages:
    """Has a server answer a conversation: it tells text from calls."""

    certain = False

    def __init__(self, asked: EngineRequest, conversation: ChatPrompt) -> None:
        self._asked = asked
        self._conversation = conversation
        self.bound = asked_format(asked.turn.request)

    def ask(self) -> AnswerStream:
        asked = self._asked
        return asked.engine.client.converse(
            self._conversation, asked.sampling, stop=asked.turn.request.stop, **_options(asked, self.bound)
        )

    def read(self, delta: Delta) -> Iterable[TurnEvent]:
        for part in delta.parts:
            match part:
                case TextPart():
                    yield TextDelta(part.text, logprobs=tuple(_logprob(entry) for entry in part.logprobs))
                case CallPart():
                    yield CallBegun(_call_id(), part.name)
                case ArgumentsPart():
                    yield ArgumentsDelta(part.text)
                case CallEndPart():
                    yield CallEnded(part.complete)

    def finish(self) -> Iterable[TurnEvent]:
        return ()

    def scored(self, answer: AnswerStream) -> PromptScored | None:
        return None


def _options(asked: EngineRequest, bound: Constraint | None) -> GenerateOptions:
    """Return what is asked for in the same way whatever the prompt is made of."""
    turn, share = asked.turn, asked.share
    return {
        "adapter": asked.adapter,
        "salt": salt_of(turn.principal.tenant),
        "grammar": bound.grammar if bound else None,
        "tenant": share.tenant,
        "weight": share.weight,
        "service": share.service,
        "queue_timeout": asked.queue_timeout,
        "request_id": turn.id,
        "traceparent": turn.trace.traceparent,
    }


def _names_tokens(request: TurnRequest) -> bool:
    """Whether the request has token ids, of which only an engine knows whether its model has them."""
    sampling = request.sampling
    return bool(sampling.logit_bias or sampling.stop_token_ids) or isinstance(request.prompt, tuple)


def _logprob(entry: TextLogprob) -> TokenLogprob:
    return TokenLogprob(entry.token, entry.bytes, entry.logprob, tuple(_logprob(each) for each in entry.top))


def _call_id() -> str:
    return "call_" + secrets.token_hex(12)
