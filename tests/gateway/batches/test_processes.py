"""Batches whose gateway is killed: real processes, one Redis, one engine."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Sequence
from pathlib import Path

import openai
import pytest
import redis

from gateway.batches.store import QUEUE_KEY
from tests.gateway.batches.use import begun, ended, line, results
from tests.gateway.conftest import KEY, eventually
from tests.gateway.turns.processes import ANSWER, GatewayProcess, gateways, idle

pytestmark = pytest.mark.anyio

LINES = [line(f"question {number}", model="numbers", max_tokens=1000) for number in range(24)]


def client(process: GatewayProcess) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{process.url}/v1", api_key=KEY, max_retries=0)


async def some_written(asking: openai.AsyncOpenAI, batch: str) -> None:
    """Wait until some lines have results, and others do not."""
    async with asyncio.timeout(60):
        while True:
            counts = (await asking.batches.retrieve(batch)).request_counts
            if counts is not None and counts.completed > 4:
                assert counts.completed < len(LINES)
                return
            await asyncio.sleep(0.05)


async def running(processes: Sequence[GatewayProcess]) -> GatewayProcess:
    """Return the process that answers lines."""
    async with asyncio.timeout(60):
        while True:
            for process in processes:
                if (await process.metrics())["roundhouse_batch_lines_running"] > 0:
                    return process
            await asyncio.sleep(0.02)


async def check_whole(asking: openai.AsyncOpenAI, batch: str) -> None:
    done = await ended(asking, await asking.batches.retrieve(batch))
    assert (done.status, done.error_file_id) == ("completed", None)
    assert done.request_counts is not None and done.request_counts.completed == len(LINES)
    found = await results(asking, done.output_file_id)
    assert found.keys() == {each["custom_id"] for each in LINES}
    said = {each["response"]["body"]["choices"][0]["message"]["content"] for each in found.values()}
    assert said == {ANSWER}


async def test_another_gateway_goes_on_when_one_is_killed(model: Path, redis_url: str) -> None:
    """Every line ends with exactly one result, and nothing is left over."""
    with redis.Redis.from_url(redis_url) as store:
        store.flushall()
        async with gateways(2, model, redis_url, pause=0.01) as (processes, engine):
            async with client(processes[0]) as one, client(processes[1]) as other:
                batch = (await begun(one, LINES)).id
                await some_written(one, batch)
                killed = await running(processes)
                asking = other if killed is processes[0] else one
                await killed.stop(signal.SIGKILL)
                await check_whole(asking, batch)
            left = [process for process in processes if process is not killed]
            await idle(left, engine)
            assert store.hgetall(QUEUE_KEY) == {}
            assert '"level":"error"' not in left[0].log.read_text()


async def test_the_same_gateway_goes_on_when_it_is_back(model: Path, redis_url: str) -> None:
    """And one that is stopped leaves its batches at once: no lease is waited for."""
    with redis.Redis.from_url(redis_url) as store:
        store.flushall()
        async with gateways(1, model, redis_url, pause=0.01) as ([process], engine), client(process) as asking:
            batch = (await begun(asking, LINES)).id
            for how in (signal.SIGKILL, signal.SIGTERM):
                await some_written(asking, batch)
                await eventually(lambda: bool(engine.live), seconds=60)
                await process.stop(how)
                if how is signal.SIGTERM:
                    assert {value.split()[0] for value in store.hvals(QUEUE_KEY)} <= {b"0"}
                await process.start()
                await process.ready()
            await check_whole(asking, batch)
