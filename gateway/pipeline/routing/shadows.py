"""Shadow traffic: copies of a route's turns go to a model on trial, and nobody sees its answers.

A copy begins when the turn has ended, so that it delays nothing and there is an answer to compare with. It is counted
whether the model answers, how soon, and whether it says the same. No tenant pays for a copy and none of its limits
counts it. A copy has the engine's lowest class of service, and is given up when its engine gets busy.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping

from msgspec import Struct

from cache.embedding.client import EmbedderClient, EmbedRefused
from cache.semantic.agreement import agree
from engine.client.generation import EngineGone, RequestFailed
from gateway.access.directory.view import View
from gateway.background import BackgroundTasks
from gateway.engines.adapters import AdapterNames
from gateway.engines.pool import Pool
from gateway.engines.pools import Engines
from gateway.errors import ApiError
from gateway.pipeline.prompts import write
from gateway.pipeline.routing.spare import (
    QUEUE_SECONDS,
    SECONDS,
    GivenUp,
    SpareAnswer,
    answer,
    engine_with_room,
    once_more,
    repeatable,
)
from gateway.pipeline.values import Admitted, Answered
from gateway.records.directory import Route, Shadow
from gateway.telemetry.metrics.process import Metrics
from router.canary import Failures, WeightedTarget, evidence, split

log = logging.getLogger("roundhouse.canaries")

MOST = 8
"""Copies of one gateway at the same time; turns beyond them are not copied."""
ACCOUNT = "shadow"
"""Account of all copies in the engines' fair shares; those of tenants are digests."""
_COPIES, _ERROR, _STABLE_ERROR, _GIVEN_UP = "copies", "error", "stable_error", "given_up"
_COMPARED, _AGREED, _TIMED, _FIRST, _STABLE_FIRST = "compared", "agreed", "timed", "first_ms", "stable_first_ms"
_PREFIX = "shadow:"

Count = Callable[[Route, Mapping[str, int]], None]
"""Adds to the counts of a route."""


class Comparison(Struct, frozen=True):
    """Results of a route's copies since it was last changed."""

    copies: int
    """Turns that were copied, whether or not the copy was answered; copies given up are left out."""
    given_up: int
    errors: int
    """Copies that were not answered."""
    stable_errors: int
    """Copied turns whose own request was not answered."""
    compared: int
    """Pairs of answers that both ended by themselves."""
    agreed: int
    """Pairs whose answers say the same, see `cache.semantic.agreement`."""
    first_ms: float | None
    """Mean time to a copy's first token without waiting in a queue, over pairs that both have one."""
    stable_first_ms: float | None
    """Mean time to the copied turn's first token, over the same pairs."""
    evidence: float
    """How many times likelier the errors are if the copies fail more often; see `router.canary`."""


def comparison(counts: Mapping[str, int]) -> Comparison:
    """Compute the results from a route's counts."""

    def of(name: str) -> int:
        return counts.get(_PREFIX + name, 0)

    timed = of(_TIMED)
    return Comparison(
        copies=of(_COPIES),
        given_up=of(_GIVEN_UP),
        errors=of(_ERROR),
        stable_errors=of(_STABLE_ERROR),
        compared=of(_COMPARED),
        agreed=of(_AGREED),
        first_ms=of(_FIRST) / timed if timed else None,
        stable_first_ms=of(_STABLE_FIRST) / timed if timed else None,
        # If the model is no worse, a turn and its copy are equally likely to fail.
        evidence=evidence(0.5, Failures(of(_STABLE_ERROR), of(_ERROR))),
    )


def copied(route: Route, tenant: str, conversation: bytes) -> bool:
    """Whether a conversation is copied, in all of its turns, so that the model's prefix cache has it."""
    if route.shadow is None:
        return False
    shares = [WeightedTarget("copied", route.shadow.percent), WeightedTarget("not", 100 - route.shadow.percent)]
    return split(f"{route.name}\0shadow", tenant, conversation, shares) == "copied"


class Shadows:
    """Runs the copies of one gateway."""

    def __init__(
        self, engines: Engines, adapters: AdapterNames, view: View, embedder: EmbedderClient | None, metrics: Metrics
    ) -> None:
        self._engines = engines
        self._adapters = adapters
        self._view = view
        self._embedder = embedder
        self._metrics = metrics
        self._running = BackgroundTasks("shadows")

    @property
    def running(self) -> int:
        """Copies under way."""
        return len(self._running)

    async def start(self) -> None:
        """Do nothing: no task runs before the first turn."""

    async def aclose(self) -> None:
        """Give up the copies under way."""
        await self._running.aclose()

    def begin(
        self, route: Route, asked: Admitted, answered: Answered | None, failure: BaseException | None, count: Count
    ) -> None:
        """Copy a turn that has ended, or was refused with `failure`, if it is fit; `count` receives the result."""
        error = failure if answered is None else answered.streamed.error
        failed = isinstance(error, ApiError) and error.status >= 500
        if route.shadow is None or not (repeatable(asked.turn) and (failed or _whole(answered))):
            return
        if len(self._running) >= MOST:
            self._ended(route, count, {_GIVEN_UP: 1}, _GIVEN_UP)
            return
        self._running.begin(self._copy(route, route.shadow, asked, None if failed else answered, count))

    async def _copy(
        self, route: Route, shadow: Shadow, asked: Admitted, answered: Answered | None, count: Count
    ) -> None:
        news = {_COPIES: 1} if answered is not None else {_COPIES: 1, _STABLE_ERROR: 1}
        outcome = "answered"
        try:
            async with asyncio.timeout(SECONDS):
                copy = await self._answer(shadow, asked)
            if answered is not None:
                news |= await self._compare(answered, copy)
        except (GivenUp, TimeoutError):
            news, outcome = {_GIVEN_UP: 1}, _GIVEN_UP
        except (EngineGone, RequestFailed, ApiError) as error:
            news, outcome = news | {_ERROR: 1}, _ERROR
            log.info("copy failed", extra={"route": route.name, "shadow": shadow.model, "error": type(error).__name__})
        self._ended(route, count, news, outcome)

    def _ended(self, route: Route, count: Count, news: Mapping[str, int], outcome: str) -> None:
        self._metrics.trials.shadow_copy(outcome)
        count(route, {_PREFIX + name: number for name, number in news.items()})

    async def _answer(self, shadow: Shadow, asked: Admitted) -> SpareAnswer:
        """
        Raises:
            GivenUp: its engine is busy.
            EngineGone, RequestFailed, ApiError: there is no answer.
        """
        adapter = self._adapters.resolve(shadow.model, asked.turn.principal.tenant)
        pool = self._pool(adapter.model if adapter else shadow.model)
        engine = engine_with_room(pool)
        prompt = (await write(asked.turn, [pool])).prompts[pool.name]
        return await answer(once_more(asked, engine, prompt, ACCOUNT, adapter.version if adapter else None))

    def _pool(self, model: str) -> Pool:
        pools = self._engines.named(model)
        if not pools:
            raise EngineGone(f"no model is named {model!r}", started=False)
        return pools[0]

    async def _compare(self, answered: Answered, copy: SpareAnswer) -> dict[str, int]:
        found: dict[str, int] = {}
        streamed, turn = answered.streamed, answered.admitted.turn
        if streamed.first_token is not None and copy.first_seconds is not None:
            stable = streamed.first_token - turn.trace.began - streamed.queue_seconds
            found = {_TIMED: 1, _FIRST: _milliseconds(copy.first_seconds), _STABLE_FIRST: _milliseconds(stable)}
        if copy.whole and streamed.reason == "stop":
            found |= {_COMPARED: 1, _AGREED: int(await self._agree(copy.text, turn.log.text))}
        return found

    async def _agree(self, copy: str, text: str) -> bool:
        similarity = None
        if self._embedder is not None and copy != text:
            try:
                one, other = (await self._embedder.embed([copy, text], seconds=QUEUE_SECONDS, urgent=False)).vectors
                similarity = float(one @ other)
            except EmbedRefused:
                pass
        return agree(copy, text, similarity)


def _whole(answered: Answered | None) -> bool:
    return answered is not None and answered.cache != "hit" and answered.streamed.reason in ("stop", "length")


def _milliseconds(seconds: float) -> int:
    return max(0, round(1000 * seconds))
