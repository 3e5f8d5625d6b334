"""Engines that announce themselves: real Redis, real engines, real gateways."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from redis.asyncio import Redis

from engine.checkpoint.files import served_revision
from engine.checkpoint.opening import open_checkpoint
from engine.registration import INDEX_KEY, LEASE_KEY, Lease, sealed
from engine.server.announcer import Announcer
from gateway.access.identity.secret import derive, installation_secret
from gateway.config.settings import TIERS, PoolSettings, RedisSettings, RouterSettings, demo_settings
from gateway.engines import leases as leases_module
from gateway.engines.leases import LOOK_SECONDS, LeasedEngines
from gateway.engines.pools import Engines
from gateway.records.directory import ReplicaControl
from gateway.storage.redis import BatchingRedis
from gateway.telemetry.metrics.process import Metrics
from tests.engine.test_registration import LEASE
from tests.gateway.conftest import EngineThread, Serve, Served, eventually
from tests.gateway.pipeline.turns import request, routes, run

pytestmark = pytest.mark.anyio

FIRST, SECOND, FORGED = "small-00000a", "small-00000b", "small-0000ff"


class Board:
    """Writes leases as engines of one model do."""

    def __init__(self, redis: Redis, key: bytes, revision: str) -> None:
        self._redis = redis
        self.key = key
        self._revision = revision

    async def announce(self, id: str, address: str, *, key: bytes | None = None, **fields: Any) -> None:
        own = {"id": id, "address": address, "server_name": None, "revision": self._revision}
        now = {**own, "time": time.time(), **fields}
        lease: Lease = msgspec.structs.replace(LEASE, **now)
        await self._redis.set(LEASE_KEY.format(pool=lease.pool, id=id), sealed(lease, key or self.key))
        await self._redis.zadd(INDEX_KEY.format(pool=lease.pool), {id: lease.time})

    async def end(self, id: str) -> None:
        await self._redis.delete(LEASE_KEY.format(pool="small", id=id))


@pytest.fixture
async def board(
    serve: Serve, model: Path, redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Board]:
    monkeypatch.setattr(leases_module, "LOOK_SECONDS", 0.02)
    settings = msgspec.structs.replace(demo_settings(), redis=RedisSettings(data=str(tmp_path / "data")))
    async with Redis.from_url(redis_url) as redis:
        secret = installation_secret(settings)
        yield Board(redis, derive(secret, "engines"), open_checkpoint(model).revision)


def fleet(model: Path) -> Engines:
    """Return three pools of engines that announce themselves."""
    pools = [PoolSettings(tier=tier, name=tier, model=str(model), registered=True) for tier in TIERS]
    return Engines(pools, RouterSettings())


def leases_of(count: int, model: Path) -> list[Lease]:
    """Return leases of so many engines, which nobody can connect to."""
    return [
        msgspec.structs.replace(
            LEASE,
            pool=TIERS[number % 3],
            id=f"engine-{number:06x}",
            address=f"unix:///none/{number}",
            server_name=None,
            revision=open_checkpoint(model).revision,
            time=time.time(),
        )
        for number in range(count)
    ]


def names(served: Served) -> dict[str, bool]:
    return {engine.name: engine.client.connected for engine in served.gateway.engines.pools[0].engines}


async def test_engines_that_announce_themselves_answer(
    serve: Serve, board: Board, model: Path, engine: EngineThread
) -> None:
    """Beside configured ones. An engine goes when its lease has ended and its connection is broken, not before."""
    with EngineThread(model, id=SECOND) as other:
        async with serve(pool={"registered": True}) as served:
            assert names(served) == {"small-0": True}
            await board.announce(SECOND, other.address)
            await eventually(lambda: names(served) == {"small-0": True, SECOND: True})
            seen = {routes(await run(served, request(f"hello {number}")))[-1].replica for number in range(40)}
            assert seen == {"small-0", SECOND}
            await board.end(SECOND)
            await asyncio.sleep(0.2)
            assert names(served) == {"small-0": True, SECOND: True}
            await asyncio.to_thread(other.stop)
            await eventually(lambda: names(served) == {"small-0": True}, lambda: names(served))
            await served.settle()


async def test_an_engine_is_joined_within_two_seconds(
    serve: Serve, board: Board, engine: EngineThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first look after its lease connects it, for a turn that waits, and gateways look every second."""
    assert LOOK_SECONDS <= 1
    monkeypatch.setattr(leases_module, "LOOK_SECONDS", 3600.0)
    async with serve(engines={"small": []}, pool={"registered": True, "min_replicas": 0}) as served:
        assert names(served) == {}
        await board.announce(FIRST, engine.address)
        turn = asyncio.create_task(run(served, request()))
        gateway = served.gateway
        await LeasedEngines(gateway.redis, board.key, gateway.engines, gateway.metrics.engines).look()
        assert routes(await turn)[-1].replica == FIRST


async def test_a_forged_lease_is_refused_and_told_of_once(
    serve: Serve, board: Board, engine: EngineThread, caplog: pytest.LogCaptureFixture
) -> None:
    """Whoever can write to Redis gets no prompts."""
    await board.announce(FIRST, engine.address)
    async with serve(engines={"small": []}, pool={"registered": True}) as served:
        await board.announce(FORGED, engine.address.replace("127.0.0.1", "127.0.0.2"), key=bytes(32))
        refused = "roundhouse_engine_leases_refused_total"
        registry = served.gateway.metrics.registry
        await eventually(lambda: registry.get_sample_value(refused, {"reason": "seal"}) == 1)
        await asyncio.sleep(0.2)
        assert registry.get_sample_value(refused, {"reason": "seal"}) == 1
        assert names(served) == {FIRST: True}
        assert [record.replica for record in caplog.records if record.message == "lease refused"] == [FORGED]


async def test_of_idle_engines_those_of_the_gateways_zone_answer(
    serve: Serve, board: Board, model: Path, engine: EngineThread
) -> None:
    sleeps = {"registered": True, "min_replicas": 0}
    with EngineThread(model, id=SECOND) as other:
        async with serve(engines={"small": []}, pool=sleeps, router=RouterSettings(zone="b")) as served:
            await board.announce(FIRST, engine.address, zone="a", spot=False)
            await board.announce(SECOND, other.address, zone="b", spot=True)
            await eventually(lambda: names(served) == {FIRST: True, SECOND: True})
            seen = [routes(await run(served, request(f"hello {number}")))[-1].replica for number in range(6)]
            assert set(seen) == {SECOND}
            await served.settle()


@pytest.mark.parametrize("other", [{"zone": "a", "spot": False}, {"zone": "b", "spot": True}], ids=["far", "spot"])
async def test_of_idle_engines_a_near_one_that_stays_goes_on_with_an_answer(
    serve: Serve, board: Board, model: Path, engine: EngineThread, other: dict[str, Any]
) -> None:
    sleeps = {"registered": True, "min_replicas": 0}
    with EngineThread(model, id=SECOND) as second:
        async with serve(engines={"small": []}, pool=sleeps, router=RouterSettings(zone="b")) as served:
            await board.announce(FIRST, engine.address, **other)
            await board.announce(SECOND, second.address, zone="b", spot=False)
            await eventually(lambda: names(served) == {FIRST: True, SECOND: True})
            pool = served.gateway.engines.pools[0]
            chosen = await pool.successor(lambda each: each.client.connected, 0.0, {}, unless=lambda: False)
            assert chosen is not None and chosen.name == SECOND
            await served.settle()


async def test_an_engine_of_another_model_is_not_used_and_told_of_once(
    serve: Serve, board: Board, engine: EngineThread, caplog: pytest.LogCaptureFixture
) -> None:
    """It was started with the wrong pool or checkpoint. It joins as soon as it announces the right one."""
    async with serve(engines={"small": []}, pool={"registered": True, "min_replicas": 0}) as served:
        pool = served.gateway.engines.pools[0]
        other = {"model": "llama-70b", "revision": "0123456789abcdef"}
        await board.announce(FIRST, engine.address, **other)
        await eventually(lambda: bool(pool.strangers))
        await asyncio.sleep(0.2)
        assert names(served) == {}
        told = f"the engine {FIRST} of the small pool is not used: it serves llama-70b (revision 0123456789ab), "
        [problem] = [each for each in served.gateway.engines.problems() if FIRST in each]
        assert problem.startswith(told) and pool.name in problem and pool.model.revision[:12] in problem
        assert [record.message for record in caplog.records if FIRST in record.message] == [problem]
        await board.announce(FIRST, engine.address)
        await eventually(lambda: names(served) == {FIRST: True})
        assert pool.strangers == {}


@pytest.mark.parametrize("quantize", ["int8", None])
async def test_an_engine_may_round_the_weights_of_its_pools_checkpoint(model: Path, quantize: str | None) -> None:
    pool = fleet(model).pools[0]
    revision = served_revision(open_checkpoint(model).revision, quantize, None)
    pool.announced([msgspec.structs.replace(LEASE, revision=revision)])
    assert list(pool.leases) == [LEASE.id]


async def test_where_only_a_pools_tokenizer_is_here_the_name_counts(model: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(model, tmp_path / "tiny", ignore=shutil.ignore_patterns("*.safetensors"))
    pool = fleet(copy).pools[0]
    leases = [msgspec.structs.replace(LEASE, id=f"small-{name}", model=name) for name in ("small", "tiny", "x")]
    pool.announced(leases)
    assert list(pool.leases.values()) == leases[:2]
    assert "small-x" in pool.strangers["small-x"]


async def test_a_process_that_was_started_again_is_another_replica(
    serve: Serve, board: Board, model: Path, engine: EngineThread
) -> None:
    """Also at the same address: it inherits no drain, and metrics forget the one before it."""
    first = EngineThread(model, id=FIRST)
    with first:
        async with serve(engines={"small": [first.address]}) as served:
            await eventually(lambda: names(served) == {FIRST: True})
            engines = served.gateway.engines
            [replica] = engines.pools[0].engines
            assert engines[FIRST] is engines["small-0"] is replica
            await asyncio.to_thread(first.stop)
            second = EngineThread(model, id=SECOND)
            second.address = first.address
            with second:
                await eventually(lambda: names(served) == {SECOND: True})
                assert engines[SECOND] is engines[FIRST] is replica
                assert [name for name, _, _ in engines.left] == ["small-0", FIRST]
                assert routes(await run(served, request()))[-1].replica == SECOND


async def test_a_process_in_two_pools_answers_for_both(serve: Serve, model: Path) -> None:
    """Only one of its replicas is called by its id: a name leads to one engine."""
    with EngineThread(model, id=FIRST) as engine:
        async with serve(engines={"small": [engine.address], "large": [engine.address]}) as served:
            engines = served.gateway.engines
            await eventually(lambda: all(each.client.connected for pool in engines.pools for each in pool.engines))
            for pool in engines.pools:
                route = routes(await run(served, request(model=pool.name)))[-1]
                assert (route.model, engines[route.replica]) == (pool.name, pool.engines[0])
            assert sum(each.name == FIRST for pool in engines.pools for each in pool.engines) == 1
            engines.controls = lambda: {FIRST: ReplicaControl(name=FIRST, drained=True)}
            assert all(each.control.drained for pool in engines.pools for each in pool.engines)


async def test_a_process_whose_connection_broke_is_found_again_by_its_name(
    serve: Serve, board: Board, model: Path
) -> None:
    """It announces another address than the configured one, at which it is used until that is connected again."""
    with EngineThread(model, id=FIRST) as engine:
        async with serve(engines={"small": [engine.address]}, pool={"registered": True}) as served:
            engines = served.gateway.engines
            [replica] = engines.pools[0].engines
            await eventually(lambda: names(served) == {FIRST: True})
            await replica.client.aclose()
            await board.announce(FIRST, engine.address.replace("127.0.0.1", "localhost"))
            await eventually(lambda: names(served).get("small-1", False))
            assert routes(await run(served, request()))[-1].model == engines.pools[0].name
            await replica.client.start()
            await eventually(lambda: engines.pools[0].engines == [replica] and names(served) == {FIRST: True})
            await eventually(lambda: not engines.pools[0].leaving)
            await asyncio.sleep(0.2)
            assert engines[FIRST] is replica
            assert routes(await run(served, request("again")))[-1].replica == FIRST
            await served.settle()


async def test_former_names_are_forgotten_in_the_end(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """A gateway that sees engines come and go for months remembers a bounded number."""
    monkeypatch.setattr("gateway.engines.pools._FORMER_NAMES", 3)
    async with serve() as served:
        engines = served.gateway.engines
        [replica] = engines.pools[0].engines
        for number in range(10):
            replica.client.id = f"small-{number}{number}"
            replica.client.on_ready()
        assert set(engines._engines) == {"small-66", "small-77", "small-88", "small-99"}
        assert engines.live == 0


async def test_a_hundred_engines_and_ten_gateways_ask_little_of_redis(
    board: Board, model: Path, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At most 250 commands a second in all."""
    monkeypatch.undo()
    behind = [fleet(model) for _ in range(10)]
    async with contextlib.AsyncExitStack() as stack:
        redis = await stack.enter_async_context(Redis.from_url(redis_url))
        for lease in leases_of(100, model):
            await stack.enter_async_context(Announcer(redis_url, board.key).announced(lambda lease=lease: lease))
        for each in behind:
            reader = await stack.enter_async_context(BatchingRedis.from_url(redis_url))
            looking = LeasedEngines(reader, board.key, each, Metrics().engines)
            stack.push_async_callback(each.aclose)
            stack.push_async_callback(looking.aclose)
            await looking.start()
        before, began = (await redis.info("stats"))["total_commands_processed"], time.monotonic()
        await asyncio.sleep(6)
        after, seconds = (await redis.info("stats"))["total_commands_processed"], time.monotonic() - began
        assert sum(len(pool.engines) for pool in behind[0].pools) == 100
        assert (after - before) / seconds <= 250


async def test_a_hundred_engines_cost_a_gateway_little(board: Board, model: Path, redis_url: str) -> None:
    """At most 1 % of a core, of which a second has ten milliseconds."""
    engines = fleet(model)
    async with BatchingRedis.from_url(redis_url) as redis:
        looking = LeasedEngines(redis, board.key, engines, Metrics().engines)
        for lease in leases_of(100, model):
            await board.announce(**msgspec.structs.asdict(lease))
        used = []
        for _ in range(10):
            began = time.thread_time()
            await looking.look()
            used.append(time.thread_time() - began)
        assert sum(len(pool.engines) for pool in engines.pools) == 100
        await engines.aclose()
    assert min(used) <= 0.01 * LOOK_SECONDS


async def test_without_redis_the_last_list_holds(serve: Serve, board: Board, engine: EngineThread) -> None:
    await board.announce(FIRST, engine.address)
    async with serve(engines={"small": []}, pool={"registered": True}) as served:
        pool = served.gateway.engines.pools[0]
        before = pool.leases
        assert list(before) == [FIRST]
        async with Redis.from_url("unix:///nowhere.sock") as away:
            await LeasedEngines(away, board.key, served.gateway.engines, served.gateway.metrics.engines).look()
        assert pool.leases and names(served) == {FIRST: True}
