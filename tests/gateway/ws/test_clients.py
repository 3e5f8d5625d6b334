"""Who may connect to the WebSocket, and every way in which a client can misbehave on it."""

from __future__ import annotations

import asyncio
import json
import time
from socket import SO_RCVBUF, SO_SNDBUF, SOL_SOCKET
from typing import Any

import msgspec
import pytest
from websockets.exceptions import InvalidStatus

from gateway.config.settings import CacheSettings
from gateway.errors import NotFound
from tests.gateway.conftest import KEY, Serve, Served, eventually, receive, text_of
from tests.gateway.sockets import VARIED, ask, assert_error, closed_with, create, receive_msgpack

pytestmark = pytest.mark.anyio


async def as_page(served: Served) -> dict[str, Any]:
    """How a page of this server connects."""
    headers = {"headers": {"origin": served.url}}
    ticket = (await served.client.post("/tickets", cast_to=dict[str, Any], options=headers))["ticket"]
    return {"key": None, "origin": served.url, "subprotocols": ["roundhouse.json", f"roundhouse.ticket.{ticket}"]}


class TestHandshake:
    """Who may connect; the others get an HTTP response."""

    @pytest.mark.parametrize(
        ("options", "status", "code"),
        [
            ({"key": None}, 401, "missing_api_key"),
            ({"key": "wrong"}, 401, "invalid_api_key"),
            ({"key": None, "subprotocols": ["roundhouse.json", "roundhouse.ticket.forged"]}, 401, "invalid_api_key"),
            ({"origin": "https://evil.example"}, 403, "origin_not_allowed"),
            ({"host": "evil.example", "origin": "http://evil.example"}, 403, "host_not_allowed"),
        ],
    )
    async def test_refused(
        self, serve: Serve, options: dict[str, Any], status: int, code: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        """In OpenAI's error shape, and without an error in the log: it is the client's."""
        async with serve() as served:
            with pytest.raises(InvalidStatus) as caught:
                await served.connect(**options)
            assert served.leftovers()["connections"] == 0
        assert caught.value.response.status_code == status
        assert json.loads(caught.value.response.body or b"")["error"]["code"] == code
        assert [record for record in caplog.records if record.levelname == "ERROR"] == []

    async def test_a_page_connects_with_a_ticket(self, serve: Serve) -> None:
        """It works once, and is never echoed."""
        async with serve() as served:
            options = await as_page(served)
            async with served.connect(**options) as socket:
                assert socket.subprotocol == "roundhouse.json"
                assert (await ask(socket, max_output_tokens=1))[0]["type"] == "response.created"
            with pytest.raises(InvalidStatus):
                await served.connect(**options)

    async def test_a_page_gets_few_messages(self, serve: Serve) -> None:
        """Deltas come together, and none is lost."""
        window = 0.02
        async with serve(cache=CacheSettings(enabled=False), turns={"coalesce_window": window}) as served:
            async with served.connect() as socket:
                alone = text_of(await ask(socket, max_output_tokens=100, ignore_eos=True))
            async with served.connect(**await as_page(served)) as socket:
                begun = time.perf_counter()
                events = await ask(socket, max_output_tokens=100, ignore_eos=True)
                taken = time.perf_counter() - begun
        assert text_of(events) == alone
        assert sum(event["type"] == "response.output_text.delta" for event in events) <= taken / window + 2

    async def test_a_tenants_connections_are_limited(self, serve: Serve) -> None:
        """429 with Retry-After; a place that becomes free can be taken."""
        async with serve(server={"max_connections_per_tenant": 1}) as served:
            async with served.connect():
                with pytest.raises(InvalidStatus) as caught:
                    await served.connect()
            assert caught.value.response.status_code == 429
            assert caught.value.response.headers["retry-after"]
            await served.settle()
            async with served.connect():
                pass

    async def test_the_process_limits_connections(self, serve: Serve) -> None:
        """503: another gateway may have room."""
        async with serve(server={"max_connections": 1}) as served, served.connect():
            with pytest.raises(InvalidStatus) as caught:
                await served.connect()
        assert caught.value.response.status_code == 503


class TestBadClients:
    """Each gets a clear error or a clean close, and nothing is left behind."""

    async def test_garbage_gets_errors_then_the_door(self, serve: Serve) -> None:
        """4400 after several in a row."""
        async with serve() as served, served.connect() as socket:
            await socket.send("{not json")
            assert_error(await receive(socket), 400, "invalid_json")
            assert (await ask(socket, max_output_tokens=1))[0]["type"] == "response.created"
            for _ in range(8):
                await socket.send("[]")
            assert await closed_with(socket) == 4400
            await served.settle()

    async def test_msgpack_garbage(self, serve: Serve) -> None:
        """Malformed, invalid UTF-8 inside, or text where binary belongs."""
        async with serve() as served, served.connect(subprotocols=["roundhouse.msgpack"]) as socket:
            for raw in (b"\xc1", b"\x81\xa4type\xa2\xff\xfe", "text", b"\x91" * 5000, b"\xdf\xff\xff\xff\xff"):
                await socket.send(raw)
                assert_error(await receive_msgpack(socket), 400, "invalid_msgpack")
            await socket.send(
                msgspec.msgpack.encode({"type": "response.create", "input": msgspec.msgpack.Ext(1, b"x")})
            )
            assert_error(await receive_msgpack(socket), 400, "invalid_value", "input")

    async def test_invalid_utf8_in_a_text_message_closes_the_connection(self, serve: Serve) -> None:
        """1007, as RFC 6455 wants it."""
        async with serve() as served, served.connect() as socket:
            await socket.send(b'{"type": "\xff"}', text=True)
            assert await closed_with(socket) == 1007
            await served.settle()

    async def test_an_oversized_message_closes_the_connection(self, serve: Serve) -> None:
        """1009, before it has been read."""
        async with serve(server={"max_message_bytes": 1000}) as served, served.connect() as socket:
            await create(socket, "x" * 1000)
            assert await closed_with(socket) == 1009
            await served.settle()

    async def test_a_client_that_never_speaks_is_closed(self, serve: Serve) -> None:
        """4408."""
        async with serve(server={"first_message_timeout": 0.05}) as served, served.connect() as socket:
            assert await closed_with(socket) == 4408
            await served.settle()

    async def test_a_client_that_falls_silent_is_closed(self, serve: Serve) -> None:
        """4408 after its turn, not during it."""
        async with serve(server={"idle_timeout": 0.05}) as served, served.connect() as socket:
            events = await ask(socket, max_output_tokens=100, **VARIED)
            assert events[-1]["type"] == "response.incomplete"
            assert await closed_with(socket) == 4408

    async def test_the_lifetime_ends_with_openais_error(self, serve: Serve) -> None:
        """`websocket_connection_limit_reached`, then 1001."""
        async with serve(server={"connection_lifetime": 0.05}) as served, served.connect() as socket:
            assert_error(await receive(socket), 400, "websocket_connection_limit_reached")
            assert await closed_with(socket) == 1001

    async def test_a_client_that_never_reads_is_cut_off(self, serve: Serve) -> None:
        """4503 when its socket has been full for too long; the responses are there for another one."""
        metadata = {str(key): "x" * 512 for key in range(16)}  # comes back in three events of every response
        async with serve(server={"send_timeout": 0.1}) as served:
            async with served.connect() as socket:
                made = [await ask(socket, metadata=metadata, max_output_tokens=1) for _ in range(20)]
            reader, writer = await raw_connection(served)
            for _ in range(1000):
                for events in made:
                    writer.write(_frame(_json(type="response.resume", response_id=events[0]["response"]["id"])))
                await asyncio.sleep(0.01)
                if served.gateway.connections.open == 0:
                    break
            await served.settle()
            assert served.gateway.turns.retained == len(made)
            assert (4503).to_bytes(2, "big") in await _close_frame(reader)
            writer.transport.abort()

    @pytest.mark.parametrize("over", ["a socket", "server-sent events"])
    async def test_a_reader_that_stands_still_costs_little_and_slows_nobody(self, serve: Serve, over: str) -> None:
        """What waits for it is bounded by one buffer, while turns of others run to their end beside it."""
        metadata = {str(key): "x" * 512 for key in range(16)}
        async with serve(server={"send_timeout": 1.0}) as served, served.connect() as fast:
            id = (await ask(fast, metadata=metadata, max_output_tokens=1))[-1]["response"]["id"]
            if over == "a socket":
                _reader, writer = await raw_connection(served)
                wish = _frame(_json(type="response.resume", response_id=id))
            else:
                _reader, writer = await asyncio.open_connection("127.0.0.1", served.port, limit=1024)
                asked = f"GET /v1/responses/{id}?stream=true HTTP/1.1\r\nhost: 127.0.0.1\r\n"
                head = f"{asked}authorization: Bearer {KEY}\r\n\r\n"
                wish = head.encode()
            protocols = served.server.server_state.connections
            waiting: list[int] = []
            turns = 0
            await eventually(lambda: len(protocols) == 2)
            for protocol in protocols:
                protocol.close_timeout = 0.1  # what a client has to answer a close frame
            # What the kernel keeps is little, so that it is full long before the kernel gives the reader up.
            for transport in [writer.transport, *(protocol.transport for protocol in protocols)]:
                for option in (SO_RCVBUF, SO_SNDBUF):
                    transport.get_extra_info("socket").setsockopt(SOL_SOCKET, option, 65_536)
            writer.write(wish * 1000)  # some 25 kB each

            async def look() -> None:
                while True:
                    waiting.extend(protocol.transport.get_write_buffer_size() for protocol in protocols)
                    await asyncio.sleep(0.001)

            looking = asyncio.create_task(look())
            while len(protocols) == 2:
                events = await ask(fast, roundhouse={"cache": "no-store"}, max_output_tokens=3, **VARIED)
                assert events[-1]["type"] == "response.incomplete"
                turns += 1
                if over == "a socket" and not writer.transport.get_write_buffer_size():
                    writer.write(wish * 20)
            looking.cancel()
            assert turns > 10
            assert 0 < max(waiting) <= 256 * 1024
            await served.settle(connections=1)
            writer.transport.abort()

    async def test_a_client_that_cancels_without_end_is_not_read_on(
        self, serve: Serve, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Each may ask Redis or another gateway: few are looked up at a time."""
        gate, looked_up = asyncio.Event(), 0

        async def find(*_: object) -> None:
            nonlocal looked_up
            looked_up += 1
            await gate.wait()
            raise NotFound("none")

        async with serve(turns={"max_concurrent_per_connection": 1}) as served, served.connect() as socket:
            monkeypatch.setattr(served.gateway.turns, "find", find)
            for _ in range(100):
                await socket.send(_json(type="response.cancel", response_id="x").decode())
            await eventually(lambda: looked_up >= 17)
            async with served.connect() as other:  # whose whole turn leaves the reader time to go on
                await ask(other, max_output_tokens=1)
            assert looked_up == 17
            gate.set()
            for _ in range(100):
                assert (await receive(socket))["type"] == "error"

    async def test_a_client_that_sends_without_reading_is_not_read_on(self, serve: Serve) -> None:
        """Errors that it does not fetch stop its messages from being read: memory is bounded."""
        async with serve(server={"send_timeout": 0.2}) as served:
            _, writer = await raw_connection(served)
            bad = _frame(_json(type="response.cancel", response_id="x" * 100))

            async def flood() -> None:
                while True:
                    writer.write(bad * 1000)
                    await writer.drain()

            flooding = asyncio.create_task(flood())
            await eventually(lambda: served.gateway.connections.open == 1)
            await served.settle()
            flooding.cancel()
            await asyncio.gather(flooding, return_exceptions=True)
            writer.transport.abort()

    async def test_a_thousand_connections_opened_and_abandoned(self, serve: Serve) -> None:
        """They cost little, and end by themselves."""
        async with serve(server={"first_message_timeout": 1.0, "max_connections_per_tenant": 2000}) as served:
            sockets = []
            for _ in range(20):
                sockets += await asyncio.gather(*(raw_connection(served) for _ in range(50)))
            for _, writer in sockets[:500]:
                writer.transport.abort()
            await served.settle()
            for _, writer in sockets[500:]:
                writer.transport.abort()
            async with served.connect() as socket:
                assert (await ask(socket, max_output_tokens=1))[0]["type"] == "response.created"

    async def test_too_many_turns_of_one_connection(self, serve: Serve) -> None:
        """Refused with an error; the others go on."""
        async with serve(turns={"max_concurrent_per_connection": 2}) as served, served.connect() as socket:
            for lane in "abc":
                await create(socket, stream_id=lane, max_output_tokens=5, **VARIED)
            events = []
            while sum(event["type"] in ("response.incomplete", "error") for event in events) < 3:
                events.append(await receive(socket))
            await served.settle(connections=1)
        errors = [event for event in events if event["type"] == "error"]
        assert [(event["stream_id"], event["error"]["code"]) for event in errors] == [("c", "too_many_turns")]


def _json(**event: Any) -> bytes:
    return json.dumps(event).encode()


def _frame(payload: bytes, opcode: int = 1) -> bytes:
    """A masked client frame (with a mask of zeros)."""
    head = bytes([0x80 | opcode])
    head += bytes([0x80 | len(payload)]) if len(payload) < 126 else bytes([0xFE]) + len(payload).to_bytes(2, "big")
    return head + bytes(4) + payload


async def raw_connection(served: Served) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A WebSocket without a client that would read on its own."""
    reader, writer = await asyncio.open_connection("127.0.0.1", served.port, limit=65536)
    writer.write(
        b"GET /v1/responses HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n"
        b"Authorization: Bearer roundhouse-demo\r\n\r\n"
    )
    head = await reader.readuntil(b"\r\n\r\n")
    assert b" 101 " in head
    return reader, writer


async def _close_frame(reader: asyncio.StreamReader) -> bytes:
    """What was read last, once the server's close frame is in it."""
    tail = b""
    while b"nothing was read" not in tail and (chunk := await reader.read(65536)):
        tail = (tail + chunk)[-70_000:]
    return tail[-100:]
