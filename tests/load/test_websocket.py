"""WebSocket connections against the server of `websockets`."""

from __future__ import annotations

import asyncio
import contextlib
import http
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from websockets.asyncio.server import Request, Response, ServerConnection, serve

from load.connections.address import Address
from load.connections.http import RequestRefused
from load.connections.websocket import WebSocketWire

pytestmark = pytest.mark.anyio


@contextlib.asynccontextmanager
async def serving(handle: Callable[[ServerConnection], Awaitable[None]]) -> AsyncIterator[Address]:
    async def guard(connection: ServerConnection, request: Request) -> Response | None:
        if request.headers.get("Authorization") == "Bearer k":
            return None
        return connection.respond(http.HTTPStatus.UNAUTHORIZED, '{"error": {"message": "no", "code": "bad_key"}}')

    async with serve(handle, "127.0.0.1", 0, process_request=guard) as server:
        yield Address("127.0.0.1", next(iter(server.sockets)).getsockname()[1], False, "/v1")


async def opened(address: Address, key: str = "k") -> WebSocketWire:
    return await WebSocketWire.open(address, "/responses", {"Authorization": f"Bearer {key}"})


async def test_messages_come_until_the_receiver_has_what_it_wants() -> None:
    async def handle(connection: ServerConnection) -> None:
        assert connection.request is not None and connection.request.path == "/v1/responses"
        async for message in connection:
            for at in range(3):
                await connection.send(f"{message!r} {at}")

    async with serving(handle) as address:
        wire = await opened(address)
        for question in (b"one", b"two"):
            found: list[bytes] = []

            def receive(message: bytes, now: float, found: list[bytes] = found) -> bool:
                found.append(message)
                return len(found) == 3

            await wire.exchange(question, receive)
            assert found == [f"'{question.decode()}' {at}".encode() for at in range(3)]
            assert wire.usable
        wire.close()


async def test_fragments_are_one_message_and_pings_are_answered() -> None:
    async def handle(connection: ServerConnection) -> None:
        await connection.recv()
        await (await connection.ping())
        await connection.send(["one ", "message ", "ä" * 70_000])

    found: list[bytes] = []
    async with serving(handle) as address:
        wire = await opened(address)
        await wire.exchange(b"?", lambda message, _: not found.append(message))
    assert found == [b"one message " + "ä".encode() * 70_000]


async def test_a_refused_handshake_says_why() -> None:
    async with serving(lambda _: asyncio.sleep(0)) as address:
        with pytest.raises(RequestRefused) as refused:
            await opened(address, "other")
    assert (refused.value.status, str(refused.value)) == (401, "401 bad_key: no")


async def test_a_server_that_closes_midway_is_a_lost_connection() -> None:
    async def handle(connection: ServerConnection) -> None:
        await connection.recv()
        await connection.close(1012)

    async with serving(handle) as address:
        wire = await opened(address)
        with pytest.raises(ConnectionError, match="1012"):
            await wire.exchange(b"?", lambda *_: False)
        assert not wire.usable
        with pytest.raises(ConnectionError):
            await wire.exchange(b"?", lambda *_: False)
        wire.send(b"nobody hears this")


async def test_an_error_of_the_receiver_ends_the_exchange() -> None:
    def receive(message: bytes, now: float) -> bool:
        raise ValueError(message)

    async def handle(connection: ServerConnection) -> None:
        await connection.send(await connection.recv())

    async with serving(handle) as address:
        wire = await opened(address)
        with pytest.raises(ValueError, match=r"\?"):
            await wire.exchange(b"?", receive)
        wire.abort()


async def test_a_connection_that_is_cut_says_no_farewell() -> None:
    code = asyncio.get_running_loop().create_future()

    async def handle(connection: ServerConnection) -> None:
        await connection.send(await connection.recv())
        await connection.wait_closed()
        code.set_result(connection.close_code)

    async with serving(handle) as address:
        wire = await opened(address)
        with pytest.raises(ConnectionError):
            await wire.exchange(b"?", lambda *_: bool(wire.abort()))
        assert await asyncio.wait_for(code, 10) == 1006


async def test_what_answers_no_handshake_is_a_lost_connection() -> None:
    async def serve_other(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"220 mail.example ESMTP\r\n")
        writer.close()

    async with await asyncio.start_server(serve_other, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(ConnectionError):
            await opened(Address("127.0.0.1", port, False, "/v1"))
