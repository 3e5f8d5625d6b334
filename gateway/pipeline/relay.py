"""Streams one engine's answer into a turn, and tells which failures let another engine answer.

An engine that is lost in the middle of an answer costs a pause: another replica of the same model goes on at the next
token. Its tokens are those that the lost one would have given, as draws are keyed by (seed, position).
"""

from __future__ import annotations

import logging
from contextlib import ExitStack
from functools import partial
from time import monotonic

from msgspec import Struct

from engine.client.answer_stream import AnswerStream
from engine.client.generation import (
    EngineGone,
    EngineOverloaded,
    Generation,
    RequestFailed,
    RequestInvalid,
    UnreadableOutput,
)
from gateway.engines.engine import Engine
from gateway.errors import ApiError, EngineFailed, InvalidRequest, Unavailable, retry_after_header
from gateway.pipeline.asking import EngineRequest, asking
from gateway.pipeline.invalid import invalid
from gateway.pipeline.sink import AnswerSink
from gateway.protocol.stream import EndReason, TokenUsage
from gateway.tools.answer import Constraint
from gateway.turns import Turn
from router.in_flight import InFlightRequest

logger = logging.getLogger("roundhouse.engines")


MAX_LOSSES = 2
"""Most engines that one request may lose and go on elsewhere: one that ends every engine must end, too."""
_PAUSE = 1.0
"""Seconds after which an engine that had no room is asked again, if it does not say."""


class Streamed(Struct, frozen=True, kw_only=True):
    """How one engine's stream ended. Times are in seconds on the monotonic clock, None if there was no token."""

    reason: EndReason
    usage: TokenUsage
    error: ApiError | None = None
    stop: str | None = None
    """The stop string that ended the answer, if one did."""
    queue_seconds: float = 0.0
    moves: int = 0
    """Number of engines that took the answer up after the first one was lost."""
    first_token: float | None = None
    last_token: float | None = None


class TryNext(Exception):
    """The engine failed before its first token: another one may answer. If there is none, the client gets `error`."""

    def __init__(self, error: ApiError, failure: EngineGone | RequestFailed) -> None:
        super().__init__(str(error))
        self.error = error
        self.gone = isinstance(failure, EngineGone)
        """Whether the engine is no longer there, or is going away; else it has refused the request."""
        self.lost = isinstance(failure, EngineGone) and not failure.leaving
        """Whether it has gone other than as it should."""


async def relay(asked: EngineRequest, sink: AnswerSink) -> Streamed:
    """Stream an engine's answer into `sink` until it ends or the turn is cancelled.

    The sink begins at once or, where the engine may find a fault in the request (a grammar that it cannot compile,
    token ids that its model does not have), when it has taken the request up: until then it may refuse the turn.

    Raises:
        TryNext: see there.
        InvalidRequest: the engine cannot serve the request, and the sink has not begun.
    """
    turn, answer = asked.turn, _Answer(asked, sink)
    answer.engine.breaker.attempt(monotonic())
    try:
        with answer.flights:
            await answer.stream()
    except (EngineGone, RequestFailed) as failure:
        error = _charge(answer.engine, failure, answer.bound, blamed=answer.blamed)
        if not failure.started and not isinstance(error, InvalidRequest):
            turn.delivered = TokenUsage
            raise TryNext(error, failure) from None
        if not answer.begun:
            raise error from None
        return Streamed(
            reason="error",
            usage=turn.delivered(),
            error=error,
            moves=answer.moves,
            first_token=answer.first,
            last_token=answer.last,
        )
    finally:
        turn.on_cancel(None)
        used = turn.delivered()
        turn.delivered = lambda: used  # a turn is kept long after its generation
        sink.close()
    if not answer.blamed and (answer.first is not None or not turn.cancelled):
        answer.engine.succeeded()
    return answer.ended()


class _Answer:
    """One answer while it is streamed."""

    def __init__(self, asked: EngineRequest, sink: AnswerSink) -> None:
        self._asked = asked
        self._sink = sink
        self.engine = asked.engine
        """Engine that has the request now."""
        self.blamed = False
        """Whether this engine's breaker knows already that it was lost."""
        self.moves = 0
        self.flights = ExitStack()
        """Counts the request as load of its engine until it is closed."""
        self._flight: InFlightRequest
        self._model = asked.engine.client.info
        """What the answer began with: an engine that is started again may serve something else."""
        self._lost = 0
        """Number of engines that were lost with it, other than by going away as they should."""
        self._said = 0
        """Tokens of the answer when it was moved last."""
        self._until = 0.0
        """Time by which another engine has to go on with it."""
        self._full: dict[Engine, float] = {}
        """Engines that had no room for the rest, and when they are asked again."""
        self._asking = asking(asked)
        self.bound = self._asking.bound
        self.begun = self._asking.certain
        if self.begun:
            sink.begin()
        self.first: float | None = None
        self.last: float | None = None
        """When the last token came, as `first` is when the first one did."""
        self._broken: ApiError | None = None
        self._generation: AnswerStream

    async def stream(self) -> None:
        """Ask the engine and pass on what it answers, and others in its place if it is lost."""
        turn, sink = self._asked.turn, self._sink
        self._flight = self.flights.enter_context(self._asked.flight)
        generation = self._generation = self._asking.ask()
        turn.delivered = partial(_usage, turn, generation)
        async with generation:
            turn.on_cancel(generation.cancel)
            if not self.begun:
                await generation.accepted()
                sink.begin()
                self.begun = True
            while True:
                try:
                    await self._pass_on()
                    break
                except (EngineGone, EngineOverloaded) as failure:
                    moved = failure.started and await self._move(failure)
                    if turn.cancelled:
                        break
                    if not moved:
                        raise
            if self.first is None and not turn.cancelled:  # the first token has ended the answer
                self._show_scores()
            sink.take(self._asking.finish())
            self._broken = sink.finish()

    async def _pass_on(self) -> None:
        """Pass on what the generation says until it ends, or nobody may see more of it."""
        request, sink = self._asked.turn.request, self._sink
        async for delta in self._generation:
            self.last = monotonic()
            self._flight.prefilled()
            if self.first is None:
                self.first = self.last
                self._show_scores()
            if request.generate:
                sink.take(self._asking.read(delta))
                if sink.blocked:
                    break

    async def _move(self, failure: EngineGone | EngineOverloaded) -> bool:
        """Have another engine go on with the answer; False if none can, or the answer is no longer wanted."""
        turn, lost, generation, now = self._asked.turn, self.engine, self._generation, monotonic()
        if not isinstance(generation, Generation):
            return False
        said = generation.usage.output_tokens
        if isinstance(failure, EngineOverloaded) and self.moves and said == self._said:
            self.moves -= 1  # it has not taken the answer up
            self._full[lost] = now + (_PAUSE if failure.retry_after is None else failure.retry_after)
        else:
            self._lost += not (isinstance(failure, EngineGone) and failure.leaving)
            if self._lost > MAX_LOSSES:
                return False
            self._until = now + self._asked.move_timeout
        if _blames(failure):
            lost.failed()
            self.blamed = True
        most = len(self._asked.prompt) + self._asked.sampling.max_tokens
        successor = await lost.pool.successor(
            lambda engine: engine.client.resumes and engine.continues(self._model, most),
            self._until,
            self._full,
            unless=lambda: turn.cancelled,
        )
        if successor is None:
            return False
        successor.client.resume(generation)
        successor.breaker.attempt(monotonic())
        logger.warning("answer moved", extra={"replica": lost.name, "successor": successor.name})
        self.engine, self.blamed, self._said = successor, False, said
        self.moves += 1
        self.flights.close()
        answer = successor.pool.answer_length.predict(self._asked.sampling.max_tokens - said)
        self._flight = self.flights.enter_context(successor.carrying(len(self._asked.prompt) + said, answer))
        return True

    def ended(self) -> Streamed:
        """Return how a stream ended that the engine did not fail."""
        turn, generation = self._asked.turn, self._generation
        blocked = self._sink.blocked
        whole = not (turn.cancelled or blocked)
        broken = self._broken if whole else None
        return Streamed(
            reason="error" if broken else "content_filter" if blocked else _reason(turn, generation),
            usage=turn.delivered(),
            error=broken,
            stop=generation.result.stop if whole else None,
            queue_seconds=generation.usage.queue_seconds,
            moves=self.moves,
            first_token=self.first,
            last_token=self.last,
        )

    def _show_scores(self) -> None:
        scored = self._asking.scored(self._generation)
        if scored is not None:
            self._asked.turn.append(scored)


def _reason(turn: Turn, generation: AnswerStream) -> EndReason:
    if turn.cancelled:
        return "cancelled"
    # A warm-up is complete when the prompt has been run, whatever became of the token that is thrown away.
    if not turn.request.generate:
        return "stop"
    if generation.result.filtered:
        return "content_filter"
    reason = generation.result.finish_reason
    return "length" if reason == "timeout" else reason  # OpenAI's formats have one word for an answer cut short


def _usage(turn: Turn, generation: AnswerStream) -> TokenUsage:
    usage = generation.delivered
    return TokenUsage(usage.prompt_tokens, usage.cached_tokens, usage.output_tokens if turn.request.generate else 0)


def _charge(engine: Engine, failure: EngineGone | RequestFailed, held: Constraint | None, *, blamed: bool) -> ApiError:
    """Report the failure to the breaker unless it knows already, and return the error for the client."""
    if isinstance(failure, RequestInvalid) or (isinstance(failure, RequestFailed) and failure.field == "grammar"):
        # The request's own fault, also where a grammar turns out too costly later. Not for the log: that must not hold
        # what clients write.
        engine.succeeded()
        return invalid(failure, held)
    logger.warning("engine failed", extra={"replica": engine.name, "started": failure.started, "error": str(failure)})
    if isinstance(failure, EngineOverloaded):
        engine.succeeded()
        retry = retry_after_header(2.0 if failure.retry_after is None else failure.retry_after)
        return Unavailable(str(failure), code="overloaded", headers=retry)
    if isinstance(failure, UnreadableOutput):
        engine.succeeded()
        return EngineFailed(str(failure))
    if _blames(failure) and not blamed:
        engine.failed()
    if failure.started:
        return EngineFailed("the engine failed while it was answering; send the request again")
    return Unavailable("no engine could answer; try again in a few seconds", headers={"retry-after": "2"})


def _blames(failure: EngineGone | RequestFailed) -> bool:
    """Whether a failure to answer is the engine's own, not one that is full or going away as it should."""
    return not isinstance(failure, EngineOverloaded) and not (isinstance(failure, EngineGone) and failure.leaving)
