"""The ledger counts every turn once, against a real Redis that goes away and gateways that die."""

from __future__ import annotations

import asyncio
import contextlib
import os
import tempfile
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from redis.asyncio import Redis

from gateway.billing import ledger as ledger_module
from gateway.billing.entry import (
    TENANTS_KEY,
    Group,
    LedgerEntry,
    Totals,
    counters_key,
    entries_key,
    group,
    hour_of,
    parse_counters,
    periods_key,
    totals,
)
from gateway.billing.ledger import Ledger
from gateway.billing.store import LedgerStore, Numbered
from gateway.config.settings import UsageSettings
from gateway.storage.replicas import Replicas
from tests.chaos.processes import full_disk
from tests.conftest import redis_server
from tests.lost_writes import lose_since, remember
from tests.redis_topologies import replicated

pytestmark = pytest.mark.anyio

AT = int(datetime(2026, 11, 22, 14, 30, tzinfo=UTC).timestamp() * 1000)
HOUR = 3_600_000
DAY = "20261122"


def entry(number: int, **fields: Any) -> LedgerEntry:
    defaults: dict[str, Any] = {
        "turn": f"resp_{number}",
        "at": AT,
        "tenant": "acme",
        "key": "ci",
        "model": "llama",
        "outcome": "completed",
        "input": 10,
        "cached": 4,
        "output": 3,
        "picodollars": 7,
    }
    return LedgerEntry(**{**defaults, **fields})


@contextlib.asynccontextmanager
async def client(url: str) -> AsyncIterator[Redis]:
    async with Redis.from_url(url, socket_timeout=5) as redis:
        await redis.flushall()
        yield redis


async def counted(redis: Redis, tenant: str = "acme", period: str = DAY) -> dict[Group, Totals]:
    return parse_counters(await redis.hgetall(counters_key(tenant, period)))


async def entered(redis: Redis, tenant: str = "acme", day: str = DAY) -> list[LedgerEntry]:
    found = await redis.xrange(entries_key(tenant, day))
    return [msgspec.json.decode(fields[b"entry"], type=LedgerEntry) for _, fields in found]


def die(ledger: Ledger) -> None:
    """As SIGKILL would have it: the kernel closes the files, nothing else happens."""
    assert ledger._journal is not None
    ledger._journal.close()


class TestStore:
    """The script."""

    async def test_an_entry_adds_to_its_hour_and_day(self, redis_url: str) -> None:
        async with client(redis_url) as redis:
            store = LedgerStore(redis, UsageSettings())
            entries = [
                entry(1),
                entry(2, adapter="pirate"),
                entry(3, at=AT + HOUR),
                entry(4, cache="hit"),
                entry(5, picodollars=None),
                entry(6, tenant="other"),
            ]
            await store.write("w", [Numbered(index, one) for index, one in enumerate(entries, 1)])
            base, pirate = Group("llama", "", "ci"), Group("llama", "pirate", "ci")
            assert await counted(redis, period="2026112214") == {
                base: Totals(3, 1, 20, 8, 6, 7),
                pirate: Totals(1, 0, 10, 4, 3, 7),
            }
            assert await counted(redis, period="2026112215") == {base: Totals(1, 0, 10, 4, 3, 7)}
            assert await counted(redis) == {base: Totals(4, 1, 30, 12, 9, 14), pirate: Totals(1, 0, 10, 4, 3, 7)}
            assert await counted(redis, "other") == {base: Totals(1, 0, 10, 4, 3, 7)}
            assert await entered(redis) == entries[:5]
            assert await redis.zrange(TENANTS_KEY, 0, -1) == [b"acme", b"other"]
            assert await redis.zrange(periods_key("acme"), 0, -1) == [b"20261122", b"2026112214", b"2026112215"]
            # Evicting what has a time to live must not touch bills.
            assert {await redis.ttl(key) for key in await redis.keys("*")} == {-1}

    async def test_what_is_sent_again_is_not_counted_again(self, redis_url: str) -> None:
        """Not in another batch, nor after a clock that went back; another writer's numbers are its own."""
        async with client(redis_url) as redis:
            store = LedgerStore(redis, UsageSettings())
            numbered = [Numbered(index, entry(index, at=AT - index % 2 * HOUR)) for index in range(1, 8)]
            for batch in (numbered[:3], numbered[:5], numbered, numbered[2:]):
                await store.write("w", batch)
            assert sum((await counted(redis)).values(), Totals()).turns == len(await entered(redis)) == 7
            await store.write("other", numbered)
            assert sum((await counted(redis)).values(), Totals()).turns == 14

    async def test_sums_are_exact_beyond_what_lua_can_count(self, redis_url: str) -> None:
        async with client(redis_url) as redis:
            store = LedgerStore(redis, UsageSettings())
            large = 2**53 + 1
            await store.write("w", [Numbered(index, entry(index, picodollars=large)) for index in (1, 2, 3)])
            assert (await counted(redis))[Group("llama", "", "ci")].picodollars == 3 * large

    async def test_names_may_hold_anything(self, redis_url: str) -> None:
        async with client(redis_url) as redis:
            strange = entry(1, model="a|b%7C", adapter="c|turns", key="#%")
            await LedgerStore(redis, UsageSettings()).write("w", [Numbered(1, strange)])
            assert await counted(redis) == {group(strange): totals(strange)}

    async def test_single_turns_are_capped_and_sums_are_not(self, redis_url: str) -> None:
        async with client(redis_url) as redis:
            store = LedgerStore(redis, UsageSettings(entries_per_day=100))
            await store.write("w", [Numbered(index, entry(index)) for index in range(1, 1001)])
            assert 100 <= await redis.xlen(entries_key("acme", DAY)) < 300
            assert (await counted(redis))[Group("llama", "", "ci")].turns == 1000

    async def test_what_is_old_enough_is_deleted(self, redis_url: str) -> None:
        """Single turns first, then hours, then days, then the tenant itself."""
        async with client(redis_url) as redis:
            store = LedgerStore(redis, UsageSettings(entry_days=1, hour_days=2, day_days=3))
            await store.write("w", [Numbered(1, entry(1))])
            begin = datetime(2026, 11, 22, 15, tzinfo=UTC)
            left = []
            for days in range(6):
                await store.prune(begin + timedelta(days=days))
                left.append(sorted(key.decode().split(":")[1] for key in await redis.keys("*")))
        hours = ["usage-day", "usage-hour", "usage-periods", "usage-tenants"]
        assert left == [["usage", *hours], ["usage", *hours], hours, [*hours[:1], *hours[2:]], [], []]


class TestLedger:
    """One gateway's journal, flushes and death."""

    async def test_turns_reach_redis_and_leave_nothing_on_disk(self, redis_url: str, tmp_path: Path) -> None:
        async with client(redis_url) as redis:
            ledger = Ledger(redis, UsageSettings(flush_interval=0.01), tmp_path)
            await ledger.start()
            for index in range(5):
                ledger.open(f"resp_{index}", lambda: None)
                ledger.close(f"resp_{index}", entry(index) if index else None)
            await ledger.aclose()
            assert [one.turn for one in await entered(redis)] == ["resp_1", "resp_2", "resp_3", "resp_4"]
        assert os.listdir(tmp_path) == []

    async def test_without_redis_they_wait_on_disk(self, tmp_path: Path) -> None:
        """Also those of a process that ends before Redis is back."""
        server = redis_server()
        with server as url:
            async with client(url) as redis:
                ledger = Ledger(redis, UsageSettings(), tmp_path)
                await asyncio.to_thread(server.stop)
                ledger.close("resp_1", entry(1))
                assert not await ledger.flush()
                ledger.close("resp_2", entry(2))
                assert not await ledger.flush()
                die(ledger)
                await asyncio.to_thread(server.start)
                other = Ledger(redis, UsageSettings(), tmp_path)
                other.close("resp_3", entry(3))
                assert await other.flush()
                await other.adopt()
                assert not other.waiting
                assert sorted(one.turn for one in await entered(redis)) == ["resp_1", "resp_2", "resp_3"]

    @pytest.mark.parametrize("after", ["a turn", "a flush"])
    async def test_a_disk_that_has_room_again_takes_what_waited_in_memory(self, tmp_path: Path, after: str) -> None:
        """Also while Redis is away, so that a process that is killed then loses nothing."""
        server = redis_server()
        with server as url:
            async with client(url) as redis:
                ledger = Ledger(redis, UsageSettings(), tmp_path)
                await asyncio.to_thread(server.stop)
                ledger.close("resp_1", entry(1))
                with full_disk(os.getpid()):
                    ledger.close("resp_2", entry(2))
                    ledger.close("resp_3", entry(3))
                if after == "a turn":
                    ledger.close("resp_4", entry(4))
                else:
                    assert not await ledger.flush()
                die(ledger)
                await asyncio.to_thread(server.start)
                await Ledger(redis, UsageSettings(), tmp_path).adopt()
                turns = ["resp_1", "resp_2", "resp_3", *(["resp_4"] if after == "a turn" else [])]
                assert [one.turn for one in await entered(redis)] == turns

    @pytest.mark.parametrize("disk", [True, False])
    async def test_who_flushes_at_the_same_time_writes_once(self, redis_url: str, tmp_path: Path, disk: bool) -> None:
        (tmp_path / "file").write_text("")
        async with client(redis_url) as redis:
            ledger = Ledger(redis, UsageSettings(), tmp_path if disk else tmp_path / "file")
            for index in range(500):
                ledger.close(f"resp_{index}", entry(index))
            assert await asyncio.gather(ledger.flush(), ledger.flush(), ledger.flush()) == [True] * 3
            assert [one.turn for one in await entered(redis)] == [f"resp_{index}" for index in range(500)]

    async def test_a_disk_that_cannot_be_used_costs_safety_and_no_entry(self, redis_url: str, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        async with client(redis_url) as redis:
            ledger = Ledger(redis, UsageSettings(), tmp_path / "file")
            for index in range(500):
                ledger.close(f"resp_{index}", entry(index))
            assert await ledger.flush() and not ledger.waiting
            assert [one.turn for one in await entered(redis)] == [f"resp_{index}" for index in range(500)]

    async def test_what_neither_disk_nor_memory_can_hold_is_told(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        monkeypatch.setattr("gateway.billing.ledger.MAX_IN_MEMORY", 2)
        ledger = Ledger(Redis.from_url("unix:///nowhere"), UsageSettings(journal_bytes=1000), tmp_path)
        for index in range(20):
            ledger.close(f"resp_{index}", entry(index))
        assert ledger.dropped > 0
        assert "usage entries were lost" in caplog.text


class _Timeout(LedgerStore):
    """Loses answers of Redis: what was written arrives or not, and the writer cannot know."""

    def __init__(self, redis: Redis, settings: UsageSettings) -> None:
        super().__init__(redis, settings)
        self.fate: str = "answered"

    async def write(self, writer: str, entries: Any, **patience: Any) -> bool:
        fate, self.fate = self.fate, "answered"
        if fate == "lost":
            raise TimeoutError
        confirmed = await super().write(writer, entries[: len(entries) // 2] if fate == "half" else entries, **patience)
        if fate != "answered":
            raise TimeoutError
        return confirmed


class Machine:
    """Gateways on one machine, and what they ought to have counted."""

    def __init__(self, redis: Redis, folder: Path) -> None:
        self.redis, self.folder = redis, folder
        self.gateways = [self.start()]
        self.expected: dict[str, LedgerEntry] = {}
        self.open: list[tuple[Ledger, str]] = []
        self.checkpointed: dict[str, LedgerEntry] = {}
        self.progress: dict[str, int] = {}

    def start(self) -> Ledger:
        ledger = Ledger(self.redis, UsageSettings(), self.folder)
        ledger._store = _Timeout(self.redis, UsageSettings())
        return ledger

    def snapshot(self, turn: str) -> LedgerEntry:
        shown = entry(0, turn=turn, outcome="lost", output=self.progress[turn])
        self.checkpointed[turn] = shown
        return shown

    async def take(self, index: int, action: str, choice: int) -> None:
        """One action; `choice` picks whom it concerns."""
        gateway = self.gateways[choice % len(self.gateways)]
        match action:
            case "begin":
                turn = f"resp_{index}"
                self.progress[turn] = 0
                gateway.open(turn, lambda turn=turn: self.snapshot(turn))
                self.open.append((gateway, turn))
            case "deliver" if self.open:
                self.progress[self.open[choice % len(self.open)][1]] += choice
            case "end" | "refuse" if self.open:
                owner, turn = self.open.pop(choice % len(self.open))
                ended = entry(index, turn=turn, output=self.progress[turn]) if action == "end" else None
                owner.close(turn, ended)
                self.checkpointed.pop(turn, None)
                if ended is not None:
                    self.expected[turn] = ended
                else:
                    await owner.flush()  # so that the checkpoint forgets it
            case "half" | "lost" | "late":
                assert isinstance(gateway._store, _Timeout)
                gateway._store.fate = action
                await gateway.flush()
                gateway._store.fate = "answered"
            case "die":
                die(gateway)
                self.gateways.remove(gateway)
                for turn in [turn for owner, turn in self.open if owner is gateway]:
                    if turn in self.checkpointed:
                        self.expected[turn] = self.checkpointed[turn]
                self.open = [(owner, turn) for owner, turn in self.open if owner is not gateway]
                self.gateways = self.gateways or [self.start()]
            case "adopt":
                self.gateways.append(self.start())
                await self.gateways[-1].adopt()
            case _:
                await gateway.flush()


ACTIONS = st.sampled_from(["begin", "deliver", "end", "refuse", "flush", "half", "lost", "late", "die", "adopt"])


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(ACTIONS, st.integers(0, 100)), min_size=10, max_size=60))
async def test_whatever_happens_every_turn_counts_once(redis_url: str, actions: list[tuple[str, int]]) -> None:
    """Turns end, Redis' answers get lost before, amid or after a write, gateways die and others finish their work."""
    async with client(redis_url) as redis:
        with tempfile.TemporaryDirectory() as folder:
            machine = Machine(redis, Path(folder))
            for index, (action, choice) in enumerate(actions):
                await machine.take(index, action, choice)
            for owner, turn in machine.open:
                owner.close(turn, machine.snapshot(turn))
                machine.expected[turn] = machine.snapshot(turn)
            for gateway in machine.gateways:
                assert await gateway.flush()
                while gateway.waiting:
                    assert await gateway.flush()
            await machine.gateways[0].adopt()
            for gateway in machine.gateways:
                gateway._leave()
            assert os.listdir(folder) == []
            found = await entered(redis)
            assert sorted(one.turn for one in found) == sorted(machine.expected)
            assert {one.turn: one.output for one in found} == {
                turn: one.output for turn, one in machine.expected.items()
            }
            owed = sum((totals(one) for one in machine.expected.values()), Totals())
            for period in (DAY, hour_of(AT)):
                assert sum((await counted(redis, period=period)).values(), Totals()) == owed


class TestReplicas:
    """A fail-over to a replica takes nothing from a bill that the ledger has promised to keep."""

    async def test_what_no_replica_has_is_sent_again_before_what_comes_after_it(self, tmp_path: Path) -> None:
        with replicated(sentinels=0) as servers:
            primary, replica = servers.servers
            async with Redis.from_url(f"redis://127.0.0.1:{primary.port}") as redis:
                ledger = Ledger(redis, UsageSettings(), tmp_path, Replicas(1, 0.2))
                ledger.close("1", entry(1))
                await _flushed(ledger)
                replica.kill()
                before = await remember(redis)
                ledger.close("2", entry(2))
                await ledger.flush()
                assert ledger.waiting
                await lose_since(redis, before)  # as if the replica had become the primary
                ledger.close("3", entry(3))
                replica.start("--replicaof", "127.0.0.1", str(primary.port))
                await _flushed(ledger)
                assert [one.turn for one in await entered(redis)] == [entry(number).turn for number in (1, 2, 3)]
                await ledger.aclose()

    async def test_without_any_replica_entries_are_forgotten_after_a_while(
        self, redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(ledger_module, "CONFIRMATION", 0.05)
        async with client(redis_url) as redis:
            ledger = Ledger(redis, UsageSettings(), tmp_path, Replicas(1, 0.01))
            ledger.close("1", entry(1))
            await ledger.flush()
            assert ledger.waiting
            await _flushed(ledger)
            assert len(await entered(redis)) == 1
            await ledger.aclose()


async def _flushed(ledger: Ledger) -> None:
    async with asyncio.timeout(20):
        while ledger.waiting:
            await ledger.flush()
            await asyncio.sleep(0.01)
