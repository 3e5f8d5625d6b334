"""`roundhouse scale`, and what `roundhouse doctor` says of pools, on a real Redis."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
import redis
from click.testing import CliRunner, Result
from redis.asyncio import Redis

from gateway.cli.check_result import CheckResult
from gateway.cli.engine_checks import scaling
from gateway.cli.root import main
from gateway.config.settings import load
from gateway.scaling.leader import Leadership
from gateway.scaling.records import PoolReason, PoolRecord, PoolRecords
from tests.gateway.conftest import eventually
from tests.ports import free_port

CONFIGURATION = """
[[pools]]
tier = "small"
name = "tiny"
model = "none"
{}

[[pools]]
tier = "large"
name = "huge"
model = "none"
registered = true
"""
TIMES = 'start = "08:00", end = "18:00"'
SCALED = "registered = true\nmin_replicas = 2\nmax_replicas = 4"


@pytest.fixture
def configure(redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Writes the configuration of an installation whose Redis is empty."""
    with redis.Redis.from_url(redis_url) as client:
        client.flushall()
    monkeypatch.setenv("REDIS_URL", redis_url)
    monkeypatch.setenv("ROUNDHOUSE_REDIS_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("ROUNDHOUSE_CONFIG", str(tmp_path / "roundhouse.toml"))
    monkeypatch.setenv("COLUMNS", "200")

    def configure(pool: str) -> None:
        Path(os.environ["ROUNDHOUSE_CONFIG"]).write_text(CONFIGURATION.format(pool))

    configure(SCALED)
    return configure


def roundhouse(*words: str, fails: bool = False) -> Result:
    result = CliRunner().invoke(main, words, catch_exceptions=False)
    assert (result.exit_code != 0) is fails, result.output
    return result


def decided(redis_url: str, *reasons: PoolReason, leads: bool = True, **fields: Any) -> None:
    """Write a pool's record, as a controller does."""
    values = {"desired": 3, "min_replicas": 2, "max_replicas": 4, "ready": 2, "starting": 1, "draining": 0}
    record = PoolRecord(**{**values, "offered": 1.7, "since": 1000.0, "time": 2000.0, "reasons": reasons, **fields})

    async def write() -> None:
        async with Redis.from_url(redis_url) as client:
            if leads:
                await Leadership(client, 60.0).renew()
            assert await PoolRecords(client).write("small", record, 1)

    asyncio.run(write())


async def doctor() -> list[CheckResult]:
    return [finding async for finding in scaling(load())]


def test_the_status_tells_sizes_reasons_and_who_decides(configure: Callable[[str], None], redis_url: str) -> None:
    assert "no pool was looked at yet" in roundhouse("scale", "status").output
    decided(redis_url, PoolReason("load", "work keeps 1.7 busy"), PoolReason("bounds", "max is 4", alert=True))
    shown = roundhouse("scale", "status").output
    assert re.search(r"small +3 +2 +1 +0 +2 +4 +\d+ d +work keeps 1.7 busy; max is 4", shown)
    assert re.search(r"controller \w{8} decides, under the number \d+", shown)
    status = json.loads(roundhouse("scale", "status", "--json").output)
    [pool] = status["pools"]
    assert (pool["pool"], pool["desired"], pool["offered"], pool["since"]) == ("small", 3, 1.7, 1000.0)
    assert (pool["alerts"], len(pool["reasons"])) == (["max is 4"], 2)
    assert status["leader"]["seconds"] > 50


def test_a_lease_that_has_ended_is_nobody_s(configure: Callable[[str], None], redis_url: str) -> None:
    decided(redis_url, leads=False)
    assert "nobody decides now" in roundhouse("scale", "status").output


def test_bounds_are_set_taken_back_and_in_the_audit_log(configure: Callable[[str], None]) -> None:
    assert "small pool may have 3 to 4 engines" in roundhouse("scale", "set", "small", "--min", "3").output
    assert "3 to 8 engines" in roundhouse("scale", "set", "small", "--max", "8").output
    assert "2 to 4 engines" in roundhouse("scale", "set", "small", "--reset").output
    entries = json.loads(roundhouse("audit", "list", "--json").output)
    assert [(entry["action"], entry["subject"]) for entry in entries] == [
        ("pool.update", "small"),
        ("pool.update", "small"),
        ("pool.create", "small"),
    ]


def test_bounds_that_cannot_be_are_refused(configure: Callable[[str], None]) -> None:
    assert "max_replicas" in roundhouse("scale", "set", "small", "--min", "5", fails=True).output
    assert "min_replicas = 0" in roundhouse("scale", "set", "small", "--min", "0", fails=True).output
    assert "no large pool with max_replicas" in roundhouse("scale", "set", "large", "--max", "5", fails=True).output
    assert "--reset" in roundhouse("scale", "set", "small", fails=True).output
    assert "--reset" in roundhouse("scale", "set", "small", "--max", "3", "--reset", fails=True).output
    configure("registered = true\nmax_replicas = 4\nbudget = 5\nreplica_price = 2")
    assert "the budget pays 2" in roundhouse("scale", "set", "small", "--min", "3", fails=True).output


@pytest.mark.parametrize(
    ("pool", "complaint"),
    [
        ("min_replicas = 3\nmax_replicas = 2", "nor above max_replicas"),
        ("min_replicas = 0", "set max_replicas too"),
        ("min_replicas = 2", "set max_replicas too"),
        ('engines = ["ws://127.0.0.1:1"]\nmax_replicas = 2', "leave out either"),
        ("max_replicas = 2\nbudget = 5", "price must not be negative, and positive where there is a budget"),
        ("max_replicas = 2\nbudget = 5\nreplica_price = 6", "fewer than min_replicas"),
        ("on_demand_replicas = 1", "on_demand_replicas of the small pool needs max_replicas"),
        ("max_replicas = 2\non_demand_replicas = 3", "nor above max_replicas"),
        (
            "max_replicas = 3\non_demand_replicas = 3\nbudget = 5\nreplica_price = 2",
            "the budget pays 2 replicas, fewer than on_demand_replicas",
        ),
        (f"windows = [{{ {TIMES}, min_replicas = 1 }}]", "windows need max_replicas"),
        (f"max_replicas = 2\nwindows = [{{ {TIMES} }}]", "a window needs min_replicas or max_replicas"),
        (f"max_replicas = 2\nwindows = [{{ {TIMES}, min_replicas = 0 }}]", "needs min_replicas = 0 of the pool"),
        (
            f"max_replicas = 9\nmin_replicas = 3\nwindows = [{{ {TIMES}, max_replicas = 2 }}]",
            "is 2, below min_replicas",
        ),
        (
            f"max_replicas = 2\nbudget = 5\nreplica_price = 2\nwindows = [{{ {TIMES}, min_replicas = 3 }}]",
            "fewer than min_replicas of a window, 3",
        ),
        (
            f'max_replicas = 2\nwindows = [{{ {TIMES}, timezone = "Mars/Base", min_replicas = 2 }}]',
            "'Mars/Base' is not known here",
        ),
    ],
)
def test_configurations_that_contradict_themselves_are_refused(
    configure: Callable[[str], None], pool: str, complaint: str
) -> None:
    configure(pool)
    output = roundhouse("config", "check", fails=True).output
    assert "small pool" in output and complaint in " ".join(output.split())


@pytest.mark.parametrize(
    "wrong", ['start = "25:00", end = "06:00"', 'start = "8:00", end = "18:00"', TIMES + ", days = []"]
)
def test_a_window_that_no_clock_or_calendar_has_is_refused(configure: Callable[[str], None], wrong: str) -> None:
    configure(f"max_replicas = 2\nwindows = [{{ {wrong}, min_replicas = 2 }}]")
    assert "windows[0]" in roundhouse("config", "check", fails=True).output


def test_windows_are_read(configure: Callable[[str], None]) -> None:
    configure(f'max_replicas = 4\nwindows = [{{ {TIMES}, days = ["mon"], timezone = "Asia/Tokyo", min_replicas = 2 }}]')
    pool, monday = load().pools[0], datetime(2026, 11, 30, 8, tzinfo=ZoneInfo("Asia/Tokyo")).timestamp()
    assert (pool.bounds_at(monday).min_replicas, pool.bounds_at(monday - 60).min_replicas) == (2, 1)


def test_a_controller_has_to_have_something_to_decide(configure: Callable[[str], None]) -> None:
    configure("max_replicas = 2")
    assert "decides itself how many" in " ".join(roundhouse("scale", "run", fails=True).output.split())
    configure("registered = true")
    assert "nothing to decide" in roundhouse("scale", "run", fails=True).output


@pytest.mark.anyio
async def test_doctor_tells_what_binds_a_pool(configure: Callable[[str], None], redis_url: str) -> None:
    async with Redis.from_url(redis_url) as client:
        [finding] = await doctor()
        assert (finding.name, finding.state) == ("controller", "warning")
        await Leadership(client, 60.0).renew()
        values: dict[str, Any] = {"min_replicas": 2, "max_replicas": 4, "ready": 4, "starting": 0, "draining": 0}
        for kind, remedy in (("bounds", "raise max_replicas"), ("budget", "raise the pool's budget"), ("load", "")):
            reason = PoolReason(kind, "it binds", alert=bool(remedy))
            record = PoolRecord(**values, desired=4, offered=5.0, since=0.0, time=0.0, reasons=(reason,))
            assert await PoolRecords(client).write("small", record, 1)
            controller, pool = await doctor()
            assert controller.state == "ok"
            assert (pool.name, pool.state) == ("engines of small", "warning" if remedy else "ok")
            assert pool.remedy.startswith(remedy) and "4 ready of 4" in pool.value


@pytest.mark.anyio
async def test_a_controller_of_its_own_publishes_and_ends_well(
    configure: Callable[[str], None], redis_url: str
) -> None:
    """And another one takes over from one that is killed, with a higher number."""
    at = f"127.0.0.1:{free_port()}"
    environment = {**os.environ, "ROUNDHOUSE_SCALING_PERIOD": "0.2", "ROUNDHOUSE_SCALING_LEASE": "1"}

    def value(metric: str) -> float | None:
        try:
            with urllib.request.urlopen(f"http://{at}/metrics", timeout=10) as answer:
                lines = answer.read().decode().splitlines()
        except OSError:
            return None
        return next((float(line.split()[-1]) for line in lines if line.startswith(metric)), None)

    def start(listen: str) -> subprocess.Popen[bytes]:
        words = ("-m", "gateway.cli", "scale", "run", "--listen", listen)
        return stack.enter_context(subprocess.Popen([sys.executable, *words], env=environment))

    with redis.Redis.from_url(redis_url) as client, contextlib.ExitStack() as stack:
        first = start("127.0.0.1:0")
        stack.callback(first.kill)
        await eventually(lambda: bool(client.exists("rh1:pool:small")), seconds=60)
        leader: Any = client.hgetall("rh1:pool-leader")
        second = start(at)
        stack.callback(second.kill)
        await eventually(lambda: value("roundhouse_scaling_leader") == 0.0, seconds=60)
        assert value("roundhouse_pool_desired_replicas") is None
        first.kill()
        await eventually(lambda: value("roundhouse_pool_desired_replicas") == 2.0, seconds=60)
        assert (value("roundhouse_scaling_fence") or 0) > int(leader[b"fence"])
        second.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(second.wait, 30) == 0
        assert client.hget("rh1:pool-leader", "until") == b"0"
