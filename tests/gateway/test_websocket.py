"""The WebSocket over a real socket: turns, resuming, and every way in which a client can misbehave."""

from __future__ import annotations

import asyncio
import hashlib
import json
import random
from typing import Any

import msgspec
import pytest
from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed, InvalidStatus

from gateway.settings import ApiKey, Cache, Tenant
from gateway.websocket import Connection
from tests.gateway.conftest import Serve, Served, eventually, receive, send, text_of, until_end

pytestmark = pytest.mark.anyio

VARIED: dict[str, Any] = {"temperature": 1, "seed": 5, "ignore_eos": True}
"""Random text, the same in every run."""


async def create(socket: ClientConnection, text: str = "hello", **fields: Any) -> None:
    await send(socket, type="response.create", input=text, **fields)


async def ask(socket: ClientConnection, text: str = "hello", **fields: Any) -> list[dict[str, Any]]:
    """One turn, all its events."""
    await create(socket, text, **fields)
    return await until_end(lambda: receive(socket))


def assert_error(event: dict[str, Any], status: int, code: str, param: str | None = None) -> None:
    assert (event["type"], event["status"]) == ("error", status), event
    assert (event["error"]["code"], event["error"]["param"]) == (code, param)


async def closed_with(socket: ClientConnection) -> int:
    """Read until the server closes; the code it gives."""
    async with asyncio.timeout(20):
        try:
            while True:
                await socket.recv()
        except ConnectionClosed as closed:
            assert closed.rcvd is not None
            return closed.rcvd.code


class TestTurns:
    """What a well-behaved client sees."""

    async def test_events_come_in_openais_order(self, serve: Serve) -> None:
        """Numbered without gaps where the client keeps up with one token at a time."""
        async with serve() as served, served.connect() as socket:
            events = await ask(socket, max_output_tokens=1, ignore_eos=True)
            await served.settle(connections=1)
        assert [event["type"] for event in events] == [
            "response.created",
            "response.in_progress",
            "roundhouse.route",
            "response.output_item.added",
            "response.content_part.added",
            "response.output_text.delta",
            "roundhouse.limits",
            "response.output_text.done",
            "response.content_part.done",
            "response.output_item.done",
            "response.incomplete",
        ]
        assert [event["sequence_number"] for event in events] == list(range(len(events)))

    async def test_msgpack_carries_the_same_events(self, serve: Serve) -> None:
        """As binary messages; the subprotocol is echoed."""
        async with serve(cache=Cache(enabled=False)) as served:
            async with served.connect() as socket:
                assert socket.subprotocol is None
                plain = await ask(socket, max_output_tokens=3)
            async with served.connect(subprotocols=["roundhouse.msgpack"]) as socket:
                assert socket.subprotocol == "roundhouse.msgpack"
                await socket.send(
                    msgspec.msgpack.encode({"type": "response.create", "input": "hello", "max_output_tokens": 3})
                )
                packed = await until_end(lambda: _receive_msgpack(socket))
        assert text_of(packed) == text_of(plain)
        assert {event["type"] for event in packed} == {event["type"] for event in plain}

    async def test_lanes_run_side_by_side_and_are_marked(self, serve: Serve) -> None:
        """Each event names its lane; texts are those of turns run alone."""
        async with serve(cache=Cache(enabled=False)) as served, served.connect() as socket:
            alone = {lane: text_of(await ask(socket, lane, max_output_tokens=8, **VARIED)) for lane in "abc"}
            for lane in "abc":
                await create(socket, lane, stream_id=lane, max_output_tokens=8, **VARIED)
            together: dict[str, list[dict[str, Any]]] = {lane: [] for lane in "abc"}
            while not all(events and events[-1]["type"] == "response.incomplete" for events in together.values()):
                event = await receive(socket)
                together[event["stream_id"]].append(event)
        assert {lane: text_of(events) for lane, events in together.items()} == alone

    async def test_one_lane_is_first_in_first_out(self, serve: Serve) -> None:
        """The second turn's first event follows the first one's last."""
        async with serve() as served, served.connect() as socket:
            for text in ("one", "two"):
                await create(socket, text, stream_id="a", max_output_tokens=2)
            first = await until_end(lambda: receive(socket))
            second = await until_end(lambda: receive(socket))
        assert len({event["response"]["id"] for event in (first[0], first[-1])}) == 1
        assert second[0]["type"] == "response.created"
        assert second[0]["response"]["id"] != first[0]["response"]["id"]

    async def test_turns_that_are_not_stored_can_be_continued_on_their_connection_only(self, serve: Serve) -> None:
        """`store: false`, as agents use it: kept by the connection after everybody else has forgotten."""
        async with serve(turns={"orphan_timeout": 0.01}) as served, served.connect() as socket:
            first = await ask(socket, store=False, max_output_tokens=2)
            previous = first[-1]["response"]["id"]
            await eventually(lambda: served.gateway.turns.retained == 0)
            second = await ask(socket, "more", previous_response_id=previous, max_output_tokens=2)
            assert second[0]["type"] == "response.created"
            async with served.connect() as other:
                (error,) = await ask(other, "more", previous_response_id=previous)
        assert_error(error, 400, "previous_response_not_found", "previous_response_id")

    async def test_a_running_response_cannot_be_continued(self, serve: Serve) -> None:
        """On another lane; on its own lane the new turn waits for it."""
        async with serve() as served, served.connect() as socket:
            await create(socket, stream_id="a", max_output_tokens=3000, **VARIED)
            running = (await receive(socket))["response"]["id"]
            await create(socket, stream_id="b", previous_response_id=running)
            event = await receive(socket)
            while event["type"] != "error":
                event = await receive(socket)
            await send(socket, type="response.cancel", response_id=running)
            await until_end(lambda: receive(socket))
        assert_error(event, 409, "response_in_progress", "previous_response_id")
        assert event["stream_id"] == "b"

    async def test_another_tenants_response_is_not_found(self, serve: Serve) -> None:
        """Neither to be resumed nor cancelled nor continued."""
        async with serve(tenants=_two_tenants()) as served:
            async with served.connect("key-one") as socket:
                response_id = (await ask(socket, max_output_tokens=1))[-1]["response"]["id"]
            async with served.connect("key-two") as socket:
                for kind in ("response.resume", "response.cancel"):
                    await send(socket, type=kind, response_id=response_id)
                    assert_error(await receive(socket), 404, "response_not_found", "response_id")
                (error,) = await ask(socket, previous_response_id=response_id)
                assert_error(error, 400, "previous_response_not_found", "previous_response_id")


class TestCancel:
    """Stop."""

    async def test_cancel_ends_the_turn_at_once_with_its_partial_text(self, serve: Serve) -> None:
        """The engine is free, the tokens that were not used come back, and cancelling again changes nothing."""
        async with serve() as served, served.connect() as socket:
            await create(socket, max_output_tokens=3000, **VARIED)
            events = [await receive(socket)]
            while events[-1]["type"] != "response.output_text.delta":
                events.append(await receive(socket))
            response_id = events[0]["response"]["id"]
            for _ in range(2):
                await send(socket, type="response.cancel", response_id=response_id)
            events += await until_end(lambda: receive(socket))
            await served.settle(connections=1)
            response = events[-1]["response"]
            assert (events[-1]["type"], response["status"]) == ("response.incomplete", "cancelled")
            assert response["output"][0]["content"][0]["text"] == text_of(events)
            assert 0 < response["usage"]["output_tokens"] < 3000
            limits = next(event for event in events if event["type"] == "roundhouse.limits")["tokens"]
            assert limits["limit"] - limits["remaining"] < 3000
            await send(socket, type="response.cancel", response_id=response_id)
            assert (await ask(socket, max_output_tokens=1))[0]["type"] == "response.created"

    async def test_cancelling_what_is_unknown_is_an_error(self, serve: Serve) -> None:
        """The connection stays."""
        async with serve() as served, served.connect() as socket:
            await send(socket, type="response.cancel", response_id="resp_unknown", stream_id="a")
            event = await receive(socket)
        assert_error(event, 404, "response_not_found", "response_id")
        assert event["stream_id"] == "a"


class TestResume:
    """Cut sockets."""

    @pytest.mark.parametrize("seed", range(3))
    async def test_no_character_is_lost_or_doubled_however_often_the_socket_is_cut(
        self, serve: Serve, seed: int
    ) -> None:
        """At random events, without a closing handshake; what was read before and after makes the whole."""
        print(f"cuts with seed {seed}")
        cuts = random.Random(seed)
        tokens = 120
        async with serve(cache=Cache(enabled=False)) as served:
            async with served.connect() as socket:
                whole = text_of(await ask(socket, max_output_tokens=tokens, **VARIED))
            response_id, last, seen, done = None, -1, "", False
            while not done:
                async with served.connect() as socket:
                    if response_id is None:
                        await create(socket, max_output_tokens=tokens, **VARIED)
                    else:
                        await send(socket, type="response.resume", response_id=response_id, starting_after=last)
                    for _ in range(cuts.randint(1, 12)):
                        event = await receive(socket)
                        assert event["sequence_number"] > last
                        last = event["sequence_number"]
                        response_id = response_id or event["response"]["id"]
                        seen += event["delta"] if event["type"] == "response.output_text.delta" else ""
                        done = event["type"] == "response.incomplete"
                        if done:
                            break
                    socket.transport.abort()
            await served.settle()
        assert seen == whole

    async def test_two_viewers_see_the_same(self, serve: Serve) -> None:
        """A second tab joins a running turn from its start."""
        async with serve() as served, served.connect() as one, served.connect() as two:
            await create(one, max_output_tokens=40, **VARIED)
            first = [await receive(one)]
            await send(two, type="response.resume", response_id=first[0]["response"]["id"])
            first += await until_end(lambda: receive(one))
            second = await until_end(lambda: receive(two))
            await served.settle(connections=2)
        assert text_of(first) == text_of(second) == first[-1]["response"]["output"][0]["content"][0]["text"]

    async def test_an_orphan_is_cancelled_after_a_while(self, serve: Serve) -> None:
        """Its partial text can still be fetched."""
        async with serve(turns={"orphan_timeout": 0.05}) as served:
            async with served.connect() as socket:
                await create(socket, max_output_tokens=3000, **VARIED)
                response_id = (await receive(socket))["response"]["id"]
            await served.settle()
            async with served.connect() as socket:
                await send(socket, type="response.resume", response_id=response_id)
                events = await until_end(lambda: receive(socket))
        assert events[-1]["response"]["status"] == "cancelled"

    async def test_a_forgotten_response_is_not_found(self, serve: Serve) -> None:
        """Retention ends by time."""
        async with serve(turns={"retention": 0.05}) as served, served.connect() as socket:
            response_id = (await ask(socket, max_output_tokens=1))[-1]["response"]["id"]
            await eventually(lambda: served.gateway.turns.retained == 0)
            await send(socket, type="response.resume", response_id=response_id)
            assert_error(await receive(socket), 404, "response_not_found", "response_id")

    async def test_a_slow_reader_gets_merged_deltas(self, serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
        """Fewer messages, the same text: nothing queues up while its socket is full."""
        unhindered = Connection._send
        tap = asyncio.Event()

        async def hindered(self: Connection, event: dict[str, Any]) -> None:
            if event["type"] == "response.output_text.delta":
                await tap.wait()
            await unhindered(self, event)

        async with serve() as served, served.connect() as socket:
            monkeypatch.setattr(Connection, "_send", hindered)
            await create(socket, max_output_tokens=60, **VARIED)
            await eventually(lambda: served.gateway.turns.retained == 1)
            tap.set()
            events = await until_end(lambda: receive(socket))
        deltas = [event for event in events if event["type"] == "response.output_text.delta"]
        assert len(deltas) <= 2
        assert text_of(events) == events[-1]["response"]["output"][0]["content"][0]["text"]


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
    async def test_refused(self, serve: Serve, options: dict[str, Any], status: int, code: str) -> None:
        """In OpenAI's error shape."""
        async with serve() as served:
            with pytest.raises(InvalidStatus) as caught:
                await served.connect(**options)
            assert served.leftovers()["connections"] == 0
        assert caught.value.response.status_code == status
        assert json.loads(caught.value.response.body or b"")["error"]["code"] == code

    async def test_a_page_connects_with_a_ticket(self, serve: Serve) -> None:
        """It works once, and is never echoed."""
        async with serve() as served:
            issued = await served.client.post(
                "/tickets", cast_to=dict[str, Any], options={"headers": {"origin": served.url}}
            )
            options: dict[str, Any] = {
                "key": None,
                "origin": served.url,
                "subprotocols": ["roundhouse.json", f"roundhouse.ticket.{issued['ticket']}"],
            }
            async with served.connect(**options) as socket:
                assert socket.subprotocol == "roundhouse.json"
                assert (await ask(socket, max_output_tokens=1))[0]["type"] == "response.created"
            with pytest.raises(InvalidStatus):
                await served.connect(**options)

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
                assert_error(await _receive_msgpack(socket), 400, "invalid_msgpack")
            await socket.send(
                msgspec.msgpack.encode({"type": "response.create", "input": msgspec.msgpack.Ext(1, b"x")})
            )
            assert_error(await _receive_msgpack(socket), 400, "invalid_value", "input")

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
            reader, writer = await _raw_connection(served)
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

    async def test_a_client_that_sends_without_reading_is_not_read_on(self, serve: Serve) -> None:
        """Errors that it does not fetch stop its messages from being read: memory is bounded."""
        async with serve(server={"send_timeout": 0.2}) as served:
            _, writer = await _raw_connection(served)
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
                sockets += await asyncio.gather(*(_raw_connection(served) for _ in range(50)))
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


async def test_drain_lets_turns_end_and_refuses_new_ones(serve: Serve) -> None:
    """`roundhouse.draining`, the rest of the answer, 1012; meanwhile 503 for whoever comes."""
    async with serve() as served, served.connect() as socket, served.connect() as idle:
        await create(socket, max_output_tokens=60, **VARIED)
        events = [await receive(socket)]
        await eventually(lambda: served.gateway.connections.open == 2)
        served.server.stop()
        events += await until_end(lambda: receive(socket))
        assert events[-1]["type"] == "response.incomplete"
        assert "roundhouse.draining" in {event["type"] for event in events}
        assert (await receive(idle))["type"] == "roundhouse.draining"
        assert await closed_with(idle) == 1012
        assert await closed_with(socket) == 1012


async def _receive_msgpack(socket: ClientConnection) -> dict[str, Any]:
    async with asyncio.timeout(20):
        message = await socket.recv()
    assert isinstance(message, bytes)
    event: dict[str, Any] = msgspec.msgpack.decode(message)
    return event


def _json(**event: Any) -> bytes:
    return json.dumps(event).encode()


def _frame(payload: bytes, opcode: int = 1) -> bytes:
    """A masked client frame (with a mask of zeros)."""
    head = bytes([0x80 | opcode])
    head += bytes([0x80 | len(payload)]) if len(payload) < 126 else bytes([0xFE]) + len(payload).to_bytes(2, "big")
    return head + bytes(4) + payload


async def _raw_connection(served: Served) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
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


def _two_tenants() -> list[Tenant]:
    return [
        Tenant(name=name, keys=[ApiKey(id=name, sha256=hashlib.sha256(f"key-{name}".encode()).hexdigest())])
        for name in ("one", "two")
    ]
