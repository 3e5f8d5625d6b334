"""The WebSocket over a real socket: turns, cancelling, resuming, draining."""

from __future__ import annotations

import asyncio
import hashlib
import random
from typing import Any
from unittest.mock import AsyncMock

import msgspec
import pytest
from openai.types.responses import ResponsesServerEvent
from pydantic import TypeAdapter
from websockets.exceptions import ConnectionClosed

from gateway.config.settings import ApiKeySettings, CacheSettings, TenantSettings
from gateway.ws.socket import SocketConnection
from tests.gateway.conftest import Serve, eventually, receive, send, text_of, until_end
from tests.gateway.sockets import VARIED, ask, assert_error, closed_with, create, receive_msgpack

pytestmark = pytest.mark.anyio


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

    async def test_events_of_ours_are_for_those_who_ask(self, serve: Serve) -> None:
        """Others get OpenAI's only, also from a server that restarts, and when they resume."""
        adapter: TypeAdapter[Any] = TypeAdapter(ResponsesServerEvent)
        async with serve() as served, served.connect(events=False) as socket:
            events = await ask(socket, max_output_tokens=4, ignore_eos=True)
            await send(socket, type="response.resume", response_id=events[0]["response"]["id"])
            again = await until_end(lambda: receive(socket))
            for event in (*events, *again):
                adapter.validate_python(event, strict=True)
            assert text_of(events) == text_of(again) != ""
            for shown in (events, again):
                assert [event["sequence_number"] for event in shown] == list(range(len(shown)))
            served.gateway.connections.drain()
            with pytest.raises(ConnectionClosed):
                await receive(socket)
            assert socket.close_code == 1012

    async def test_msgpack_carries_the_same_events(self, serve: Serve) -> None:
        """As binary messages; the subprotocol is echoed."""
        async with serve(cache=CacheSettings(enabled=False)) as served:
            async with served.connect() as socket:
                assert socket.subprotocol is None
                plain = await ask(socket, max_output_tokens=3)
            async with served.connect(subprotocols=["roundhouse.msgpack"]) as socket:
                assert socket.subprotocol == "roundhouse.msgpack"
                await socket.send(
                    msgspec.msgpack.encode({"type": "response.create", "input": "hello", "max_output_tokens": 3})
                )
                packed = await until_end(lambda: receive_msgpack(socket))
        assert text_of(packed) == text_of(plain)
        assert {event["type"] for event in packed} == {event["type"] for event in plain}

    async def test_lanes_run_side_by_side_and_are_marked(self, serve: Serve) -> None:
        """Each event names its lane; texts are those of turns run alone."""
        async with serve(cache=CacheSettings(enabled=False)) as served, served.connect() as socket:
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
        async with serve(cache=CacheSettings(enabled=False)) as served:
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
        async with serve(turns={"retention": 0.05, "store_ttl": 0.05}) as served, served.connect() as socket:
            response_id = (await ask(socket, max_output_tokens=1))[-1]["response"]["id"]
            await eventually(lambda: served.gateway.turns.retained == 0)
            await eventually(lambda: served.gateway.turns.shared["unstored"] == 0)
            for _ in range(100):
                await send(socket, type="response.resume", response_id=response_id)
                event = await receive(socket)
                if event["type"] == "error":
                    break
                await until_end(lambda: receive(socket))  # Redis has not forgotten it yet
            assert_error(event, 404, "response_not_found", "response_id")

    async def test_a_slow_reader_gets_merged_deltas(self, serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
        """Fewer messages, the same text: nothing queues up while its socket is full."""
        unhindered = SocketConnection._send
        tap = asyncio.Event()

        async def hindered(self: SocketConnection, event: dict[str, Any]) -> None:
            if event["type"] == "response.output_text.delta":
                await tap.wait()
            await unhindered(self, event)

        async with serve() as served, served.connect() as socket:
            monkeypatch.setattr(SocketConnection, "_send", hindered)
            await create(socket, max_output_tokens=60, **VARIED)
            await eventually(lambda: served.gateway.turns.retained == 1)
            tap.set()
            events = await until_end(lambda: receive(socket))
        deltas = [event for event in events if event["type"] == "response.output_text.delta"]
        assert len(deltas) <= 2
        assert text_of(events) == events[-1]["response"]["output"][0]["content"][0]["text"]


class TestIdempotency:
    """`idempotency_key` of `response.create`."""

    async def test_the_same_key_is_the_same_turn(self, serve: Serve) -> None:
        """On this connection and on another one, while it runs and afterwards."""
        asked: dict[str, Any] = {"idempotency_key": "k", "max_output_tokens": 100, **VARIED}
        async with serve() as served, served.connect() as socket, served.connect() as other:
            await create(socket, **asked)
            first = await receive(socket)
            again = await ask(other, **asked)
            whole = [first, *await until_end(lambda: receive(socket))]
            later = await ask(socket, **asked)
            assert text_of(whole) == text_of(again) == text_of(later)
            assert {events[-1]["response"]["id"] for events in (whole, again, later)} == {first["response"]["id"]}

    async def test_another_body_or_a_key_of_another_kind_is_refused(self, serve: Serve) -> None:
        """409, and 400; the lane goes on."""
        async with serve() as served, served.connect() as socket:
            await ask(socket, idempotency_key="k", max_output_tokens=1)
            await create(socket, "other", idempotency_key="k")
            assert_error(await receive(socket), 409, "idempotency_key_reused", "idempotency_key")
            await create(socket, idempotency_key=1)
            assert_error(await receive(socket), 400, "invalid_value", "idempotency_key")
            assert (await ask(socket, max_output_tokens=1))[0]["type"] == "response.created"


@pytest.mark.parametrize(
    ("broken", "event"),
    [
        ("start", {"type": "response.create", "input": "hello"}),
        ("find", {"type": "response.resume", "response_id": "resp_1"}),
        ("find", {"type": "response.cancel", "response_id": "resp_1"}),
    ],
    ids=["create", "resume", "cancel"],
)
async def test_a_fault_of_ours_is_told_to_its_client_and_the_socket_lives_on(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, broken: str, event: dict[str, Any]
) -> None:
    async with serve() as served, served.connect() as socket:
        with monkeypatch.context() as patch:
            patch.setattr(served.gateway.turns, broken, AsyncMock(side_effect=ZeroDivisionError("secret detail")))
            await send(socket, stream_id="a", **event)
            error = await receive(socket)
        assert_error(error, 500, "internal_error")
        assert error["stream_id"] == "a"
        assert "secret" not in str(error)
        counted = served.gateway.metrics.registry.get_sample_value
        assert counted("roundhouse_background_failures_total", {"work": "websocket"}) == 1
        assert (await ask(socket, stream_id="a", max_output_tokens=1))[0]["type"] == "response.created"


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


def _two_tenants() -> list[TenantSettings]:
    return [
        TenantSettings(
            name=name, keys=[ApiKeySettings(id=name, sha256=hashlib.sha256(f"key-{name}".encode()).hexdigest())]
        )
        for name in ("one", "two")
    ]
