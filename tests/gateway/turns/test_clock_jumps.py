"""Wall clocks that jump while turns run, of Redis and of a gateway: what `docs/failures.md` says of them."""

from __future__ import annotations

import asyncio
import hashlib
import random
import time
from collections.abc import Sequence
from email.utils import parsedate_to_datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import redis
from websockets.asyncio.client import connect

from tests.clocks import HOUR, WallClock, wall_clock
from tests.conftest import redis_server
from tests.gateway.conftest import KEY, eventually
from tests.gateway.turns.processes import ADMIN, OPERATOR, GatewayProcess, gateways, idle
from tests.gateway.turns.test_processes import Client, leftovers

pytestmark = pytest.mark.anyio

CLIENTS = 2
JUMPS = (HOUR, 0, -HOUR, 0)
"""Seconds that a clock is ahead: an hour forward and back again, an hour back and forward again."""
BUSY = f"[limits]\nconcurrent_turns = {CLIENTS}\nrequests_per_minute = 1000000\nburst_seconds = 60\n"
"""What is held by mistake would refuse a turn."""
FEW = 5
LIMITED = f"""
[[tenants]]
name = "demo"
limits = {{ requests_per_minute = {FEW} }}
keys = [{{ id = "demo", sha256 = "{hashlib.sha256(KEY.encode()).hexdigest()}" }}]
"""


async def ask(process: GatewayProcess) -> tuple[int, float]:
    """Status of a short turn, and after how many seconds to come back."""
    status, headers, _ = await process.call(
        "/v1/responses", {"model": "numbers", "input": "hi", "max_output_tokens": 2}
    )
    return status, float(headers.get("retry-after", 0))


async def set_clock(clock: WallClock, process: GatewayProcess, seconds: int) -> None:
    """Set the clock of a gateway, and wait until it has seen that."""
    clock.set(seconds)
    async with asyncio.timeout(60):
        while True:
            _, headers, _ = await process.call("/readyz")
            if abs(parsedate_to_datetime(headers["date"]).timestamp() - time.time() - seconds) < HOUR / 2:
                return
            await asyncio.sleep(0.1)


async def turns_go_on(processes: Sequence[GatewayProcess], jump: Any) -> int:
    """Clients ask, cut their sockets, and come back to any gateway, while `jump(seconds)` sets a clock; how many
    turns there were."""
    seed = random.SystemRandom().randrange(2**32)
    print(f"seed: {seed}")
    clients = [Client(f"j{index}", seed + index, processes) for index in range(CLIENTS)]
    over = False

    async def work(client: Client) -> None:
        while not over:
            await client.turn(cut=0.05)

    async def turned() -> None:
        nonlocal over
        for seconds in JUMPS:
            before = [client.turns for client in clients]
            await jump(seconds)
            # Everybody who was in the middle of a turn ends it, and one more.
            while any(client.turns < turns + 2 for client, turns in zip(clients, before, strict=True)):  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        over = True

    async with asyncio.timeout(300), asyncio.TaskGroup() as group:
        for client in clients:
            group.create_task(work(client))
        group.create_task(turned())
    return sum(client.turns for client in clients)


async def test_no_turn_is_lost_when_redis_clock_jumps(model: Path) -> None:
    """Turns are followed and resumed, nothing stays held, and gateways know of each other."""
    with wall_clock() as clock, redis_server(**clock.environment) as url, redis.Redis.from_url(url) as client:

        async def jump(seconds: int) -> None:
            before = client.time()[0]
            clock.set(seconds)
            # It looks at the clock once in each turn of its event loop.
            await eventually(lambda: abs(client.time()[0] - before) > HOUR / 2)

        async with gateways(2, model, url, pause=0.004, checkpoint_interval=0.1, tables=BUSY) as (processes, engine):
            turns = await turns_go_on(processes, jump)
            assert len(engine.generated) == turns, "a turn was started twice"
            await idle(processes, engine)
            assert leftovers(url) == {}
            held = client.hget("rh1:limit:{demo}", "tenant")
            assert held is not None and held.split()[4:9] == [b"0"] * 5, held


async def test_limits_when_redis_clock_jumps(model: Path) -> None:
    """An hour ahead brings what was used back, once; an hour back neither refuses for an hour nor gives anything."""
    with wall_clock() as clock, redis_server(**clock.environment) as url:
        async with gateways(1, model, url, tables=LIMITED) as ([process], _):

            async def granted() -> int:
                """How many are, until one is refused, which may come back within a minute."""
                count = 0
                while (answer := await ask(process))[0] == 200:
                    count += 1
                status, after = answer
                assert status == 429 and 0 < after <= 60, answer
                return count

            few = (FEW, FEW + 1)  # a new one comes every 12 seconds
            assert await granted() in few
            for seconds, brings in ((HOUR, few), (0, (0, 1)), (-HOUR, (0, 1)), (0, few)):
                clock.set(seconds)
                assert await granted() in brings, seconds


async def test_no_turn_is_lost_when_a_gateways_clock_jumps(model: Path, redis_url: str) -> None:
    """Of one of two, which goes on, takes part and is believed."""
    with redis.Redis.from_url(redis_url) as client, wall_clock() as clock:
        client.flushall()
        tables, environments = BUSY, [clock.lazy]
        async with gateways(
            2, model, redis_url, pause=0.004, checkpoint_interval=0.1, tables=tables, environments=environments
        ) as (processes, engine):
            turns = await turns_go_on(processes, partial(set_clock, clock, processes[0]))
            assert len(engine.generated) == turns, "a turn was started twice"
            await idle(processes, engine)
            assert leftovers(redis_url) == {}
            assert client.zcard("rh1:gateways") == 2


async def test_who_is_let_in_when_a_gateways_clock_jumps(model: Path, redis_url: str) -> None:
    """Tickets go by Redis' clock, wrong keys by one that nobody sets, what expires by the gateway's."""
    with redis.Redis.from_url(redis_url) as client, wall_clock() as clock:
        client.flushall()
        tables = LIMITED.replace(f"= {FEW} ", "= 1000 ") + OPERATOR
        async with gateways(1, model, redis_url, tables=tables, environments=[clock.lazy]) as ([process], _):
            ends = client.time()[0] + HOUR // 2
            status, _, made = await process.call("/admin/v1/tenants/demo/keys", {"expires_at": ends}, key=ADMIN)
            assert status == 201, made
            for seconds, expired in ((HOUR, True), (0, False), (-HOUR, False), (0, False)):
                _, _, ticket = await process.call("/v1/tickets", {})
                assert (await process.call("/v1/tickets", {}, key="wrong"))[0] == 401
                await set_clock(clock, process, seconds)
                address = f"ws://127.0.0.1:{process.port}/v1/responses"
                async with connect(address, subprotocols=["roundhouse.json", f"roundhouse.ticket.{ticket['ticket']}"]):
                    pass
                assert (await ask(process))[0] == 200
                # Nobody waits for an hour because of a typing mistake before the jump.
                assert (await process.call("/v1/tickets", {}, key="wrong"))[0] == 401
                assert (await process.call("/v1/tickets", {}, key=made["key"]))[0] == (401 if expired else 201)
