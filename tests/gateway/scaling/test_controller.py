"""What a controller reads, writes and has done: a real Redis, leases as engines write them."""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
import urllib.error
import urllib.request
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from redis.asyncio import Redis

from gateway.access.directory.store import Directory
from gateway.config.windows import PoolWindow
from gateway.engines.wanted import WANTED_KEY
from gateway.records.directory import PoolControl
from gateway.scaling.controller import FAILURES, Controller
from gateway.scaling.listener import bind, listening
from gateway.scaling.records import RECORD_KEY, PoolRecord
from tests.conftest import redis_server
from tests.gateway.conftest import eventually
from tests.gateway.scaling.conftest import SECRET, Clock, Fleet, leading, settings

pytestmark = pytest.mark.anyio


class Pool:
    """A controller of one pool, whose looks a test makes."""

    def __init__(self, redis: Redis, **configured: Any) -> None:
        self.redis = redis
        self.clock = Clock()
        self.fleet = Fleet(redis, self.clock)
        self.settings = settings(**configured)
        self.controller = self.another()

    def another(self) -> Controller:
        """Return one more controller of the same pool."""
        return Controller(lambda: self.settings, self.redis, SECRET, self.fleet, clock=self.clock)

    async def look(self, seconds: float = 10.0) -> PoolRecord:
        """Have the controller look after some time."""
        self.clock.now += seconds
        assert await (await leading(self.controller)).look()
        return await self.record()

    async def record(self) -> PoolRecord:
        record = await self.controller.records.read("small")
        assert record is not None
        return record

    def series(self) -> dict[str, float]:
        """Values on the page of metrics, by name and labels."""
        families = text_string_to_metric_families(self.controller.metrics.page().decode())
        return {
            " ".join([sample.name, *sample.labels.values()]): sample.value
            for family in families
            for sample in family.samples
        }


async def test_the_fewest_engines_are_started_and_the_record_tells_why(redis: Redis) -> None:
    pool = Pool(redis, min_replicas=2)
    record = await pool.look()
    assert pool.fleet.told == [("start", "small")] * 2
    assert (record.desired, record.min_replicas, record.max_replicas, record.generation) == (2, 2, 4, 1)
    assert [reason.kind for reason in record.reasons] == ["load", "bounds"]
    again = await pool.look()
    assert (again.starting, again.since, again.generation) == (2, record.since, 1)
    assert len(pool.fleet.told) == 2


async def test_a_burst_starts_engines_and_quiet_time_drains_them(redis: Redis) -> None:
    pool = Pool(redis, scaling={"hold_seconds": 60.0, "drain_timeout": 45.0})
    await pool.look()
    [name] = pool.fleet.started
    await pool.fleet.ready(name)
    await pool.look()
    for _ in range(6):  # requests that fill more than one engine
        await pool.fleet.announce(name, load=120, waiting=60)
        record = await pool.look()
    assert record.desired > 1
    assert pool.series()["roundhouse_pool_desired_replicas small"] == record.desired
    assert pool.fleet.told.count(("start", "small")) == record.desired
    for started in [each.name for each in await pool.fleet.replicas() if each.state == "starting"]:
        await pool.fleet.ready(started)
    await pool.fleet.announce(name, load=0)
    for _ in range(60):
        record = await pool.look()
        for each in await pool.fleet.replicas():
            if each.state == "draining":
                await pool.fleet.end(each.name)
    assert record.desired == 1
    assert len(pool.fleet.started) == 1
    assert {call[2] for call in pool.fleet.told if call[0] == "stop"} == {45.0}


async def test_a_pool_that_sleeps_wakes_for_a_turn_and_goes_to_sleep_again(redis: Redis) -> None:
    pool = Pool(redis, min_replicas=0, scaling={"sleep_seconds": 100.0, "hold_seconds": 20.0})
    for _ in range(15):
        record = await pool.look()
    assert (record.desired, record.reasons[0].kind) == (0, "asleep")
    await redis.zadd(WANTED_KEY.format(pool="small"), {"resp_1": time.time()})
    assert await pool.controller._wanted_asleep()
    assert (await pool.look()).desired == 1
    assert pool.fleet.told[-1] == ("start", "small")
    await redis.delete(WANTED_KEY.format(pool="small"))
    await pool.fleet.ready([*pool.fleet.started][-1])
    for _ in range(15):
        record = await pool.look()
    assert record.desired == 0
    assert pool.fleet.told[-1][0] == "stop"


async def test_another_controller_goes_on_where_the_leader_has_stopped(redis: Redis) -> None:
    """What was remembered is in Redis; a write of the old leader is refused, and it does nothing."""
    pool = Pool(redis, min_replicas=1)
    old = await leading(pool.controller)
    await old.look()
    [name] = pool.fleet.started
    await pool.fleet.ready(name)
    fence = old.leadership.fence
    await redis.hset("rh1:pool-leader", "until", 0)  # its lease has ended, and it does not know
    pool.controller = new = pool.another()
    record = await pool.look()
    assert new.leadership.fence is not None and fence is not None and new.leadership.fence > fence
    assert record.remembered.memory.time == record.time
    assert name in record.remembered.history.engines

    pool.settings = settings(min_replicas=3)
    pool.fleet.told.clear()
    assert old.leadership.fence == fence
    await old.look()
    assert pool.fleet.told == []
    assert await pool.record() == record
    assert old.leadership.fence is None
    assert not await old.look()
    assert "roundhouse_pool_desired_replicas{" not in old.metrics.page().decode()


async def test_while_redis_is_away_nothing_changes() -> None:
    """Neither is anything decided for a while after it has come back without the leases."""
    server = redis_server()
    server.start()
    try:
        async with Redis.from_url(server.url) as redis:
            pool = Pool(redis, min_replicas=1)
            await pool.look()
            [name] = pool.fleet.started
            await pool.fleet.ready(name)
            await pool.look()
            pool.fleet.told.clear()
            server.stop()
            pool.clock.now += 10
            await pool.controller.look()
            server.start()
            record = await pool.look(30.0)
            assert pool.fleet.told == []
            assert [reason.kind for reason in record.reasons] == ["no_signal"]
    finally:
        server.stop()


async def test_starts_that_fail_are_put_off_for_longer_each_time_and_told(
    redis: Redis, caplog: pytest.LogCaptureFixture
) -> None:
    pool = Pool(redis, min_replicas=1, scaling={"retry_seconds": 20.0})
    await pool.look()
    starts = []
    for _ in range(60):
        for each in await pool.fleet.replicas():
            if each.state == "starting":
                starts.append(pool.clock.now)
                pool.fleet.fail(each.name, "no GPU")
        record = await pool.look()
    pauses = [later - earlier for earlier, later in itertools.pairwise(starts)]
    assert pauses == sorted(pauses) and pauses[0] >= 20 and max(pauses) >= 160
    assert record.remembered.failed_starts == len(starts) >= FAILURES
    [alert] = [reason for reason in record.alerts if reason.kind == "starts_fail"]
    assert f"{len(starts)} starts have failed" in alert.text
    assert any("no GPU" in str(vars(each)) for each in caplog.records if each.levelno == logging.ERROR)
    series = pool.series()
    assert series["roundhouse_pool_failed_starts_total small"] == len(starts)
    assert series["roundhouse_pool_reason small starts_fail"] == 1
    pool.clock.now += 300
    await pool.look()
    [name] = pool.fleet.started
    await pool.fleet.ready(name)
    record = await pool.look()
    assert (record.remembered.failed_starts, record.alerts) == (0, [])


async def test_operators_set_bounds(redis: Redis) -> None:
    """What does not fit the configuration any more has no effect."""
    pool = Pool(redis, min_replicas=1)
    directory = Directory(redis, secret=SECRET)
    await directory.write(PoolControl(name="small", min_replicas=3, max_replicas=8), actor="test", expected=0)
    record = await pool.look()
    assert (record.desired, record.max_replicas) == (3, 8)
    entries = [each.read() for each in await directory.audit.read(0, 10)]
    assert [(each.action, each.subject, each.actor) for each in entries] == [("pool.create", "small", "test")]
    pool.settings = settings(min_replicas=1, budget=2.0, replica_price=1.0)
    record = await pool.look()
    assert (record.min_replicas, record.max_replicas) == (1, 4)


async def test_engines_on_machines_that_stay_are_started_first(redis: Redis) -> None:
    """And again when one of them is gone."""
    pool = Pool(redis, min_replicas=3, on_demand_replicas=2)
    await pool.look()
    assert pool.fleet.told == [("start", "small", "stays"), ("start", "small", "stays"), ("start", "small")]
    first, second, third = pool.fleet.started
    for name in (first, second, third):
        await pool.fleet.ready(name, spot=name == third)
    await pool.look()
    assert len(pool.fleet.told) == 3
    await pool.fleet.end(first)
    await pool.look()
    assert pool.fleet.told[3:] == [("start", "small", "stays")]


async def test_a_window_holds_at_its_time_until_an_operator_sets_something_else(redis: Redis) -> None:
    pool = Pool(redis, min_replicas=1, scaling={"hold_seconds": 1.0})
    now = datetime.fromtimestamp(pool.clock.now, UTC)
    at = {"start": f"{now:%H:%M}", "end": f"{now + timedelta(hours=1):%H:%M}"}
    pool.settings = settings(min_replicas=1, windows=[PoolWindow(**at, min_replicas=3)], scaling={"hold_seconds": 1.0})
    record = await pool.look(0)
    assert (record.desired, record.min_replicas, record.max_replicas) == (3, 3, 4)
    await Directory(redis, secret=SECRET).write(PoolControl(name="small", max_replicas=2), actor="test", expected=0)
    record = await pool.look()
    assert (record.desired, record.min_replicas, record.max_replicas) == (2, 2, 2)
    record = await pool.look(3600)
    assert (record.min_replicas, record.max_replicas) == (1, 2)


async def test_without_an_actuator_decisions_are_published_only(redis: Redis) -> None:
    """What was asked for counts as starting."""
    pool = Pool(redis, registered=True, min_replicas=3)
    pool.fleet.pools = ()
    record = await pool.look()
    assert (record.desired, record.starting) == (3, 0)
    record = await pool.look()
    assert (record.desired, record.starting) == (3, 3)
    await pool.fleet.announce("small-a")
    record = await pool.look()
    assert (record.desired, record.ready, record.starting) == (3, 1, 2)
    assert pool.fleet.told == []


async def test_pools_without_max_replicas_are_left_alone(redis: Redis) -> None:
    pool = Pool(redis, registered=True, max_replicas=None)
    assert await (await leading(pool.controller)).look()
    assert not await redis.exists(RECORD_KEY.format(pool="small"))


async def test_a_controller_answers_probes_and_serves_metrics(redis: Redis) -> None:
    pool = Pool(redis, min_replicas=2, scaling={"period": 0.05, "lease": 1.0})
    with bind("127.0.0.1:0") as bound:
        url = f"http://127.0.0.1:{bound.getsockname()[1]}"

        def ask(path: str) -> tuple[int, str]:
            try:
                with urllib.request.urlopen(url + path, timeout=10) as answer:
                    return answer.status, answer.read().decode()
            except urllib.error.HTTPError as error:
                return error.code, error.read().decode()

        async with listening(pool.controller, bound):
            assert await asyncio.to_thread(ask, "/healthz") == (200, "ok\n")
            assert (await asyncio.to_thread(ask, "/readyz"))[0] == 503
            async with pool.controller.running():
                await eventually(lambda: pool.fleet.told != [])
                assert await asyncio.to_thread(ask, "/readyz") == (200, "ok\n")
                status, page = await asyncio.to_thread(ask, "/metrics")
                assert status == 200
                assert 'roundhouse_pool_desired_replicas{pool="small"} 2.0' in page
                assert "roundhouse_scaling_leader 1.0" in page
