"""Turns that are not in this process: those that other gateways run, and those that Redis keeps.

read here what is kept ─► ended: restored
                         otherwise its gateway is asked ─► alive: mirrored while somebody here looks at it
                                                           dead: it has failed, with the text of its last checkpoint
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterable
from functools import partial
from typing import Protocol

from redis.asyncio import Redis
from redis.exceptions import RedisError

from gateway.access.identity import Principal
from gateway.background import Kept, Periodic
from gateway.config.settings import TurnSettings
from gateway.errors import ApiError, EngineFailed
from gateway.protocol.requests import TurnRequest
from gateway.protocol.stream import Finished, TokenUsage
from gateway.storage.connect import unavailable_without_redis
from gateway.storage.presence import Presence
from gateway.storage.seal import Seal
from gateway.turns.feeds import Feeds
from gateway.turns.following import Followings, GatewayLost, Mirror
from gateway.turns.ids import ResponseIds, gateway_of
from gateway.turns.mailbox import Mailbox
from gateway.turns.messages import (
    CancelRemoteTurn,
    FollowRefused,
    FollowTurn,
    ForgetTurn,
    GatewayMessage,
    TurnFrame,
    UnfollowTurn,
)
from gateway.turns.records import RecordState, TurnRecords, restore
from gateway.turns.turn import Turn, TurnState
from router.route import AUTO

log = logging.getLogger("roundhouse.turns")

TICK = 1.0
"""Seconds between two checks of the turns that are followed."""
FLUSH_TIMEOUT = 5.0
"""Seconds that the last writes may take when this gateway ends; with some left, it ends like one that has died."""
RECENT = 60.0
"""Most seconds, beside three checkpoints, for which a turn runs before something is kept of it."""
_redis_needed = partial(unavailable_without_redis, "stored responses cannot be reached")


class LocalTurns(Protocol):
    """The interface to the turns of this process, which `gateway.turns.Turns` implements."""

    @property
    def ids(self) -> ResponseIds:
        """Makes and recognises the ids of turns."""

    @property
    def unfinished(self) -> Iterable[Turn]:
        """Turns that have not ended."""

    def get(self, response_id: str) -> Turn | None:
        """Return the turn with this id, if it is here."""

    async def awaited(self, response_id: str) -> Turn | None:
        """Return the turn with this id, once it is known whether it begins."""

    def forget(self, response_id: str) -> None:
        """Drop a turn that has ended."""


class RemoteTurns:
    """Finds turns that other gateways run or Redis keeps, and shares this gateway's turns with others."""

    def __init__(
        self,
        redis: Redis,
        reader: Redis,
        presence: Presence,
        secret: bytes,
        settings: TurnSettings,
        here: LocalTurns,
    ) -> None:
        """Args: reader: see `Mailbox`; here: the turns of this process."""
        seal = Seal(secret)
        self._presence = presence
        self._ids = here.ids
        self._settings = settings
        self._here = here
        self._mailbox = Mailbox(redis, reader, presence.id, seal)
        self._records = TurnRecords(
            redis,
            seal,
            presence.id,
            ttl=settings.store_ttl,
            max_per_tenant=settings.max_stored_per_tenant,
            max_bytes_per_tenant=settings.max_stored_bytes_per_tenant,
        )
        self._feeds = Feeds(self._mailbox.send, here.awaited, self._alive, pause=settings.coalesce_window)
        self._following = Followings(presence.id, self._mailbox.send, self._lost)
        self._checkpoints: dict[str, int] = {}
        """Number of the last entry in the last checkpoint of each running turn."""
        self._since_checkpoint = 0.0
        self._running = (
            Kept("inbox", lambda: self._mailbox.run(self._handle)),
            Kept("stored responses", self._records.run),
        )
        self._ticking = Periodic("turns tick", self._tick, TICK)
        presence.on_death.append(self._following.lose)

    @property
    def shared(self) -> dict[str, int]:
        """Number of turns that are followed, that are shown to others, and that wait to be stored."""
        return {
            "followed": self._following.mirrors,
            "feeds": self._feeds.running,
            "unstored": self._records.pending,
        }

    async def start(self) -> None:
        """Start reading and writing; returns at once."""
        for running in self._running:
            await running.start()
        await self._ticking.start()

    async def aclose(self) -> None:
        """Send the others what they wait for, store what is to be stored, and stop."""
        await self._feeds.aclose(2.0)
        self._presence.withdraws = await self._records.flush(FLUSH_TIMEOUT)
        await self._following.aclose()
        await self._ticking.aclose()
        self._mailbox.stop()
        for running in self._running:
            await running.aclose()
        await self._mailbox.aclose()

    async def find(self, id: str, principal: Principal, *, failed: bool = False) -> Turn | None:
        """Find a turn of this tenant that is not in this process; None if there is none.

        Args:
            failed: return a turn of which nothing is kept because its gateway died as one that has failed.

        Raises:
            ApiError: it was refused before it began, or Redis or its gateway does not answer.
        """
        mirror = self._following.get(id, principal)
        gateway = gateway_of(id)
        if mirror is not None or gateway is None:
            return mirror
        with _redis_needed():
            try:
                return await self._find(id, principal.tenant, gateway)
            except GatewayLost:
                return await self._failed(id, principal, gateway) if failed else None

    async def delete(self, id: str, principal: Principal) -> bool:
        """Delete a response that has ended; return whether Redis kept it.

        Raises:
            Unavailable: Redis does not answer.
        """
        with _redis_needed():
            kept = await self._records.delete(principal.tenant, id)
            gateway = gateway_of(id)
            if gateway is not None and gateway != self._presence.id and self._alive(gateway):
                await self._mailbox.send(gateway, ForgetTurn(id, principal.tenant))
            return kept

    def ended(self, turn: Turn) -> None:
        """Store a turn of this process that has ended, if it is to be stored."""
        self._checkpoints.pop(turn.id, None)
        if turn.request.store:
            self._records.keep(turn)

    async def _find(self, id: str, tenant: str, gateway: str) -> Turn | None:
        """Find a turn in Redis or at its gateway, or end it there if its gateway is dead.

        Raises:
            ApiError: see `find`.
            GatewayLost: nothing is kept, and its gateway, which may have run it, is gone.
        """
        own, gone = gateway == self._presence.id, False
        while True:
            found = await self._records.read(tenant, id)
            turn = restore(id, found.record) if found.record is not None else None
            if turn is not None and found.state in (RecordState.ENDED, RecordState.LOST):
                return turn
            if own or found.state is RecordState.DELETED:
                return None
            if await self._presence.alive(gateway):
                with contextlib.suppress(GatewayLost):
                    mirror = await self._following.follow(id, tenant, gateway)
                    if mirror is not None or await self._presence.alive(gateway):
                        return mirror
            elif turn is not None:
                _fail(turn)
                if await self._records.lose(turn):
                    return turn
            elif gone:
                raise GatewayLost
            else:
                gone = True  # what it stored before it ended may be newer than what was read

    async def _failed(self, id: str, principal: Principal, gateway: str) -> Turn | None:
        """Return a failed turn for one that began so shortly before its gateway died, or while that could not reach
        Redis, that nothing was kept; None if there was no such turn."""
        began, died = self._ids.issued(id, principal.tenant), await self._presence.died(gateway)
        most = RECENT + 3 * self._settings.checkpoint_interval
        if began is None or died is None or died - began > most:
            return None
        turn = Turn(id, principal, TurnRequest(model=AUTO, messages=()), (), 0.0, began)
        turn.begin()
        _fail(turn)
        return turn

    async def _lost(self, mirror: Mirror) -> None:
        """End a mirror whose gateway is gone: by the record that it has stored, or as failed."""
        tenant = mirror.principal.tenant
        try:
            found = await self._records.read(tenant, mirror.id)
            if found.state is RecordState.ENDED and found.record is not None:
                whole = restore(mirror.id, found.record)
                if whole.log.last > mirror.log.last:
                    mirror.extend(whole.log.since(mirror.log.last), whole.view.completed_at)
                    return
            _fail(mirror)
            if mirror.request.store:
                await self._records.lose(mirror)
        except (RedisError, OSError) as error:
            log.warning("a lost turn is not stored", extra={"response_id": mirror.id, "error": type(error).__name__})
        finally:
            if not mirror.finished:
                _fail(mirror)

    def _handle(self, message: GatewayMessage) -> None:
        match message:
            case TurnFrame():
                self._following.on_frame(message)
            case FollowRefused():
                self._following.on_refused(message)
            case FollowTurn():
                self._feeds.follow(message)
            case UnfollowTurn():
                self._feeds.leave(message)
            case CancelRemoteTurn(id, tenant):
                turn = self._of_tenant(id, tenant)
                if turn is not None:
                    turn.cancel()
            case ForgetTurn(id, tenant):
                turn = self._of_tenant(id, tenant)
                if turn is not None and turn.finished:
                    self._here.forget(id)
                    self._records.drop(turn)

    def _of_tenant(self, id: str, tenant: str) -> Turn | None:
        turn = self._here.get(id)
        return turn if turn is not None and turn.principal.tenant == tenant else None

    def _alive(self, gateway: str) -> bool:
        return gateway in self._presence.others

    async def _tick(self) -> None:
        self._following.tick(self._alive)
        self._since_checkpoint += TICK
        if self._since_checkpoint >= self._settings.checkpoint_interval:
            self._since_checkpoint = 0.0
            self._checkpoint()

    def _checkpoint(self) -> None:
        """Store checkpoints of long turns, in case this gateway dies."""
        for turn in self._here.unfinished:
            if turn.state is not TurnState.RUNNING or not turn.request.store:
                continue
            # A turn is first kept when it is seen for the second time: most have ended before.
            kept = self._checkpoints.setdefault(turn.id, -2)
            if kept == -2:
                self._checkpoints[turn.id] = -1
            elif kept < turn.log.last:
                self._checkpoints[turn.id] = turn.log.last
                self._records.keep(turn)


def _fail(turn: Turn) -> None:
    """End a turn whose gateway is dead."""
    routed = turn.log.routed
    tokens = sum(item.tokens for item in turn.log.items)
    usage = TokenUsage(routed.input_tokens if routed else 0, 0, tokens)
    error: ApiError = EngineFailed(
        "the server that was answering is gone; what it said so far is kept, send the request again",
        code="gateway_lost",
    )
    turn.append(Finished("error", usage, error))
