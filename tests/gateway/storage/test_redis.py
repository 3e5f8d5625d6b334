"""Commands of many tasks go out together, and each task gets its own answer whatever becomes of the others."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from redis.exceptions import ConnectionError, DataError, NoScriptError, RedisError, ResponseError, TimeoutError

from gateway.access.identity import Principal
from gateway.access.tickets import Tickets
from gateway.config.settings import RedisSettings, Settings
from gateway.errors import Unavailable
from gateway.storage.connect import connect
from gateway.storage.redis import MAX_BATCH, BatchingRedis
from tests.conftest import redis_server
from tests.cutting_proxy import CuttingProxy
from tests.gateway.conftest import eventually

pytestmark = pytest.mark.anyio


@pytest.fixture
async def batching(redis_url: str) -> AsyncIterator[BatchingRedis]:
    client = BatchingRedis.from_url(redis_url)
    await client.flushdb()
    yield client
    await client.aclose()


async def test_every_task_gets_its_own_answer(batching: BatchingRedis) -> None:
    """More tasks than a batch holds, in every kind of command."""
    count = 2 * MAX_BATCH + 7
    assert all(await asyncio.gather(*(batching.set(f"k{n}", n) for n in range(count))))
    values = await asyncio.gather(*(batching.get(f"k{n}") for n in range(count)))
    assert values == [str(n).encode() for n in range(count)]
    await batching.hset("h", mapping={"a": 1})
    whole, missing = await asyncio.gather(batching.hgetall("h"), batching.hgetall("none"))
    assert (whole, missing) == ({b"a": b"1"}, {})


async def test_they_share_one_connection(batching: BatchingRedis) -> None:
    before = (await batching.info("stats"))["total_connections_received"]
    await asyncio.gather(*(batching.set(f"k{n}", n) for n in range(100)))
    assert (await batching.info("stats"))["total_connections_received"] - before <= 1


async def test_an_error_is_its_own_tasks_only(batching: BatchingRedis) -> None:
    await batching.set("text", "x")
    results = await asyncio.gather(
        batching.incr("counter"), batching.incr("text"), batching.incr("counter"), return_exceptions=True
    )
    assert results[0] == 1 and results[2] == 2
    assert isinstance(results[1], ResponseError)


async def test_what_redis_has_no_form_of_is_its_own_tasks_error_only(batching: BatchingRedis) -> None:
    results = await asyncio.gather(
        batching.incr("counter"), batching.set("k", None), batching.incr("counter"), return_exceptions=True
    )
    assert results[0] == 1 and results[2] == 2
    assert isinstance(results[1], DataError)


async def test_scripts_are_loaded_when_redis_has_forgotten_them(batching: BatchingRedis) -> None:
    script = batching.register_script("return {KEYS[1], ARGV[1]}")
    await batching.script_flush()
    with pytest.raises(NoScriptError):
        await batching.evalsha("0" * 40, 0)
    answers = await asyncio.gather(*(script(keys=[f"k{n}"], args=[n]) for n in range(5)))
    assert answers == [[f"k{n}".encode(), str(n).encode()] for n in range(5)]


async def test_a_cancelled_task_leaves_no_answer_for_another(batching: BatchingRedis) -> None:
    """What went wrong with redis-py in March 2023: the next task read the reply of a cancelled one."""
    for number in range(50):
        await batching.set("a", f"a{number}")
        await batching.set("b", f"b{number}")
        task = asyncio.create_task(batching.get("a"))
        other = asyncio.create_task(batching.get("b"))
        for _ in range(number % 5):
            await asyncio.sleep(0)
        task.cancel()
        assert await other == f"b{number}".encode()
        assert await batching.get("b") == f"b{number}".encode()
        await asyncio.gather(task, return_exceptions=True)


async def test_what_may_wait_in_redis_delays_nobody(batching: BatchingRedis) -> None:
    popping = asyncio.create_task(batching.blpop(["list"], timeout=0))
    await asyncio.sleep(0)
    assert await batching.set("k", 1)
    await batching.rpush("list", "x")
    assert await popping is not None


async def test_without_redis_every_task_is_told() -> None:
    client = BatchingRedis.from_url("unix:///nonexistent/redis.sock")
    results = await asyncio.gather(*(client.get("k") for _ in range(3)), return_exceptions=True)
    assert len(results) == 3 and all(isinstance(each, RedisError) for each in results)
    await client.aclose()


async def test_a_redis_that_hangs_delays_one_command_at_a_time() -> None:
    """Beyond the first timeouts nobody waits, though making a new connection may take an hour here."""
    server = redis_server()
    server.start()
    client = BatchingRedis.from_url(server.url, socket_timeout=1.0, socket_connect_timeout=3600)
    try:
        process = (await client.info("server"))["process_id"]
        os.kill(process, signal.SIGSTOP)
        try:
            async with asyncio.timeout(60):
                for _ in range(1000):
                    with pytest.raises(TimeoutError):
                        await client.get("k")
        finally:
            os.kill(process, signal.SIGCONT)
        async with asyncio.timeout(60):
            await answering(client)
        assert await client.set("k", 1)
    finally:
        await client.aclose()
        server.stop()


async def test_a_process_that_is_busy_takes_no_redis_for_dead(redis_url: str) -> None:
    """Its own lag is no time that Redis took: not for commands, nor for a new connection."""
    client = BatchingRedis.from_url(redis_url, socket_timeout=0.05, socket_connect_timeout=0.5)
    try:
        for _ in range(5):
            asked = [asyncio.create_task(client.set(f"k{number}", 1)) for number in range(20)]
            while not all(task.done() for task in asked):
                asyncio.get_running_loop().call_soon(time.sleep, 0.06)
                await asyncio.sleep(0)
            await asyncio.gather(*asked)
    finally:
        await client.aclose()


@pytest.mark.parametrize("begun", [True, False])
async def test_closing_does_not_wait_for_a_connection(begun: bool) -> None:
    """Nor does anybody whose command cannot be sent any more."""
    greeted = asyncio.Event()

    async def say_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        greeted.set()
        await reader.read()
        writer.close()

    async with await asyncio.start_server(say_nothing, "127.0.0.1", 0) as hanging:
        port = hanging.sockets[0].getsockname()[1]
        client = BatchingRedis.from_url(f"redis://127.0.0.1:{port}", socket_connect_timeout=3600)
        waiting = asyncio.create_task(client.get("k"))
        await (greeted.wait() if begun else asyncio.sleep(0))
        await client.aclose()
        with pytest.raises(asyncio.CancelledError):
            await waiting


async def answering(client: BatchingRedis) -> None:
    while True:
        with contextlib.suppress(RedisError):
            if await client.ping():
                return
        await asyncio.sleep(0.01)


@pytest.fixture
async def proxy(redis_url: str) -> AsyncIterator[CuttingProxy]:
    async with CuttingProxy(redis_url).running() as proxy:
        yield proxy


@pytest.fixture
async def cut(proxy: CuttingProxy) -> AsyncIterator[BatchingRedis]:
    client = BatchingRedis.from_url(proxy.url)
    await client.flushdb()
    yield client
    await client.aclose()


async def test_a_command_whose_reply_was_lost_is_not_carried_out_twice(cut: BatchingRedis, proxy: CuttingProxy) -> None:
    """Whoever asked is told, and only that."""
    proxy.cut_next_reply = True
    with pytest.raises(ConnectionError):
        await cut.incr("counter")
    assert (await cut.get("counter"), proxy.cuts) == (b"1", 1)


async def test_a_read_whose_reply_was_lost_is_sent_again(cut: BatchingRedis, proxy: CuttingProxy) -> None:
    """Beside a write of the same batch, which is not."""
    await cut.set("k", 7)
    proxy.cut_next_reply = True
    value, counted, again = await asyncio.gather(
        cut.get("k"), cut.incr("counter"), cut.get("k"), return_exceptions=True
    )
    assert (value, again) == (b"7", b"7")
    assert isinstance(counted, ConnectionError)
    assert await cut.get("counter") == b"1"


async def test_a_connection_that_was_closed_while_idle_costs_no_command(
    cut: BatchingRedis, proxy: CuttingProxy
) -> None:
    assert await cut.incr("counter") == 1
    proxy.close_idle()
    await eventually(lambda: cut._line._reader is not None and cut._line._reader.at_eof())
    assert await cut.incr("counter") == 2


async def test_a_one_use_ticket_stays_valid_or_the_caller_is_told_to_try_again(
    cut: BatchingRedis, proxy: CuttingProxy
) -> None:
    """Never that it was used: nobody but the lost connection has used it."""
    tickets = Tickets(cut)
    ticket = await tickets.issue(Principal("acme", "k", None, frozenset({"chat"})), None)
    proxy.cut_next_reply = True
    with pytest.raises(Unavailable):
        await tickets.redeem(ticket, None)


async def test_a_pipeline_is_not_carried_out_twice(redis_url: str, proxy: CuttingProxy, tmp_path: Path) -> None:
    """With the client that gateways use."""
    settings = Settings(redis=RedisSettings(url=proxy.url, timeout=5.0, data=str(tmp_path)))
    client = connect(settings)
    try:
        await client.flushdb()
        async with client.pipeline(transaction=True) as pipeline:
            await pipeline.incr("counter").execute()
            proxy.cut_next_reply = True
            with pytest.raises(ConnectionError):
                await pipeline.incr("counter").execute()
        assert await client.get("counter") == b"2"
    finally:
        await client.aclose()
