"""Single flight: of several turns that ask the same at the same time, one asks an engine and the others follow it.

Redis holds who leads (`cache.response`), so that it works across gateways. A follower is a viewer of the leader's turn,
here or through `gateway.turns.remote`: it streams along live, keeps the leader from being orphaned, and costs
nothing per delta but its own stream. If a leader fails, is cancelled or stands still, a follower takes its place.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import logging
from collections.abc import Awaitable, Callable, Coroutine
from time import monotonic
from typing import Any

from redis.exceptions import RedisError

from cache.response import LEASE, CachedAnswer, ResponseCache
from gateway.access.identity import Principal
from gateway.background import BackgroundTasks, Periodic
from gateway.errors import ApiError
from gateway.pipeline.relay import Streamed
from gateway.protocol.stream import EndReason, Finished, Routed, TextDelta, TokenUsage, TurnEvent
from gateway.turns import Turn, TurnState, Viewer

log = logging.getLogger("roundhouse.cache")

Find = Callable[[str, Principal], Awaitable[Turn | None]]
"""Finds a turn of a tenant by its id, wherever it runs, even before it is routed."""

SHARED: frozenset[EndReason] = frozenset({"stop", "length"})
"""Ends of an answer that a follower's own run would have had too."""


class TakeOver(enum.Enum):
    """Why a follower cannot use its leader's answer."""

    AGAIN = "again"
    """The leader is gone; another turn may lead."""
    ALONE = "alone"
    """The answer is not for others: a stand-in gave it, or a safety rule has ended it."""


class Flights:
    """The turns of this process that lead, and how to follow turns of other processes."""

    def __init__(self, cache: ResponseCache) -> None:
        self._cache = cache
        self._leading: dict[str, tuple[str, str]] = {}
        """Tenant and digest of what a turn makes, by the turn's id."""
        self._writing = BackgroundTasks("stored answers")
        self._leases = Periodic("flights", self._renew, LEASE / 3)
        self.find: Find = _nowhere

    @property
    def leading(self) -> int:
        """Number of turns of this process that others may follow."""
        return len(self._leading)

    async def start(self) -> None:
        """Begin to renew leases."""
        await self._leases.start()

    async def aclose(self) -> None:
        """Finish writing, within a second, and stop."""
        await self._leases.aclose()
        await self._writing.aclose(1.0)

    def lead(self, turn: Turn, digest: str) -> None:
        """Let this turn lead from now on."""
        self._leading[turn.id] = (turn.principal.tenant, digest)

    def leads(self, turn: Turn) -> bool:
        """Whether this turn leads."""
        return turn.id in self._leading

    def land(
        self, turn: Turn, write: Coroutine[Any, Any, CachedAnswer | None] | None = None
    ) -> asyncio.Task[CachedAnswer | None] | None:
        """End the turn's lead, if any. `write` stores its answer and ends the flight; else the flight just ends."""
        flight = self._leading.pop(turn.id, None)
        if write is None:
            if flight is None:
                return None
            write = self._cache.release(*flight, turn.id)
        return self._writing.begin(write)

    async def follow(
        self,
        turn: Turn,
        leader_id: str,
        *,
        announce: Callable[[Routed], None],
        append: Callable[[TurnEvent], None],
        patience: float,
    ) -> Streamed | TakeOver:
        """Stream another turn's answer into `turn`, live.

        Args:
            announce: called with where the leader runs, before its text comes.
            append: takes the text.
            patience: seconds that the leader may stand still.
        """
        try:
            async with asyncio.timeout(patience):
                leader = await self.find(leader_id, turn.principal)
        except (ApiError, RedisError, OSError, TimeoutError):
            return TakeOver.AGAIN
        if leader is None or leader is turn or leader.cancelled:
            return TakeOver.AGAIN
        news = asyncio.Event()

        def wake(_: object = None) -> None:
            news.set()

        leader.admitted.add_done_callback(wake)  # viewers are not told of a refusal
        turn.on_cancel(wake)
        try:
            with leader.watch(wake=wake) as viewer:
                return await _Following(turn, viewer, announce, append).run(news, patience)
        finally:
            turn.on_cancel(None)
            leader.admitted.remove_done_callback(wake)

    async def _renew(self) -> None:
        if self._leading:
            await self._cache.renew(list(self._leading.values()))


class _Following:
    """One follower's view of its leader."""

    def __init__(
        self, turn: Turn, viewer: Viewer, announce: Callable[[Routed], None], append: Callable[[TurnEvent], None]
    ) -> None:
        self._turn = turn
        self._viewer = viewer
        self._announce = announce
        self._append = append
        self._routed: Routed | None = None
        self._first: float | None = None
        self._last: float | None = None
        self._tokens = 0

    async def run(self, news: asyncio.Event, patience: float) -> Streamed | TakeOver:
        leader = self._viewer.turn
        while True:
            news.clear()
            for entry in self._viewer.read():
                ended = self._take(entry.event)
                if ended is not None:
                    return ended
            if self._turn.cancelled:
                return self._streamed("cancelled", self._usage())
            if leader.cancelled or leader.state is TurnState.REFUSED:
                return TakeOver.AGAIN
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(patience):
                    await news.wait()
            if not news.is_set():
                log.info("a turn stands still; one that follows it takes over", extra={"response_id": leader.id})
                return TakeOver.AGAIN

    def _take(self, event: TurnEvent | None) -> Streamed | TakeOver | None:
        match event:
            case Routed():
                if event.reason == "fallback":
                    return TakeOver.ALONE
                if self._routed is None:
                    self._routed = event
                    self._turn.delivered = self._usage
                    self._announce(event)
            case TextDelta():
                self._last = monotonic()
                self._first = self._first or self._last
                self._tokens += len(event.token_ids)
                self._append(event)
            case Finished(reason="content_filter"):
                return TakeOver.ALONE
            case Finished():
                prompt = event.usage.input_tokens
                usage = TokenUsage(prompt, prompt, event.usage.output_tokens)
                return self._streamed(event.reason, usage, event.stop) if event.reason in SHARED else TakeOver.AGAIN
            case _:
                pass
        return None

    def _usage(self) -> TokenUsage:
        """Return the leader's usage so far."""
        prompt = self._routed.input_tokens if self._routed else 0
        return TokenUsage(prompt, prompt, self._tokens)

    def _streamed(self, reason: EndReason, usage: TokenUsage, stop: str | None = None) -> Streamed:
        return Streamed(reason=reason, usage=usage, stop=stop, first_token=self._first, last_token=self._last)


async def _nowhere(id: str, principal: Principal) -> Turn | None:
    return None
