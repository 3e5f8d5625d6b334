"""Shows this gateway's turns to others that follow them.

A feed is a viewer like a socket is: it keeps its turn from being orphaned, and what it has not sent yet is one slice of
the log, however slow Redis or the reader is. Nothing is written while nobody elsewhere follows.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from redis.exceptions import RedisError

from gateway.background import BackgroundTasks
from gateway.errors import ApiError
from gateway.turns.messages import FollowRefused, FollowTurn, GatewayMessage, TurnFrame, TurnHeader, UnfollowTurn
from gateway.turns.records import header_of
from gateway.turns.turn import Turn, TurnState, Viewer

log = logging.getLogger("roundhouse.turns")

SILENCE = 3.0
"""Seconds without news after which a feed sends an empty frame."""
GIVE_UP = 20.0
"""Seconds without Redis after which a feed ends; a gateway that still follows asks again."""

Send = Callable[[str, GatewayMessage], Awaitable[None]]
Local = Callable[[str], Awaitable[Turn | None]]
_Key = tuple[str, str, str]


class Feeds:
    """All feeds of this gateway."""

    def __init__(self, send: Send, local: Local, alive: Callable[[str], bool], *, pause: float) -> None:
        """Args: local: the turn of this id that this gateway runs or keeps; alive: whether a gateway is; pause: seconds
        between two frames, in which deltas are merged."""
        self._send = send
        self._local = local
        self._alive = alive
        self._pause = pause
        self._running = BackgroundTasks("feeds")
        self._tasks: dict[_Key, tuple[int, asyncio.Task[None]]] = {}
        """Number and task of each feed, by turn, tenant and reader."""

    @property
    def running(self) -> int:
        return len(self._tasks)

    def follow(self, asked: FollowTurn) -> None:
        """Start a feed in place of an older one to the same reader."""
        key = (asked.turn, asked.tenant, asked.reader)
        if key in self._tasks and self._tasks[key][0] >= asked.feed:
            return  # overtaken on its way
        self.leave(UnfollowTurn(*key, asked.feed))
        task = self._running.begin(self._run(asked))
        self._tasks[key] = (asked.feed, task)
        task.add_done_callback(lambda _: self._ended(key, asked.feed))

    def leave(self, left: UnfollowTurn) -> None:
        """End the feed of a reader that no longer follows."""
        key = (left.turn, left.tenant, left.reader)
        feed, task = self._tasks.get(key, (0, None))
        if task is not None and feed <= left.feed:
            del self._tasks[key]
            task.cancel()

    async def aclose(self, seconds: float) -> None:
        """Give feeds of ended turns so many seconds to send what they have."""
        await self._running.aclose(seconds)

    def _ended(self, key: _Key, feed: int) -> None:
        if key in self._tasks and self._tasks[key][0] == feed:
            del self._tasks[key]

    async def _run(self, asked: FollowTurn) -> None:
        turn = await self._local(asked.turn)
        if turn is None or turn.principal.tenant != asked.tenant:
            await self._deliver(asked.reader, FollowRefused(asked.turn, asked.tenant, asked.feed, None))
            return
        news = asyncio.Event()
        with turn.watch(asked.after, news.set) as viewer:
            if turn.state is TurnState.ADMITTING:
                try:
                    await asyncio.shield(turn.admitted)
                except ApiError as error:
                    await self._deliver(asked.reader, FollowRefused(asked.turn, asked.tenant, asked.feed, error))
                    return
            await self._show(asked, viewer, news)

    async def _show(self, asked: FollowTurn, viewer: Viewer, news: asyncio.Event) -> None:
        turn = viewer.turn
        header: TurnHeader | None = header_of(turn) if asked.whole else None
        while True:
            news.clear()
            frame = TurnFrame(turn.id, asked.tenant, asked.feed, viewer.gained(), header, turn.view.completed_at)
            if not await self._deliver(asked.reader, frame) or viewer.exhausted:
                return
            header = None
            await asyncio.sleep(self._pause)
            try:
                async with asyncio.timeout(SILENCE):
                    await news.wait()
            except TimeoutError:
                if not self._alive(asked.reader):
                    return

    async def _deliver(self, reader: str, message: GatewayMessage) -> bool:
        """Send a frame; return whether it was sent. A frame that arrives twice does no harm."""
        try:
            async with asyncio.timeout(GIVE_UP):
                while True:
                    try:
                        await self._send(reader, message)
                        return True
                    except (RedisError, OSError):
                        await asyncio.sleep(0.2)
        except TimeoutError:
            log.warning("a gateway that follows a turn cannot be reached", extra={"reader": reader})
            return False
