"""The client of Redis Cluster, on three real nodes: commands, scripts, pipelines and transactions go where keys are."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import cast

import pytest
from redis.exceptions import ConnectionError, DataError, RedisError, ResponseError

from gateway.config.settings import RedisSettings, Settings
from gateway.storage.cluster import ClusterRedis
from gateway.storage.connect import connect
from tests.redis_topologies import Node, cluster, cluster_url

pytestmark = pytest.mark.anyio

TENANTS = [f"tenant{number}" for number in range(50)]


@pytest.fixture(scope="module")
def nodes() -> Iterator[list[Node]]:
    with cluster() as nodes:
        yield nodes


def client_of(url: str, folder: Path) -> ClusterRedis:
    return cast(ClusterRedis, connect(Settings(redis=RedisSettings(url=url, data=str(folder))), timeout=5))


@pytest.fixture
async def redis(nodes: list[Node], tmp_path: Path) -> AsyncIterator[ClusterRedis]:
    async with client_of(cluster_url(nodes), tmp_path) as redis:
        await redis.flushall()
        yield redis


async def test_commands_of_many_tasks_reach_the_nodes_of_their_keys(redis: ClusterRedis, nodes: list[Node]) -> None:
    await asyncio.gather(*(redis.set(f"rh1:{{{tenant}}}:a", tenant) for tenant in TENANTS))
    found = await asyncio.gather(*(redis.get(f"rh1:{{{tenant}}}:a") for tenant in TENANTS))
    assert found == [tenant.encode() for tenant in TENANTS]
    sizes = [node.ask("DBSIZE") for node in nodes]
    assert min(sizes) > 0 and sum(sizes) == len(TENANTS)


async def test_a_pipeline_is_split_by_nodes_and_answers_in_order(redis: ClusterRedis) -> None:
    async with redis.pipeline(transaction=False) as pipeline:
        for tenant in TENANTS:
            pipeline.hset(f"rh1:{{{tenant}}}:h", "field", tenant)
            pipeline.hgetall(f"rh1:{{{tenant}}}:h")
        found = await pipeline.execute()
    assert found[1::2] == [{b"field": tenant.encode()} for tenant in TENANTS]


async def test_a_command_that_fails_in_a_pipeline_is_told(redis: ClusterRedis) -> None:
    async with redis.pipeline(transaction=False) as pipeline:
        pipeline.set("a", "text").incr("a").incr("b")
        with pytest.raises(ResponseError, match="not an integer"):
            await pipeline.execute()
    assert await redis.get("b") == b"1"


async def test_a_transaction_is_whole_and_of_one_slot(redis: ClusterRedis) -> None:
    async with redis.pipeline(transaction=True) as pipeline:
        pipeline.set("rh1:{x}:a", 1).incr("rh1:{x}:b").get("rh1:{x}:a")
        assert await pipeline.execute() == [True, 1, b"1"]
    async with redis.pipeline(transaction=True) as pipeline:
        for tenant in TENANTS:
            pipeline.set(f"rh1:{{{tenant}}}:never", 1)
        with pytest.raises(DataError, match="one slot"):
            await pipeline.execute()
    assert not any(await asyncio.gather(*(redis.exists(f"rh1:{{{tenant}}}:never") for tenant in TENANTS)))


async def test_scripts_are_loaded_where_they_run(redis: ClusterRedis) -> None:
    script = redis.register_script("return {KEYS[1], ARGV[1]}")
    for tenant in TENANTS:
        assert await script(keys=[f"{{{tenant}}}"], args=[7]) == [f"{{{tenant}}}".encode(), b"7"]
    other = redis.register_script("redis.call('SET', KEYS[1], ARGV[1]) return 1")
    async with redis.pipeline(transaction=False) as pipeline:
        for tenant in TENANTS:
            await other(keys=[f"{{{tenant}}}:s"], args=[tenant], client=pipeline)
            pipeline.execute_command("WAIT", 0, 100)
        assert await pipeline.execute() == [1, 0] * len(TENANTS)


async def test_a_read_that_waits_gets_what_comes(redis: ClusterRedis) -> None:
    waiting = asyncio.create_task(redis.xread({"rh1:inbox": "0"}, block=5000))
    await asyncio.sleep(0.05)
    await redis.xadd("rh1:inbox", {"m": "x"})
    [[name, [(_, fields)]]] = await waiting
    assert (name, fields) == (b"rh1:inbox", {b"m": b"x"})


async def test_a_slot_that_moves_is_followed(nodes: list[Node], tmp_path: Path) -> None:
    """Commands, pipelines and transactions find it, and nothing is done twice."""
    url = cluster_url(nodes)
    async with client_of(url, tmp_path) as redis:
        await redis.flushall()
        assert await redis.incr("{moved}:a") == 1
        slot = int(nodes[0].ask("CLUSTER KEYSLOT", "{moved}"))
        ids = [node.ask("CLUSTER MYID").decode() for node in nodes]
        source = next(index for index, node in enumerate(nodes) if node.ask("CLUSTER COUNTKEYSINSLOT", slot))
        target = (source + 1) % len(nodes)
        nodes[target].ask("CLUSTER SETSLOT", slot, "IMPORTING", ids[source])
        nodes[source].ask("CLUSTER SETSLOT", slot, "MIGRATING", ids[target])
        nodes[source].ask("MIGRATE", "127.0.0.1", nodes[target].port, "{moved}:a", 0, 5000)
        assert await redis.incr("{moved}:a") == 2  # on the way: ASK
        async with redis.pipeline(transaction=False) as pipeline:
            pipeline.incr("{moved}:a").set("{elsewhere}:b", 1).incr("{moved}:a")
            pipeline.execute_command("WAIT", 0, 100)
            assert await pipeline.execute() == [3, True, 4, 0]
        async with redis.pipeline(transaction=True) as pipeline:
            pipeline.incr("{moved}:a").incr("{moved}:a")
            assert await pipeline.execute() == [5, 6]
        for node in (nodes[target], nodes[source]):
            node.ask("CLUSTER SETSLOT", slot, "NODE", ids[target])
        async with redis.pipeline(transaction=True) as pipeline:
            pipeline.incr("{moved}:a").incr("{moved}:a")
            assert await pipeline.execute() == [7, 8]
    async with client_of(url, tmp_path) as redis, redis.pipeline(transaction=False) as pipeline:
        pipeline.incr("{moved}:a").set("{elsewhere}:b", 1)
        assert await pipeline.execute() == [9, True]


async def test_what_needs_keys_of_a_slot_that_has_moved_in_part_waits_for_the_rest(
    nodes: list[Node], tmp_path: Path
) -> None:
    """Commands, scripts and transactions: neither node has all keys meanwhile."""
    async with client_of(cluster_url(nodes), tmp_path) as redis:
        await redis.flushall()
        await redis.mset({"{parts}:a": 1, "{parts}:b": 1})
        both = redis.register_script("return redis.call('INCR', KEYS[1]) + redis.call('INCR', KEYS[2])")
        slot = int(nodes[0].ask("CLUSTER KEYSLOT", "{parts}"))
        ids = [node.ask("CLUSTER MYID").decode() for node in nodes]
        source = next(index for index, node in enumerate(nodes) if node.ask("CLUSTER COUNTKEYSINSLOT", slot))
        target = (source + 1) % len(nodes)
        nodes[target].ask("CLUSTER SETSLOT", slot, "IMPORTING", ids[source])
        nodes[source].ask("CLUSTER SETSLOT", slot, "MIGRATING", ids[target])
        nodes[source].ask("MIGRATE", "127.0.0.1", nodes[target].port, "{parts}:a", 0, 5000)

        async def together() -> list[int]:
            async with redis.pipeline(transaction=True) as pipeline:
                return await pipeline.incr("{parts}:a").incr("{parts}:b").execute()

        waiting = [asyncio.ensure_future(both(keys=["{parts}:a", "{parts}:b"])), asyncio.ensure_future(together())]
        await asyncio.sleep(0.1)
        assert not any(task.done() for task in waiting)
        nodes[source].ask("MIGRATE", "127.0.0.1", nodes[target].port, "{parts}:b", 0, 5000)
        await asyncio.gather(*waiting)
        for node in (nodes[target], nodes[source]):
            node.ask("CLUSTER SETSLOT", slot, "NODE", ids[target])
        assert await redis.mget("{parts}:a", "{parts}:b") == [b"3", b"3"]


async def test_clients_of_nodes_that_are_gone_are_let_go(redis: ClusterRedis) -> None:
    await redis.get("a")
    known = set(redis._clients)
    redis.at("127.0.0.1", 1)
    redis._asked = float("-inf")
    redis.ask_again()
    assert redis._asking is not None
    await redis._asking
    assert set(redis._clients) == known


async def test_a_cluster_that_is_away_is_an_error_of_redis(tmp_path: Path) -> None:
    async with client_of("cluster://127.0.0.1:1", tmp_path) as redis:
        for _ in range(2):
            with pytest.raises(RedisError):
                await redis.get("a")
        with pytest.raises(ConnectionError):
            async with redis.pipeline(transaction=False) as pipeline:
                await pipeline.get("a").execute()
