"""The decision log: what is in it, what is not, and that its decisions can be made again."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest
import redis.asyncio
from click.testing import CliRunner, Result

from gateway.cli import main
from gateway.decisions import KEY, DecisionLog, read
from gateway.settings import Router
from tests.gateway.conftest import EngineThread, Serve
from tests.gateway.test_pipeline import request, run
from tests.gateway.test_tiers import EXAM, HARD

pytestmark = pytest.mark.anyio


@pytest.fixture
def tiers(engine: EngineThread) -> dict[str, list[str]]:
    return {tier: [engine.address] for tier in ("small", "medium", "large")}


async def command(redis_url: str, *words: str) -> Result:
    """`roundhouse route <words>`; it has an event loop of its own."""
    runner = CliRunner(env={"ROUNDHOUSE_REDIS_URL": redis_url})
    return await asyncio.to_thread(runner.invoke, main, ["route", *words])


async def test_a_logged_decision_can_be_made_again_and_holds_no_text(serve: Serve, tiers: Any, redis_url: str) -> None:
    """Of `auto` only; with exploration, whose draw is logged."""
    async with serve(engines=tiers, router=Router(explore=0.2)) as served:
        for text in (HARD, EXAM, "hello xyzzy"):
            await run(served, request(text))
        await run(served, request("named", model="small"))
    async with redis.asyncio.Redis.from_url(redis_url) as client:
        found = await read(client, "demo", 10)
        raw = str(await client.xrange(KEY.format(tenant="demo")))
        assert 0 < await client.ttl(KEY.format(tenant="demo")) <= 35 * 24 * 3600
    assert len(found) == 3 and all(each.reproducible for each in found)
    assert found[1].choice.outlook.prediction is not None and found[1].choice.outlook.prediction.probabilities
    assert [each.features["lines"] for each in found] == [1, 11, 1]
    assert all(0 < each.choice.propensity <= 1 for each in found)
    assert not any(word in raw for word in ("xyzzy", "proof", "gas"))
    assert "3 decisions, 3 made again alike" in (await command(redis_url, "replay", "--tenant", "demo")).output


async def test_a_decision_that_comes_out_differently_is_reported(serve: Serve, tiers: Any, redis_url: str) -> None:
    async with serve(engines=tiers) as served:
        await run(served, request(HARD))
    async with redis.asyncio.Redis.from_url(redis_url) as client:
        (entry,) = await read(client, "demo", 1)
        forged = msgspec.structs.replace(entry, choice=msgspec.structs.replace(entry.choice, tier="small"))
        await client.xadd(KEY.format(tenant="demo"), {"decision": msgspec.json.encode(forged)})
    result = await command(redis_url, "replay", "--tenant", "demo")
    assert result.exit_code == 1 and entry.response in result.output


async def test_the_log_is_capped_and_can_be_switched_off(serve: Serve, tiers: Any, redis_url: str) -> None:
    async with serve(engines=tiers, router=Router(log_entries=0)) as served:
        await run(served, request(HARD))
    async with redis.asyncio.Redis.from_url(redis_url) as client:
        assert not await client.exists(KEY.format(tenant="demo"))
        async with serve(engines=tiers) as served:
            await run(served, request("another " + HARD))
        (entry,) = await read(client, "demo", 1)
        log = DecisionLog(client)
        for _ in range(1000):
            log.add("demo", entry, keep=100)
        await log.flush()
        assert await client.xlen(KEY.format(tenant="demo")) < 300


async def test_what_redis_does_not_take_is_written_later(serve: Serve, tiers: Any, redis_url: str) -> None:
    async with serve(engines=tiers) as served:
        await run(served, request(HARD))
    async with redis.asyncio.Redis.from_url(redis_url) as client:
        (entry,) = await read(client, "demo", 1)
        log = DecisionLog(redis.asyncio.Redis.from_url("redis://127.0.0.1:1"))
        log.add("late", entry, keep=100)
        await log.flush()
        log._redis = client
        await log.flush()
        assert await read(client, "late", 10) == [entry]


@pytest.mark.parametrize(("quality", "tier"), [("0", "small"), ("100", "large")])
def test_explain_shows_values_costs_and_the_choice(quality: str, tier: str) -> None:
    result = CliRunner().invoke(main, ["route", "explain", "--quality", quality, EXAM])
    assert result.exit_code == 0
    assert f"chosen: {tier}, by learnt" in result.output
    for shown in ("value", "cost", "strangeness", "features: words", "small", "medium", "large"):
        assert shown in result.output


def test_the_key_is_documented() -> None:
    assert f"`{KEY.format(tenant='<tenant>')}`" in Path("docs/redis-keys.md").read_text("utf-8")
