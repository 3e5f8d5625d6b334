"""Streams one engine's answer into a turn, and tells failures that another engine may mend from those it may not."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from time import monotonic

from msgspec import Struct

from engine.client.engine_client import (
    AnswerUnreadable,
    EngineGone,
    EngineOverloaded,
    Generation,
    RequestFailed,
    RequestInvalid,
)
from engine.text.processor import TextProcessor
from engine.wire import SamplingParams
from gateway.engines.placement import salt_of
from gateway.engines.pools import Engine
from gateway.errors import AnswerRedacted, ApiError, EngineFailed, InvalidRequest, Unavailable, retry_after_header
from gateway.pipeline import prompts
from gateway.pipeline.routing.held import HeldAnswer
from gateway.pipeline.service_tier import Share
from gateway.protocol.stream import EndReason, TurnEvent, Usage
from gateway.safety.answer import AnswerFilter
from gateway.safety.hold import Hold
from gateway.tools.answer import AnswerReader, Constraint, constraint, shown_tokens
from gateway.turns import Turn
from router.flight import Flight

logger = logging.getLogger("roundhouse.engines")


MAX_REASON = 500
"""Characters of what an engine says about a grammar."""


class Streamed(Struct, frozen=True, kw_only=True):
    """What came of one engine's stream. Times are in seconds on the monotonic clock, None if there was no token."""

    reason: EndReason
    usage: Usage
    error: ApiError | None = None
    stop: str | None = None
    """The stop string that ended the answer, if one did."""
    queue_seconds: float = 0.0
    first_token: float | None = None
    last_token: float | None = None


class TryNext(Exception):
    """The engine failed before its first token: another one may answer. `error` is told if there is none."""

    def __init__(self, error: ApiError) -> None:
        super().__init__(str(error))
        self.error = error


async def relay(
    turn: Turn,
    engine: Engine,
    prompt: Sequence[int],
    sampling: SamplingParams,
    announce: Callable[[], None],
    *,
    flight: AbstractContextManager[Flight],
    share: Share,
    adapter: str | None = None,
    queue_timeout: float | None = None,
    filter: AnswerFilter | None = None,
    hold_seconds: float = 2.0,
    append: Callable[[TurnEvent], None] | None = None,
    held: HeldAnswer | None = None,
) -> Streamed:
    """Stream the answer of `engine` into `turn` until it ends or the turn is cancelled.

    Args:
        flight: counts it as the engine's load.
        share: on whose account it is served.
        adapter: version of a LoRA adapter.
        queue_timeout: seconds that it may wait in the engine for its first step.
        filter: what the answer passes before anybody sees it.
        hold_seconds: how long that may hold text back.
        append: takes the answer's events instead of the turn.
        held: the same, and is told how likely the tokens were.
        announce: tells the turn where it runs. Called at once, or, where the answer must match a grammar, when the
            engine has taken the request up: until then a grammar that it cannot compile may still refuse the turn.

    Raises:
        TryNext: see there.
        InvalidRequest: the engine cannot serve the request, and the turn was not announced.
    """
    request, text, format = turn.request, engine.pool.text, engine.pool.tools
    bound = constraint(request, format, text.special_token) if request.generate else None
    reader = AnswerReader(request, format, _call_id)
    first: float | None = None
    last: float | None = None
    append = append or (held.append if held else turn.append)
    hold = Hold(filter, hold_seconds, append) if filter else None
    show = hold.pass_on if hold else partial(_append, append)
    announced = bound is None
    if announced:
        announce()
    engine.breaker.attempt(monotonic())
    try:
        with flight as carried:
            generation = engine.client.generate(
                prompt,
                sampling,
                text=text,
                stop=request.stop,
                shown=shown_tokens(request, format, text.special_token),
                adapter=adapter,
                salt=salt_of(turn.principal.tenant),
                grammar=bound.grammar if bound else None,
                tenant=share.tenant,
                weight=share.weight,
                service=share.service,
                queue_timeout=queue_timeout,
                request_id=turn.id,
                traceparent=turn.trace.traceparent,
            )
            turn.delivered = partial(_usage, turn, generation)
            async with generation:
                turn.on_cancel(generation.cancel)
                if not announced:
                    await generation.accepted()
                    announce()
                    announced = True
                async for delta in generation:
                    last = monotonic()
                    if first is None:
                        first = last
                        carried.prefilled()
                        _show_scores(turn, generation, prompt, text)
                    if request.generate:
                        shown = delta.logprobs if request.sampling.logprobs is not None else None
                        logprobs = tuple(prompts.logprob(entry, text) for entry in shown or ())
                        show(reader.read(delta.text, delta.token_ids, logprobs))
                        if held is not None:
                            held.computed(len(delta.token_ids), delta.logprobs)
                        if hold is not None and hold.blocked:
                            break
                if first is None and not turn.cancelled:  # the first token has ended the answer
                    _show_scores(turn, generation, prompt, text)
                show(reader.finish())
                if hold is not None:
                    hold.end()
    except (EngineGone, RequestFailed) as failure:
        error = _charge(engine, failure, bound)
        if not failure.started and not isinstance(error, InvalidRequest):
            turn.delivered = Usage
            raise TryNext(error) from None
        if not announced:
            raise error from None
        return Streamed(
            reason="error",
            usage=turn.delivered(),
            error=error,
            first_token=first,
            last_token=last,
        )
    finally:
        turn.on_cancel(None)
        used = turn.delivered()
        turn.delivered = lambda: used  # a turn is kept long after its generation
        if hold is not None:
            hold.close()
    if first is not None or not turn.cancelled:
        engine.succeeded()
    blocked = hold is not None and hold.blocked
    whole = not (turn.cancelled or blocked)
    broken = _broken(turn, filter, held) if filter and whole else None
    return Streamed(
        reason="error" if broken else "content_filter" if blocked else _reason(turn, generation),
        usage=turn.delivered(),
        error=broken,
        stop=generation.result.stop if whole else None,
        queue_seconds=generation.usage.queue_seconds,
        first_token=first,
        last_token=last,
    )


def _append(append: Callable[[TurnEvent], None], events: Iterable[TurnEvent]) -> None:
    for event in events:
        append(event)


def _show_scores(turn: Turn, generation: Generation, prompt: Sequence[int], text: TextProcessor) -> None:
    if turn.request.sampling.prompt_logprobs is not None:
        turn.append(prompts.scored(prompt, generation.prompt_logprobs, text))


def _reason(turn: Turn, generation: Generation) -> EndReason:
    if turn.cancelled:
        return "cancelled"
    # A warm-up is complete when the prompt has been run, whatever became of the token that is thrown away.
    if not turn.request.generate:
        return "stop"
    reason = generation.result.finish_reason
    return "length" if reason == "timeout" else reason  # OpenAI's formats have one word for an answer cut short


def _broken(turn: Turn, filter: AnswerFilter, held: HeldAnswer | None) -> AnswerRedacted | None:
    """The error of an answer that is not what was asked for any more, because something in it was replaced."""
    format = turn.request.format
    said = turn.log.text + (held.text if held else "")
    if filter.broken or (filter.replaced and format is not None and not format.holds(said)):
        return AnswerRedacted("the answer held what this server takes out, and is not in the wanted format without it")
    return None


def _usage(turn: Turn, generation: Generation) -> Usage:
    usage = generation.delivered
    return Usage(usage.prompt_tokens, usage.cached_tokens, usage.output_tokens if turn.request.generate else 0)


def _charge(engine: Engine, failure: EngineGone | RequestFailed, held: Constraint | None) -> ApiError:
    """Tell the breaker, and what to tell the client."""
    if isinstance(failure, RequestInvalid) or (isinstance(failure, RequestFailed) and failure.field == "grammar"):
        # The request's own fault, also where a grammar turns out too costly later. Not for the log: that must not hold
        # what clients write.
        engine.succeeded()
        return _invalid(failure, held)
    logger.warning("engine failed", extra={"replica": engine.name, "started": failure.started, "error": str(failure)})
    if isinstance(failure, EngineOverloaded):
        engine.succeeded()
        retry = retry_after_header(2.0 if failure.retry_after is None else failure.retry_after)
        return Unavailable(str(failure), code="overloaded", headers=retry)
    if isinstance(failure, AnswerUnreadable):
        engine.succeeded()
        return EngineFailed(str(failure))
    engine.failed()
    if failure.started:
        return EngineFailed("the engine failed while it was answering; send the request again")
    return Unavailable("no engine could answer; try again in a few seconds", headers={"retry-after": "2"})


def _invalid(failure: RequestFailed, held: Constraint | None) -> InvalidRequest:
    if failure.field == "grammar" and held is not None:
        # llguidance may repeat the whole grammar.
        return InvalidRequest(f"{held.param}: {failure.reason[:MAX_REASON]}", param=held.param, code="invalid_value")
    return InvalidRequest(str(failure), param=failure.field)


def _call_id() -> str:
    return "call_" + secrets.token_hex(12)
