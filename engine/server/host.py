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
import logging
import math
import ssl
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from http import HTTPStatus
from typing import Any
from urllib.parse import urlsplit

import msgspec
from websockets.asyncio.server import Server, ServerConnection, serve, unix_serve
from websockets.exceptions import ConnectionClosed
from websockets.frames import CloseCode
from websockets.http11 import Request, Response

from engine.core import EngineCore, RequestError
from engine.outputs import failed
from engine.server.connection import Connection, ProtocolViolation
from engine.server.core_thread import CoreThread, Following
from engine.server.probes import respond
from engine.validation import validate
from engine.wire import (
    MAX_FRAME_BYTES,
    MOVES_SINCE,
    PROTOCOL_MIN,
    PROTOCOL_VERSION,
    Announce,
    Blocks,
    Cancel,
    Drain,
    Follow,
    Generate,
    Hello,
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
_FLUSH_SECONDS = 2.0
"""Longest time for the last frames of a drained engine to be read."""
_POLL_SECONDS = 0.02


class EngineServer:
    """Serves one core at one address.

    async with EngineServer(core).listening("ws://127.0.0.1:0") as address:
        ...
    """

    def __init__(
        self,
        core: EngineCore,
        *,
        id: str = "",
        max_backlog_bytes: int = MAX_BACKLOG_BYTES,
        prepare: Callable[[], None] = lambda: None,
    ) -> None:
        """
        Args:
            id: of this process, for clients.
            prepare: called in the core's thread before any client can connect.
        """
        self._core = core
        self.id = id
        self._thread = CoreThread(core, prepare, self._publish, self._send_blocks)
        self._max_backlog_bytes = max_backlog_bytes
        self._load: Load = core.load()
        self._connections: dict[str, Connection] = {}
        self._pinned: dict[str, list[str]] = {}
        """Adapter versions that each connection wants to be kept loaded."""
        self._next_key = 0
        self._draining: asyncio.Task[None] | None = None
        self._drain_until = math.inf
        self._drained = asyncio.Event()

    @contextlib.asynccontextmanager
    async def listening(self, listen: str, tls: ssl.SSLContext | None = None) -> AsyncIterator[str]:
        """Serve at `ws://host:port` (port 0 picks one), `wss://host:port` with `tls`, or `unix:///path`; yields the
        address that clients use.

        Raises:
            OSError: the address cannot be used.
            RuntimeError: (at exit) the core failed.
            Exception: what `prepare` raised.
        """
        try:
            await self._thread.start()
            async with _listen(self._handle, self._respond, listen, tls) as server:
                heartbeat = asyncio.create_task(self._beat())
                try:
                    yield _address(server, listen)
                finally:
                    heartbeat.cancel()
                    await self._thread.stop()
        finally:
            await self._thread.stop()
        if self._thread.failure is not None:
            raise RuntimeError("the engine's core failed") from self._thread.failure

    @contextlib.asynccontextmanager
    async def probed(self, address: str | None) -> AsyncIterator[None]:
        """Answer probes and metrics, and nothing else, at `host:port` too, in plain HTTP; None: nowhere.

        Raises:
            OSError: the address cannot be used.
        """
        if address is None:
            yield
            return
        url = urlsplit(f"//{address}")

        def answer(connection: ServerConnection, request: Request) -> Response:
            return self._respond(connection, request) or connection.respond(HTTPStatus.NOT_FOUND, "no such page\n")

        async with serve(self._handle, url.hostname, url.port, process_request=answer):
            yield

    def drain(self, seconds: float) -> None:
        """Take no new requests from now on; `wait_drained` returns when there are none left.

        Those that still run after `seconds` end as "moved", so that other engines go on with them; only clients of
        protocol 1 lose theirs, with the connection. Of several calls the one that ends first counts.
        """
        self._drain_until = min(self._drain_until, asyncio.get_running_loop().time() + seconds)
        if self._draining is None:
            logger.info("draining: no new requests; running ones have %g seconds", seconds)
            self._draining = asyncio.create_task(self._drain())
            self._load = self._marked(self._load)
            self._tell_all()

    async def wait_drained(self) -> None:
        """Return when the engine has been drained, by `drain` or by a client's `Drain`."""
        await self._drained.wait()

    async def _drain(self) -> None:
        loop = asyncio.get_running_loop()
        await _until(lambda: not self._requests or loop.time() >= self._drain_until)
        for key, connection in self._connections.items():
            if connection.protocol < MOVES_SINCE:
                continue
            ids = list(connection.live)
            for id in ids:
                self._thread.put(Cancel(f"{key}/{id}"))
            connection.post(Step([Output(id, finish="moved") for id in ids], self._load))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_FLUSH_SECONDS):
                await _until(lambda: not any(each.behind for each in self._connections.values()))
        self._drained.set()

    @property
    def _requests(self) -> int:
        return sum(each.requests for each in self._connections.values())

    async def wait_hung(self) -> None:
        """Return when a step takes far longer than predicted. The core cannot be stopped then: end the process."""
        await self._thread.wait_hung()

    async def wait_failed(self) -> None:
        """Return when the core has failed; leaving `listening` raises then."""
        await self._thread.failed.wait()

    def _send_blocks(self, keys: Sequence[str], blocks: Blocks) -> None:
        frame = encode(blocks)
        for key in keys:
            connection = self._connections.get(key)
            if connection is not None:
                connection.send(frame)

    def _publish(self, outputs: Sequence[Output], load: Load) -> None:
        """Send one frame to each connection that gained something in a step."""
        self._load = self._marked(load)
        by_connection: defaultdict[str, list[Output]] = defaultdict(list)
        for output in outputs:
            key, _, id = output.id.partition("/")
            by_connection[key].append(msgspec.structs.replace(output, id=id))
        for key, gained in by_connection.items():
            connection = self._connections.get(key)
            if connection is not None:
                connection.post(Step(gained, self._load))

    @property
    def load(self) -> Load:
        """The engine's latest snapshot."""
        return self._load

    def _marked(self, load: Load) -> Load:
        return load if self._draining is None else msgspec.structs.replace(load, draining=True)

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(HEARTBEAT_SECONDS)
            self._tell_all()

    def _tell_all(self) -> None:
        """Send every client the engine's load."""
        load = msgspec.structs.replace(self.load, adapters=self._core.resident_adapters)
        for connection in self._connections.values():
            connection.post(Step([], load))

    def _respond(self, connection: ServerConnection, request: Request) -> Response | None:
        return respond(connection, request, self.load)

    async def _handle(self, websocket: ServerConnection) -> None:
        """Serve one connection, from its introduction to the cancellation of the requests that it leaves behind."""
        if len(self._connections) >= MAX_CONNECTIONS:
            await websocket.close(CloseCode.TRY_AGAIN_LATER, "too many connections")
            return
        self._next_key += 1
        key = str(self._next_key)
        connection = Connection(websocket, self._max_backlog_bytes)
        self._connections[key] = connection
        load = msgspec.structs.replace(self.load, adapters=self._core.resident_adapters)
        ready = Ready(
            PROTOCOL_VERSION, self._core.model, load, tells_blocks=True, protocol_min=PROTOCOL_MIN, id=self.id
        )
        connection.send(encode(ready))
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
                self._thread.put(Cancel(f"{key}/{id}"))
            if key in self._pinned:
                self._pin(key, [])
            if connection.follows:
                self._thread.put(Following(key, False))

    def _pin(self, key: str, adapters: list[str]) -> None:
        """Set the adapters that one connection pins; the core keeps those of all connections."""
        self._pinned[key] = adapters
        if not adapters:
            del self._pinned[key]
        self._thread.put(Pin(list(dict.fromkeys(each for pinned in self._pinned.values() for each in pinned))))

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
                self._thread.put(Cancel(f"{key}/{frame.id}"))
            return
        if isinstance(frame, Announce):
            self._thread.put(frame)
            return
        if isinstance(frame, Pin):
            self._pin(key, frame.adapters)
            return
        if isinstance(frame, Follow):
            connection.follows = frame.blocks
            self._thread.put(Following(key, frame.blocks))
            return
        if isinstance(frame, Hello):
            connection.protocol = frame.protocol
            return
        if isinstance(frame, Drain):
            self.drain(frame.seconds)
            return
        if frame.id in connection.live or frame.id in connection.ending:
            raise ProtocolViolation(CloseCode.POLICY_VIOLATION, "id of a live request used again")
        try:
            # Refused here, a request costs neither the core's time nor room in its inbox.
            validate(frame, self._core.model, adapters=self._core.serves_adapters)
            if self._draining is not None and connection.protocol >= MOVES_SINCE:
                connection.post(Step([Output(frame.id, finish="moved")], self._load))
                return
            if self._draining is not None:
                raise RequestError("the engine is going away; ask another one", "overloaded")
            if self._requests >= self._core.config.max_requests:
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
        self._thread.put(msgspec.structs.replace(frame, id=f"{key}/{frame.id}"))


async def _until(true: Callable[[], bool]) -> None:
    # What it waits for changes in many places, of which none should know of the other end.
    while not true():  # noqa: ASYNC110
        await asyncio.sleep(_POLL_SECONDS)


def _name(request: Generate) -> str:
    """Name a request in logs: by ids only."""
    return f"id={request.id} request_id={request.request_id or '-'} traceparent={request.traceparent or '-'}"


def _listen(
    handler: Callable[[ServerConnection], Awaitable[None]],
    respond: Callable[[ServerConnection, Request], Response | None],
    listen: str,
    tls: ssl.SSLContext | None,
) -> AbstractAsyncContextManager[Server]:
    options: dict[str, Any] = {
        "max_size": MAX_FRAME_BYTES,
        "compression": None,
        "close_timeout": 1,
        "process_request": respond,
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
