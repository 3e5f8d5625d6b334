"""Follows turns that other gateways run: each has a mirror here, which viewers watch like any other turn.

The turn's own gateway sends what the log gains (`gateway.turns.feeds`). Frames of a feed are used in their order; when
one is missing, or none comes, a new feed is asked for from the mirror's last number on, so that nothing is lost or
doubled whatever happens to messages. All viewers here share one mirror.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from redis.exceptions import RedisError

from gateway.access.identity import Principal
from gateway.background import BackgroundTasks
from gateway.errors import Unavailable
from gateway.protocol.slices import Fit, fit
from gateway.turns.feeds import SILENCE, Send
from gateway.turns.ids import gateway_of
from gateway.turns.messages import (
    CancelRemoteTurn,
    FollowRefused,
    FollowTurn,
    GatewayMessage,
    TurnFrame,
    TurnHeader,
    UnfollowTurn,
)
from gateway.turns.records import FIRST
from gateway.turns.turn import Turn

log = logging.getLogger("roundhouse.turns")

PATIENCE = 2.5 * SILENCE
"""Seconds without a frame after which a feed is asked for anew."""
FIRST_PATIENCE = 1.0
"""The same until a turn is shown for the first time, which somebody waits for: messages are lost when Redis' clock is
set forward or Redis fails over."""
ANSWER_TIMEOUT = 5.0
"""Seconds that a gateway may take to show a turn for the first time."""
LINGER = 5.0
"""Seconds that a mirror stays after its last viewer has left."""


class GatewayLost(Exception):
    """A gateway was taken for dead before it had shown a turn."""


class Mirror(Turn):
    """The local copy of a turn that another gateway runs."""

    def __init__(self, id: str, header: TurnHeader, cancel: Callable[[], None], leave: Callable[[], None]) -> None:
        super().__init__(id, header.principal, header.request, header.history, LINGER, header.created_at)
        self.on_orphaned = leave
        self.on_cancel(cancel)
        self.begin()


class _FollowedTurn:
    """State of following one turn."""

    def __init__(self, id: str, tenant: str, gateway: str, feed: int, now: float) -> None:
        self.id = id
        self.tenant = tenant
        self.gateway = gateway
        self.feed = feed
        self.heard = now
        """Time when the last frame came, or was asked for."""
        self.mirror: Mirror | None = None
        self.waiting = 0
        """Number of callers who wait for the first frame."""
        self.known: asyncio.Future[Mirror | None] = asyncio.get_running_loop().create_future()
        """Future that the first frame resolves; its result is None if the gateway has no such turn."""

    @property
    def last(self) -> int:
        return FIRST if self.mirror is None else self.mirror.log.last

    def fail(self, error: Exception) -> None:
        """Tell whoever waits for the first frame that none comes."""
        self.known.set_exception(error)
        self.known.exception()  # whoever asked may have gone


class Followings:
    """All turns of other gateways that this gateway follows."""

    def __init__(self, id: str, send: Send, lost: Callable[[Mirror], Coroutine[Any, Any, None]]) -> None:
        """Args: id: this gateway's; lost: ends a mirror whose gateway has died."""
        self._id = id
        self._send = send
        self._lost = lost
        self._by_turn: dict[tuple[str, str], _FollowedTurn] = {}
        """Followed turns by tenant and id: what one tenant asks for tells another nothing, and takes nothing from
        it."""
        self._feeds = itertools.count(1)
        self._sending = BackgroundTasks("follows")
        self._now = asyncio.get_running_loop().time

    @property
    def mirrors(self) -> int:
        return len(self._by_turn)

    def get(self, id: str, principal: Principal) -> Mirror | None:
        """Return the mirror of a turn that is followed already."""
        following = self._by_turn.get((principal.tenant, id))
        if following is None or following.mirror is None:
            return None
        following.mirror.looked_after()
        return following.mirror

    async def follow(self, id: str, tenant: str, gateway: str) -> Mirror | None:
        """Follow a turn that `gateway` may run; return its mirror, or None if the gateway has no such turn.

        Raises:
            ApiError: the turn was refused there before it began, or the gateway does not answer.
            GatewayLost: the gateway counts as dead.
        """
        following = self._by_turn.get((tenant, id))
        if following is None:
            following = _FollowedTurn(id, tenant, gateway, next(self._feeds), self._now())
            self._by_turn[tenant, id] = following
            self._ask(following)
        following.waiting += 1
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT):
                mirror = await asyncio.shield(following.known)
        except TimeoutError:
            if following.waiting == 1:  # those who came later have their own time
                self._end(following)
            raise Unavailable("the server that runs this response does not answer; try again soon") from None
        finally:
            following.waiting -= 1
        if mirror is not None:
            mirror.looked_after()
        return mirror

    def on_frame(self, frame: TurnFrame) -> None:
        """Apply a frame to its mirror."""
        following = self._by_turn.get((frame.tenant, frame.turn))
        if following is None:
            self._post(gateway_of(frame.turn) or "", UnfollowTurn(frame.turn, frame.tenant, self._id, frame.feed))
            return
        if following.feed != frame.feed and (following.mirror is not None or frame.header is None):
            return  # of one that another has replaced
        following.heard = self._now()
        if following.mirror is None:
            if frame.header is None or frame.header.principal.tenant != following.tenant:
                self._ask_again(following)
                return
            following.mirror = self._mirror(following, frame.header)
        mirror = following.mirror
        match fit(frame.gained, mirror.log.last):
            case Fit.NEXT:
                mirror.extend(frame.gained, frame.completed_at)
            case Fit.KNOWN:
                pass
            case Fit.GAP:
                self._ask_again(following)
        if not following.known.done():
            following.known.set_result(mirror)
            mirror.looked_after()
        if mirror.finished:
            self._end(following)

    def on_refused(self, refused: FollowRefused) -> None:
        """End the following of a turn that does not exist there, or not any more."""
        following = self._by_turn.get((refused.tenant, refused.turn))
        if following is None or following.feed != refused.feed:
            return
        if following.mirror is not None:
            self._lose(following)
        elif not following.known.done():
            if refused.error is None:
                following.known.set_result(None)
            else:
                following.fail(refused.error)
        self._end(following)

    def tick(self, alive: Callable[[str], bool]) -> None:
        """Cancel again turns that should have ended, and ask for turns of which nothing was heard."""
        for following in list(self._by_turn.values()):
            if following.mirror is not None and following.mirror.cancelled:
                self._post(following.gateway, CancelRemoteTurn(following.id, following.tenant))
            patience = FIRST_PATIENCE if following.mirror is None else PATIENCE
            if self._now() - following.heard < patience:
                continue
            if alive(following.gateway):
                self._ask_again(following)
            else:
                self._lose(following)

    def lose(self, gateway: str) -> None:
        """End the following of all turns of a gateway that has died."""
        for following in list(self._by_turn.values()):
            if following.gateway == gateway:
                self._lose(following)

    async def aclose(self) -> None:
        """Stop following."""
        for following in list(self._by_turn.values()):
            self._leave(following)
        await self._sending.aclose(1.0)

    def _mirror(self, following: _FollowedTurn, header: TurnHeader) -> Mirror:
        cancel = CancelRemoteTurn(following.id, following.tenant)
        return Mirror(
            following.id,
            header,
            cancel=lambda: self._post(following.gateway, cancel),
            leave=lambda: self._leave(following),
        )

    def _ask_again(self, following: _FollowedTurn) -> None:
        following.feed, following.heard = next(self._feeds), self._now()
        self._ask(following)

    def _ask(self, following: _FollowedTurn) -> None:
        whole = following.mirror is None
        asked = FollowTurn(following.id, following.tenant, self._id, following.feed, following.last, whole)
        self._post(following.gateway, asked)

    def _leave(self, following: _FollowedTurn) -> None:
        self._end(following)
        self._post(following.gateway, UnfollowTurn(following.id, following.tenant, self._id, following.feed))

    def _lose(self, following: _FollowedTurn) -> None:
        self._end(following)
        if following.mirror is not None:
            self._sending.begin(self._lost(following.mirror))
        elif not following.known.done():
            following.fail(GatewayLost())

    def _end(self, following: _FollowedTurn) -> None:
        key = (following.tenant, following.id)
        if self._by_turn.get(key) is following:
            del self._by_turn[key]

    def _post(self, gateway: str, message: GatewayMessage) -> None:
        self._sending.begin(self._send_once(gateway, message))

    async def _send_once(self, gateway: str, message: GatewayMessage) -> None:
        try:
            await self._send(gateway, message)
        except (RedisError, OSError) as error:
            # What matters is asked for again: see `tick`.
            log.warning("a gateway cannot be reached", extra={"gateway": gateway, "error": type(error).__name__})
