"""Redis' primary is killed while turns run: three sentinels make its replica the primary, and nobody notices."""

from __future__ import annotations

import asyncio
import re
import time
from datetime import timedelta
from itertools import count
from pathlib import Path

import httpx2
import openai
import pytest
from redis.asyncio import Redis

from gateway.access.directory.store import Directory
from gateway.access.directory.view import View
from gateway.billing import report
from gateway.config.settings import RedisSettings, Settings
from gateway.errors import Unavailable
from gateway.records.directory import Tenant
from gateway.storage.connect import connect, replicas
from tests.e2e.conftest import KEY, Installation, installation
from tests.redis_topologies import Replicated, replicated

pytestmark = pytest.mark.anyio

WORKERS = 6
_numbers = count()


class Load:
    """Clients that ask one question after the other until they are stopped. An error of any turn is raised."""

    def __init__(self, running: Installation, tokens: int = 12) -> None:
        """Args: tokens: most tokens of an answer."""
        self.tokens = tokens
        self.client = openai.AsyncOpenAI(base_url=running.api, api_key=KEY, max_retries=0, timeout=60)
        self.turns = 0
        self.stopping = False

    async def run(self) -> None:
        async with self.client:
            await asyncio.gather(*(self._ask() for _ in range(WORKERS)))

    async def _ask(self) -> None:
        while not self.stopping:
            stream = await self.client.responses.create(
                model="small", input=f"Question {next(_numbers)}", max_output_tokens=self.tokens, stream=True
            )
            last = [event async for event in stream][-1]
            assert last.type in ("response.completed", "response.incomplete"), last
            self.turns += 1


class Changes:
    """Changes of the directory, one after the other; one that was refused is asked for again."""

    def __init__(self, directory: Directory) -> None:
        self.directory = directory
        self.made: list[str] = []
        self.refused = 0
        self.stopping = False

    async def run(self) -> None:
        while not self.stopping:
            name = f"tenant-{len(self.made)}"
            try:
                await self.directory.write(Tenant(name=name), actor="test")
                self.made.append(name)
            except Unavailable:
                self.refused += 1
            await asyncio.sleep(0.1)


async def metric(running: Installation, name: str) -> float:
    async with httpx2.AsyncClient(timeout=20) as client:
        page = (await client.get(f"{running.url}/metrics")).text
    found = re.search(rf"^{re.escape(name)} (\S+)$", page, flags=re.MULTILINE)
    assert found, name
    return float(found[1])


async def test_a_killed_primary_costs_no_turn_no_bill_and_no_change(engine: str, tmp_path: Path) -> None:
    with (
        replicated() as servers,
        installation(
            tiers=(), served={"small": engine}, ROUNDHOUSE_REDIS_URL=servers.url(), ROUNDHOUSE_REDIS_TIMEOUT="0.5"
        ) as running,
    ):
        settings = Settings(redis=RedisSettings(url=servers.url(), data=str(tmp_path)))
        async with connect(settings, timeout=5) as redis:
            changes = Changes(Directory(redis, replicas=replicas(settings)))
            view, load = View(changes.directory, poll=0.1), Load(running)
            await view.start()
            tasks = [asyncio.create_task(load.run()), asyncio.create_task(changes.run())]
            try:
                await _further(load, changes)
                away = await _fail_over(servers, running)
                await _further(load, changes)
            finally:
                load.stopping = changes.stopping = True
                await asyncio.gather(*tasks)
                await view.aclose()
            print(
                f"{load.turns} turns, none refused; limits were local for {away:.1f} s; {changes.refused} changes again"
            )
            assert not view.set_back and await metric(running, "roundhouse_directory_set_back") == 0
            verifier, problem = await changes.directory.audit.verify()
            assert problem is None and verifier.last.sequence >= len(changes.made)
            stored = await changes.directory.stored(Tenant, changes.made)
            assert None not in stored.values()
            await _billed(redis, running, load.turns)


async def _further(load: Load, changes: Changes) -> None:
    """Wait until each client has had another answer or so, and some more changes were made."""
    turns, made = load.turns + WORKERS, len(changes.made) + 5
    async with asyncio.timeout(60):
        while load.turns < turns or len(changes.made) < made:  # noqa: ASYNC110  both go on by themselves
            await asyncio.sleep(0.05)


async def _fail_over(servers: Replicated, running: Installation) -> float:
    """Kill the primary under load; return the seconds until the gateway reaches the new one."""
    killed = servers.primary
    servers.servers[killed].kill()
    began = time.monotonic()
    async with asyncio.timeout(60):
        await _until(running, "roundhouse_redis_up", 0)
        await _until(running, "roundhouse_redis_up", 1)
        await _until(running, 'roundhouse_breaker_state{target="limits"}', 0)
    return time.monotonic() - began


async def _until(running: Installation, name: str, value: float) -> None:
    while await metric(running, name) != value:  # noqa: ASYNC110  another process has it
        await asyncio.sleep(0.05)


async def _billed(redis: Redis, running: Installation, turns: int) -> None:
    """Every turn is in the usage report, once."""
    async with asyncio.timeout(60):
        await _until(running, "roundhouse_ledger_lag_seconds", 0)
    day = report.current_hour().replace(hour=0)
    query = report.ReportQuery(since=day - timedelta(days=1), until=day + timedelta(days=1))
    assert report.total(await report.report(redis, query)).turns == turns
