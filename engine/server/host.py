"""Hosts an engine: the core in a thread of its own, clients over WebSocket (`engine/wire.py` has the frames).

The event loop does all communication, the core's thread all computation; they meet in two places only.
Requests and cancellations go in through a queue that the core empties between steps, outputs come back through
`call_soon_threadsafe`. No client can slow the core: what a client does not read piles up to a limit, then it is
dropped and its requests are cancelled.

`python -m engine.server` starts one; its options are in `engine/server/options.py`.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import logging
import queue
import ssl
import threading
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import msgspec
from websockets.asyncio.server import Server, ServerConnection, serve, unix_serve
from websockets.exceptions import ConnectionClosed
from websockets.frames import CloseCode

from engine.cache.prefix_keys import pack_numbers
from engine.core import EngineCore, RequestError
from engine.outputs import failed
from engine.server.connection import Connection, ProtocolViolation
from engine.validation import validate
from engine.wire import (
    MAX_FRAME_BYTES,
    PROTOCOL_VERSION,
    Announce,
    Blocks,
    Cancel,
    Follow,
    Generate,
    Load,
    Output,
    Pin,
    Ready,
    Step,
    decode_client_frame,
    encode,
)

logger = logging.getLogger(__name__)

MAX_CONNECTIONS = 256
MAX_BACKLOG_BYTES = 16 * 1024 * 1024
HEARTBEAT_SECONDS = 1.0
_INTEGRITY_SECONDS = 10.0
"""Shortest time between two integrity checks, which are made when the engine becomes idle."""


class EngineServer:
    """Serves one core at one address.

    async with EngineServer(core).listening("ws://127.0.0.1:0") as address:
        ...
    """

    def __init__(
        self,
        core: EngineCore,
        *,
        max_backlog_bytes: int = MAX_BACKLOG_BYTES,
        prepare: Callable[[], None] = lambda: None,
    ) -> None:
        """`prepare` is called in the core's thread before any client can connect."""
        self._core = core
        self._prepare = prepare
        self._max_backlog_bytes = max_backlog_bytes
        self._load: Load = core.load()
        self._inbox: queue.SimpleQueue[_Message] = queue.SimpleQueue()
        core.wake = lambda: self._inbox.put(_Signal.WAKE)
        self._connections: dict[str, Connection] = {}
        self._pinned: dict[str, list[str]] = {}
        """Adapter versions that each connection wants to be kept loaded."""
        self._next_key = 0
        self._followers: set[str] = set()
        """Connections that are told of prefix blocks; used by the core's thread only."""
        self._failed = asyncio.Event()
        self._failure: BaseException | None = None

    @contextlib.asynccontextmanager
    async def listening(self, listen: str, tls: ssl.SSLContext | None = None) -> AsyncIterator[str]:
        """Serve at `ws://host:port` (port 0 picks one), `wss://host:port` with `tls`, or `unix:///path`; yields the
        address that clients use.

        Raises:
            OSError: the address cannot be used.
            RuntimeError: (at exit) the core failed.
            Exception: what `prepare` raised.
        """
        loop = asyncio.get_running_loop()
        prepared: asyncio.Future[None] = loop.create_future()
        thread = threading.Thread(target=self._run_core, args=(loop, prepared), name="engine core")
        thread.start()
        try:
            await prepared
            async with _listen(self._handle, listen, tls) as server:
                heartbeat = asyncio.create_task(self._beat())
                try:
                    yield _address(server, listen)
                finally:
                    heartbeat.cancel()
                    await self._stop(thread)
        finally:
            await self._stop(thread)
        if self._failure is not None:
            raise RuntimeError("the engine's core failed") from self._failure

    async def _stop(self, thread: threading.Thread) -> None:
        self._inbox.put(_Signal.STOP)
        await asyncio.to_thread(thread.join)

    async def wait_failed(self) -> None:
        """Return when the core has failed; leaving `listening` raises then."""
        await self._failed.wait()

    # The core's thread.

    def _run_core(self, loop: asyncio.AbstractEventLoop, prepared: asyncio.Future[None]) -> None:
        error: BaseException | None = None
        try:
            self._prepare()
        except BaseException as raised:
            error = raised
        loop.call_soon_threadsafe(_settle, prepared, error)
        if error is not None:
            return
        try:
            self._step_until_stopped(loop)
        except BaseException as error:
            # The core's state cannot be trusted any more: a supervisor has to start a fresh engine.
            logger.critical("the engine's core failed", exc_info=True)
            self._failure = error
            loop.call_soon_threadsafe(self._failed.set)

    def _step_until_stopped(self, loop: asyncio.AbstractEventLoop) -> None:
        core = self._core
        checked = float("-inf")
        while True:
            if core.idle and loop.time() - checked > _INTEGRITY_SECONDS:
                core.check_integrity()
                checked = loop.time()
            outputs = []
            for message in _drain(self._inbox, core.patience):
                if message is _Signal.STOP:
                    return
                if isinstance(message, _Following):
                    self._follow(message, loop)
                    continue
                try:
                    _hand_over(core, message)
                except RequestError as error:
                    assert isinstance(message, Generate)
                    outputs.append(failed(message.id, error))
            outputs += core.step()
            if self._followers:
                self._tell_blocks(loop)
            loop.call_soon_threadsafe(self._publish, outputs, core.load())

    def _follow(self, message: _Following, loop: asyncio.AbstractEventLoop) -> None:
        if message.on:
            if not self._followers:
                self._core.follow_blocks(True)
            self._followers.add(message.connection)
            blocks = Blocks(stored=pack_numbers(self._core.held_blocks()), cleared=True)
            loop.call_soon_threadsafe(self._send_blocks, (message.connection,), blocks)
        else:
            self._followers.discard(message.connection)
            if not self._followers:
                self._core.follow_blocks(False)

    def _tell_blocks(self, loop: asyncio.AbstractEventLoop) -> None:
        changes = self._core.take_block_changes()
        if changes:
            stored, removed = ([key for key, held in changes.items() if held is which] for which in (True, False))
            blocks = Blocks(stored=pack_numbers(stored), removed=pack_numbers(removed))
            loop.call_soon_threadsafe(self._send_blocks, tuple(self._followers), blocks)

    # The event loop's thread.

    def _send_blocks(self, keys: Sequence[str], blocks: Blocks) -> None:
        frame = encode(blocks)
        for key in keys:
            connection = self._connections.get(key)
            if connection is not None:
                connection.send(frame)

    def _publish(self, outputs: Sequence[Output], load: Load) -> None:
        """Send one frame to each connection that gained something in a step."""
        self._load = load
        by_connection: defaultdict[str, list[Output]] = defaultdict(list)
        for output in outputs:
            key, _, id = output.id.partition("/")
            by_connection[key].append(msgspec.structs.replace(output, id=id))
        for key, gained in by_connection.items():
            connection = self._connections.get(key)
            if connection is not None:
                connection.post(Step(gained, load))

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(HEARTBEAT_SECONDS)
            for connection in self._connections.values():
                load = msgspec.structs.replace(self._load, adapters=self._core.resident_adapters)
                connection.post(Step([], load))

    async def _handle(self, websocket: ServerConnection) -> None:
        """Serve one connection, from its introduction to the cancellation of the requests that it leaves behind."""
        if len(self._connections) >= MAX_CONNECTIONS:
            await websocket.close(CloseCode.TRY_AGAIN_LATER, "too many connections")
            return
        self._next_key += 1
        key = str(self._next_key)
        connection = Connection(websocket, self._max_backlog_bytes)
        self._connections[key] = connection
        load = msgspec.structs.replace(self._load, adapters=self._core.resident_adapters)
        connection.send(encode(Ready(PROTOCOL_VERSION, self._core.model, load, tells_blocks=True)))
        writer = asyncio.create_task(connection.write())
        try:
            async for message in websocket:
                self._receive(connection, key, message)
        except ConnectionClosed:
            pass
        except ProtocolViolation as violation:
            logger.warning("connection %s closed: %s", key, violation)
            await websocket.close(violation.code, str(violation))
        finally:
            writer.cancel()
            del self._connections[key]
            for id in connection.live:
                self._inbox.put(Cancel(f"{key}/{id}"))
            if key in self._pinned:
                self._pin(key, [])
            if connection.follows:
                self._inbox.put(_Following(key, False))

    def _pin(self, key: str, adapters: list[str]) -> None:
        """Set the adapters that one connection pins; the core keeps those of all connections."""
        self._pinned[key] = adapters
        if not adapters:
            del self._pinned[key]
        self._inbox.put(Pin(list(dict.fromkeys(each for pinned in self._pinned.values() for each in pinned))))

    def _receive(self, connection: Connection, key: str, message: str | bytes) -> None:
        if isinstance(message, str):
            raise ProtocolViolation(CloseCode.UNSUPPORTED_DATA, "frames are binary MessagePack")
        try:
            frame = decode_client_frame(message)
        except msgspec.DecodeError as error:
            raise ProtocolViolation(CloseCode.INVALID_DATA, f"malformed frame: {error}"[:100]) from error
        if isinstance(frame, Cancel):
            if frame.id in connection.live:
                del connection.live[frame.id]
                connection.ending.add(frame.id)
                self._inbox.put(Cancel(f"{key}/{frame.id}"))
            return
        if isinstance(frame, Announce):
            self._inbox.put(frame)
            return
        if isinstance(frame, Pin):
            self._pin(key, frame.adapters)
            return
        if isinstance(frame, Follow):
            connection.follows = frame.blocks
            self._inbox.put(_Following(key, frame.blocks))
            return
        if frame.id in connection.live or frame.id in connection.ending:
            raise ProtocolViolation(CloseCode.POLICY_VIOLATION, "id of a live request used again")
        try:
            # Refused here, a request costs neither the core's time nor room in its inbox.
            validate(frame, self._core.model, adapters=self._core.serves_adapters)
            if sum(each.requests for each in self._connections.values()) >= self._core.config.max_requests:
                raise RequestError(
                    "the engine is full; try again", "overloaded", self._load.predicted_queue_seconds or None
                )
        except RequestError as error:
            logger.info("request refused (%s): %s", error.kind, _name(frame))
            connection.post(Step([failed(frame.id, error)], self._load))
            return
        if logger.isEnabledFor(logging.INFO):
            logger.info("request arrived: %s prompt_tokens=%d", _name(frame), len(frame.prompt))
        connection.live[frame.id] = _name(frame)
        self._inbox.put(msgspec.structs.replace(frame, id=f"{key}/{frame.id}"))


def _settle(future: asyncio.Future[None], error: BaseException | None) -> None:
    if future.done():  # no client waits any more
        return
    if error is None:
        future.set_result(None)
    else:
        future.set_exception(error)


class _Signal(enum.Enum):
    """Messages to the core's thread that no client sends."""

    WAKE = enum.auto()
    STOP = enum.auto()


class _Following(NamedTuple):
    """A connection starts or stops following prefix blocks."""

    connection: str
    on: bool


_Message = Generate | Cancel | Announce | Pin | _Following | _Signal


def _drain(inbox: queue.SimpleQueue[_Message], wait: float | None) -> list[_Message]:
    """Return everything in the inbox, after waiting `wait` seconds, or without end if None, for something to come."""
    messages = []
    with contextlib.suppress(queue.Empty):
        messages.append(inbox.get(wait != 0, wait))
        while True:
            messages.append(inbox.get_nowait())
    return messages


def _hand_over(core: EngineCore, message: _Message) -> None:
    """
    Raises:
        RequestError: the request that the message brings is refused.
    """
    if isinstance(message, Generate):
        core.add(message)
    elif isinstance(message, Cancel):
        core.cancel(message.id)
    elif isinstance(message, Announce):
        core.announce(message.adapter)
    elif isinstance(message, Pin):
        core.pin(message.adapters)


def _name(request: Generate) -> str:
    """Name a request in logs: by ids only."""
    return f"id={request.id} request_id={request.request_id or '-'} traceparent={request.traceparent or '-'}"


def _listen(
    handler: Callable[[ServerConnection], Awaitable[None]], listen: str, tls: ssl.SSLContext | None
) -> AbstractAsyncContextManager[Server]:
    options: dict[str, Any] = {
        "max_size": MAX_FRAME_BYTES,
        "compression": None,
        "close_timeout": 1,
        # No web page may talk to an engine: browsers always send their origin.
        "origins": [None],
    }
    url = urlsplit(listen)
    if url.scheme == "unix" and url.path and tls is None:
        return unix_serve(handler, url.path, **options)
    if url.scheme == ("ws" if tls is None else "wss") and url.hostname and url.port is not None:
        return serve(handler, url.hostname, url.port, ssl=tls, **options)
    raise ValueError(
        f"cannot listen at {listen!r}: use ws://127.0.0.1:PORT (0 picks a port) or unix:///path/to/socket, or "
        "wss://HOST:PORT with certificates"
    )


def _address(server: Server, listen: str) -> str:
    if listen.startswith("unix:"):
        return listen
    host, port = next(iter(server.sockets)).getsockname()[:2]
    scheme = urlsplit(listen).scheme
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"
