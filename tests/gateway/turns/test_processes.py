"""Turns against the odds: sockets cut, gateways changed, restarted and killed, with real processes under load."""

from __future__ import annotations

import asyncio
import json
import random
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import redis
from websockets.asyncio.client import ClientConnection
from websockets.exceptions import WebSocketException

from gateway.access.identity.secret import derive
from gateway.storage.presence import LOST_KEY
from gateway.turns.ids import ResponseIds, gateway_of
from tests.gateway.conftest import eventually, receive, send
from tests.gateway.turns.processes import ANSWER, CountingEngine, GatewayProcess, gateways, idle

pytestmark = pytest.mark.anyio

CLIENTS = 12
ENDS = ("response.completed", "response.incomplete", "response.failed")


class Client:
    """Asks one question after another, and comes back to any gateway whenever its socket is gone."""

    def __init__(self, name: str, seed: int, processes: Sequence[GatewayProcess]) -> None:
        self.name = name
        self.random = random.Random(seed)
        self.processes = processes
        self.cuts = 0
        self.switches = 0
        self.turns = 0

    async def turn(self, *, cut: float) -> None:
        """One whole turn; after each event its socket is cut with probability `cut`."""
        self.turns += 1
        key, text, last, id = f"{self.name}-{self.turns}", "", -1, None
        process = self.random.choice(self.processes)
        while True:
            try:
                async with asyncio.timeout(60), process.connect() as socket:
                    if id is None:
                        # It may have been asked before: the same key is the same turn.
                        await send(socket, type="response.create", input=key, idempotency_key=key)
                    else:
                        await send(socket, type="response.resume", response_id=id, starting_after=last)
                    while True:
                        event = await receive(socket)
                        if event["type"] == "error":
                            assert event["error"]["code"] == "draining", event
                            break
                        if event["type"] == "roundhouse.draining":
                            if self.random.random() < 0.5:
                                break  # the others stay until the end of their turn
                            continue
                        assert event["sequence_number"] > last, f"{self.name}: {event} after {last}"
                        last = event["sequence_number"]
                        if event["type"] == "response.created":
                            id = event["response"]["id"]
                        elif event["type"] == "response.output_text.delta":
                            text += event["delta"]
                        elif event["type"] in ENDS:
                            assert event["type"] == "response.completed", event
                            assert event["response"]["output"][0]["content"][0]["text"] == ANSWER
                            assert text == ANSWER, f"{self.name}: lost or doubled"
                            return
                        if self.random.random() < cut:
                            self._cut(socket)
                            break
            except (WebSocketException, OSError):
                await asyncio.sleep(0.05)  # it restarts
            if id is None:
                text, last = "", -1
            before, process = process, self.random.choice(self.processes)
            self.switches += process is not before

    def _cut(self, socket: ClientConnection) -> None:
        self.cuts += 1
        if self.random.random() < 0.5:
            socket.transport.abort()  # without a word


KEPT = (b"rh1:{directory}", b"rh1:usage", b"rh1:limit:", b"rh1:limit-tenants", b"rh1:gateways")
"""What lives for ever: Redis may drop under pressure whatever has an end."""


def leftovers(redis_url: str) -> dict[str, Any]:
    """Keys that should not be there, and reservations that nobody settled."""
    with redis.Redis.from_url(redis_url) as client:
        found: dict[str, Any] = {}
        for name in client.scan_iter():
            if client.ttl(name) == -1 and not name.startswith(KEPT):
                found[name.decode()] = "lives for ever"
            if b"lease" in name and client.type(name) == b"zset" and client.zcard(name):
                found[name.decode()] = client.zrange(name, 0, -1)
        return found


@pytest.fixture
def empty_redis(redis_url: str) -> str:
    with redis.Redis.from_url(redis_url) as client:
        client.flushall()
    return redis_url


@pytest.mark.parametrize("cuts", [40, pytest.param(1000, marks=pytest.mark.deep)])
async def test_many_cuts_lose_and_double_nothing(model: Path, empty_redis: str, cuts: int) -> None:
    """Clients cut their sockets at random and come back to either of two gateways; every answer is whole."""
    seed = random.SystemRandom().randrange(2**32)
    print(f"seed: {seed}")
    async with gateways(2, model, empty_redis) as (processes, engine):
        clients = [Client(f"c{index}", seed + index, processes) for index in range(CLIENTS)]

        async def work(client: Client) -> None:
            while sum(other.cuts for other in clients) < cuts:
                await client.turn(cut=0.06)

        async with asyncio.TaskGroup() as group:
            for client in clients:
                group.create_task(work(client))
        turns = sum(client.turns for client in clients)
        print(f"{turns} turns, {sum(c.cuts for c in clients)} cuts, {sum(c.switches for c in clients)} switches")
        assert len(engine.generated) == turns, "a turn was started twice"
        await idle(processes, engine)
        assert leftovers(empty_redis) == {}


async def test_a_rolling_restart_loses_no_turn(model: Path, empty_redis: str) -> None:
    """Each gateway in its turn is told to stop and started again, while clients go on."""
    seed = random.SystemRandom().randrange(2**32)
    print(f"seed: {seed}")
    async with gateways(2, model, empty_redis, pause=0.05) as (processes, engine):
        clients = [Client(f"r{index}", seed + index, processes) for index in range(CLIENTS // 4)]
        restarted = asyncio.Event()

        async def work(client: Client) -> None:
            while not restarted.is_set():
                await client.turn(cut=0.01)

        async def roll() -> None:
            for process in processes:
                assert await process.stop() == 0
                await process.start()
                await process.ready()
            restarted.set()

        async with asyncio.TaskGroup() as group:
            for client in clients:
                group.create_task(work(client))
            group.create_task(roll())
        assert len(engine.generated) == sum(client.turns for client in clients)
        await idle(processes, engine)
        assert leftovers(empty_redis) == {}


async def test_what_still_runs_at_the_end_of_the_grace_is_kept_as_far_as_it_came(model: Path, empty_redis: str) -> None:
    """Cancelled, stored with the tokens delivered, and read from the other gateway."""
    async with gateways(2, model, empty_redis, drain_timeout=0.5) as ((one, other), engine):
        async with one.connect() as socket, other.connect() as elsewhere:
            id = await _begun(socket, engine)
            await send(elsewhere, type="response.resume", response_id=id)
            assert await one.stop() == 0
            end = await _last(elsewhere)
            assert end["response"]["status"] == "cancelled"
            assert end["response"]["usage"]["output_tokens"] == engine.sent
        async with other.connect() as socket:
            await send(socket, type="response.resume", response_id=id)
            assert await _last(socket) == end


async def test_a_killed_gateways_turns_fail_once_with_what_was_seen(model: Path, empty_redis: str) -> None:
    """For who follows, and for who asks later; the engine is free again."""
    async with gateways(3, model, empty_redis, checkpoint_interval=0.1) as ((one, *others), engine):
        async with one.connect() as socket, others[0].connect() as elsewhere:
            id = await _begun(socket, engine)
            unseen = await _begun(socket, engine, stream_id="b")
            await send(elsewhere, type="response.resume", response_id=id)
            await receive(elsewhere)
            with redis.Redis.from_url(empty_redis) as client:
                keys = [f"rh1:turn:{{demo}}:{each}" for each in (id, unseen)]
                await eventually(lambda: all(client.hget(key, "state") == b"running" for key in keys))
            await one.stop(signal.SIGKILL)
            end = await _last(elsewhere)
        assert (end["type"], end["response"]["error"]["type"]) == ("response.failed", "gateway_lost")
        assert ANSWER.startswith(end["response"]["output"][0]["content"][0]["text"])
        for wanted in (id, unseen):
            ends = []
            for process in others:
                async with process.connect() as socket:
                    await send(socket, type="response.resume", response_id=wanted)
                    ends.append(await _last(socket))
            assert ends[0] == ends[1]
            assert ends[0]["response"]["error"]["type"] == "gateway_lost"
            assert ends[0]["response"]["output"][0]["content"][0]["text"]
        engine.gate.set()
        await idle(others, engine)
        with redis.Redis.from_url(empty_redis) as client:
            # Long before its leases end.
            await eventually(lambda: not any(held.startswith(b"1") for held in client.hvals("rh1:limit-held:{demo}")))


async def test_a_killed_gateway_is_noticed_within_three_seconds(model: Path, empty_redis: str) -> None:
    """Followers are told, and a turn of which nothing is kept yet has failed: it is not unknown."""
    async with gateways(2, model, empty_redis, checkpoint_interval=60) as ((one, other), engine):
        async with one.connect() as socket, other.connect() as elsewhere:
            id = await _begun(socket, engine)
            unseen = await _begun(socket, engine, stream_id="b")
            await send(elsewhere, type="response.resume", response_id=id)
            await receive(elsewhere)
            began = time.monotonic()
            await one.stop(signal.SIGKILL)
            end = await _last(elsewhere)
            noticed = time.monotonic() - began
        print(f"noticed after {noticed:.2f} s")
        assert (end["type"], end["response"]["error"]["type"]) == ("response.failed", "gateway_lost")
        assert noticed < 8, "a heartbeat too late, on a machine that has other things to do"
        for wanted in (id, unseen):
            status, _, body = await other.call(f"/v1/responses/{wanted}")
            assert (status, body["status"], body["error"]["type"]) == (200, "failed", "gateway_lost")
            async with other.connect() as socket:
                # Its client has seen more than was kept.
                await send(socket, type="response.resume", response_id=wanted, starting_after=5000)
                end = await _last(socket)
                assert (end["sequence_number"], end["response"]["error"]["type"]) == (5001, "gateway_lost")
        made_up = unseen[:-1] + ("1" if unseen[-1] == "0" else "0")
        assert (await other.call(f"/v1/responses/{made_up}"))[0] == 404
        assert (await other.call(f"/v1/responses/{unseen}", method="DELETE"))[0] == 200
        assert (await other.call(f"/v1/responses/{unseen}"))[0] == 404


async def test_a_gateway_that_stands_still_for_seconds_is_not_taken_for_dead(model: Path, empty_redis: str) -> None:
    """Its turn goes on where it was, for who follows and for who asks."""
    async with gateways(2, model, empty_redis, checkpoint_interval=0.1) as ((one, other), engine):
        async with one.connect() as socket, other.connect() as elsewhere:
            id = await _begun(socket, engine)
            await send(elsewhere, type="response.resume", response_id=id)
            await receive(elsewhere)
            assert one.process is not None
            one.process.send_signal(signal.SIGSTOP)
            await asyncio.sleep(5)
            status, _, body = await other.call(f"/v1/responses/{id}")
            assert (status, body["status"]) == (200, "in_progress")
            one.process.send_signal(signal.SIGCONT)
            engine.pause = 0.002
            engine.gate.set()
            ends = await asyncio.gather(_last(socket), _last(elsewhere))
        assert ends[0] == ends[1] and ends[0]["type"] == "response.completed"
        status, _, body = await other.call(f"/v1/responses/{id}")
        assert (status, body["status"]) == (200, "completed")


async def test_a_gateway_that_came_back_says_itself_which_turns_it_has(model: Path, empty_redis: str) -> None:
    """Others have taken it for dead; what it does not know is unknown, and has not failed."""
    async with gateways(2, model, empty_redis) as ((one, other), _):
        ids = ResponseIds(derive(bytes.fromhex(one.environment["ROUNDHOUSE_SECRET"]), "response ids"), await _id(one))
        with redis.Redis.from_url(empty_redis) as client:
            client.zadd(LOST_KEY, {await _id(one): time.time()})
        for asked in (one, other):
            assert (await asked.call(f"/v1/responses/{ids.new('demo')}"))[0] == 404


async def _id(process: GatewayProcess) -> str:
    """The id of a gateway."""
    async with process.connect() as socket:
        await send(socket, type="response.create", input="hello")
        created = await receive(socket)
        await _last(socket)
    return gateway_of(created["response"]["id"]) or ""


async def _begun(socket: ClientConnection, engine: CountingEngine, **fields: str) -> str:
    """Start a turn, and hold the engine once some of its text has come; its id."""
    engine.gate.set()
    engine.pause = 0.02
    await send(socket, type="response.create", input="hello", **fields)
    id, deltas = "", 0
    while deltas < 5:
        event = await receive(socket)
        if event.get("stream_id") != fields.get("stream_id"):
            continue
        id = event["response"]["id"] if event["type"] == "response.created" else id
        deltas += event["type"] == "response.output_text.delta"
    engine.gate.clear()
    return id


async def _last(socket: ClientConnection) -> dict[str, Any]:
    """The event that ends the turn."""
    async with asyncio.timeout(60):
        while True:
            event: dict[str, Any] = json.loads(await socket.recv())
            if event["type"] in ENDS:
                return event
