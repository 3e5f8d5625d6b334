"""What `roundhouse doctor` says of engines that announce themselves, on a real Redis."""

from __future__ import annotations

import os
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from redis.asyncio import Redis

from engine.checkpoint.opening import open_checkpoint
from engine.registration import INDEX_KEY, LEASE_KEY, LIFETIME, MAX_SKEW, Lease, sealed
from engine.wire import PROTOCOL_VERSION
from gateway.access.identity.secret import derive
from gateway.cli.check_result import CheckResult
from gateway.cli.engine_checks import announced
from gateway.config.settings import DEMO, PoolSettings, RedisSettings, Settings, demo_settings
from tests.engine.test_registration import LEASE

pytestmark = pytest.mark.anyio

SECRET = bytes(range(32))
MODEL = DEMO / "model"
ID = "small-00000a"


class Board:
    """An installation with one pool that engines join, and the leases in its Redis."""

    def __init__(self, redis: Redis, url: str, folder: Path) -> None:
        self.redis = redis
        self._base = msgspec.structs.replace(demo_settings(), redis=RedisSettings(url=url, data=str(folder)))
        self._revision = open_checkpoint(MODEL).revision

    def settings(self, **fields: Any) -> Settings:
        pool = {"tier": "small", "name": "demo", "model": str(MODEL), "registered": True, **fields}
        return msgspec.structs.replace(self._base, pools=[PoolSettings(**pool)])

    async def announce(self, id: str = ID, *, secret: bytes = SECRET, age: float = 0.0, **fields: Any) -> None:
        """Write a lease. Args: age: seconds ago at which it was written."""
        own = {"id": id, "revision": self._revision, "time": time.time() - age, **fields}
        lease: Lease = msgspec.structs.replace(LEASE, **own)
        left = int(1000 * (LIFETIME - age))
        await self.redis.set(LEASE_KEY.format(pool="small", id=id), sealed(lease, derive(secret, "engines")), px=left)
        await self.redis.zadd(INDEX_KEY.format(pool="small"), {id: lease.time})

    async def look(self, **fields: Any) -> dict[str, CheckResult]:
        found = [finding async for finding in announced(self.settings(**fields))]
        assert all(finding.remedy for finding in found if finding.state != "ok")
        return {finding.name: finding for finding in found}


@pytest.fixture
async def board(redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Board]:
    monkeypatch.setenv("ROUNDHOUSE_SECRET", SECRET.hex())
    async with Redis.from_url(redis_url) as redis:
        await redis.flushall()
        yield Board(redis, redis_url, tmp_path)


async def test_engines_that_gateways_use_are_counted(board: Board) -> None:
    """One whose lease was written some seconds ago has a clock that is as right as the others'."""
    await board.announce()
    await board.announce("small-00000b", state="draining", age=5.0)
    [summary] = (await board.look()).values()
    assert (summary.name, summary.state) == ("leases of small", "ok")
    assert summary.value == "2 engines announced (1 draining, 1 ready)"


@pytest.mark.parametrize(
    ("pool", "state"),
    [
        ({}, "broken"),
        ({"min_replicas": 0}, "ok"),
        ({"registered": False, "max_replicas": 2}, "note"),
    ],
)
async def test_a_pool_without_an_engine_is_broken_unless_it_may_be(
    board: Board, pool: dict[str, Any], state: str
) -> None:
    [summary] = (await board.look(**pool)).values()
    assert (summary.state, summary.value) == (state, "0 engines announced")


@pytest.mark.parametrize(
    ("lease", "says"),
    [
        ({"secret": bytes(32)}, "its lease is not believed: its seal"),
        ({"time": 1000.0}, "its lease is not believed: it was written"),
        ({"model": "llama-70b", "revision": "0123456789abcdef"}, "it is not used: it serves llama-70b"),
        (
            {"protocol_min": PROTOCOL_VERSION + 1, "protocol": PROTOCOL_VERSION + 2},
            f"it is not used: it speaks versions {PROTOCOL_VERSION + 1} to {PROTOCOL_VERSION + 2} of the protocol",
        ),
    ],
)
async def test_engines_that_no_gateway_uses_are_named(board: Board, lease: dict[str, Any], says: str) -> None:
    await board.announce("small-00000b")
    await board.announce(**lease)
    finding = (await board.look())[ID]
    assert finding.state == "warning" and finding.value.startswith(says)


@pytest.mark.parametrize(("seconds", "says"), [(60.0, "60 s ahead of"), (-60.0, "60 s behind")])
async def test_a_clock_that_is_off_is_told_before_the_lease_is_refused(board: Board, seconds: float, says: str) -> None:
    assert abs(seconds) < MAX_SKEW
    await board.announce(time=time.time() + seconds)
    assert says in (await board.look())[ID].value


async def test_engines_that_ended_without_withdrawing_are_noted_and_stay_in_the_index(board: Board) -> None:
    await board.announce()
    await board.announce("small-0000ff")
    await board.redis.delete(LEASE_KEY.format(pool="small", id="small-0000ff"))
    for _ in range(2):
        summary = (await board.look())["leases of small"]
        assert summary.state == "note" and "1 ended without withdrawing" in summary.value
        assert "small-0000ff" in summary.remedy


async def test_an_installation_without_a_secret_gets_none(
    board: Board, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ROUNDHOUSE_SECRET")
    assert await board.look() == {}
    assert os.listdir(tmp_path) == []
