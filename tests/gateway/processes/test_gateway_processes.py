"""Several gateway processes behind one port: real ones, under load, killed and told of changes."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
import urllib.request
from collections import Counter
from hashlib import sha256
from pathlib import Path

import pytest
import redis
from prometheus_client.parser import text_string_to_metric_families
from redis.asyncio import Redis
from websockets.exceptions import WebSocketException

from gateway.billing import report
from tests.gateway.billing.test_turns import _always
from tests.gateway.conftest import KEY, eventually, receive, send
from tests.gateway.processes.test_child import alive
from tests.gateway.turns.processes import (
    ADMIN,
    ANSWER,
    CALLER,
    OPERATOR,
    SHARING,
    GatewayProcess,
    gateways,
    idle,
)
from tests.gateway.turns.test_processes import ENDS, Client, _last, leftovers
from tests.ports import free_port

pytestmark = pytest.mark.anyio


@pytest.fixture
def empty_redis(redis_url: str) -> str:
    with redis.Redis.from_url(redis_url) as client:
        client.flushall()
    return redis_url


async def test_clients_resume_at_whichever_process_takes_their_connection(model: Path, empty_redis: str) -> None:
    """Sockets are cut at random while twelve clients ask; every answer is whole, and each process has a part."""
    seed = random.SystemRandom().randrange(2**32)
    print(f"seed: {seed}")
    async with gateways(1, model, empty_redis, environments=[{SHARING: "2"}]) as ((served,), engine):
        clients = [Client(f"s{index}", seed + index, [served]) for index in range(12)]

        async def work(client: Client) -> None:
            while sum(other.cuts for other in clients) < 60:
                await client.turn(cut=0.06)

        async with asyncio.TaskGroup() as group:
            for client in clients:
                group.create_task(work(client))
        assert len(engine.generated) == sum(client.turns for client in clients), "a turn was started twice"
        await idle([served], engine)
        turns = await _values(served, "roundhouse_turns_total")
        print(f"turns by process: {turns}")
        assert min(turns.values()) > 0 and len(turns) == 2
        assert sum(turns.values()) == len(engine.generated)
        assert leftovers(empty_redis) == {}


async def test_a_killed_process_is_replaced_while_the_others_go_on(model: Path, empty_redis: str) -> None:
    """Its turns fail within seconds, or are asked again; what it had not billed yet is billed once."""
    async with gateways(1, model, empty_redis, environments=[{SHARING: "2"}], pause=0.05) as ((served,), _):
        before = served.children()
        assert sorted(before) == [1, 2]
        stopped, heard = asyncio.Event(), Counter[str]()
        ended = dict.fromkeys(("response.completed", "response.failed"), 0)

        async def work() -> None:
            while not stopped.is_set():
                ended[await _one_turn(served, heard)] += 1

        async with asyncio.TaskGroup() as group:
            for _ in range(4):
                group.create_task(work())
            # Two seconds of text, so that the journal of their process knows of them.
            await eventually(lambda: sum(count > 40 for count in heard.values()) >= 3, seconds=60)
            running = {number: await asyncio.to_thread(_running, served.url, number) for number in before}
            killed, other = sorted(running, key=lambda number: -running[number])
            os.kill(before[killed], signal.SIGKILL)
            await eventually(lambda: served.children().get(killed, before[killed]) != before[killed], seconds=60)
            enough = ended["response.completed"] + 4
            await eventually(lambda: ended["response.completed"] > enough, seconds=60)
            stopped.set()
        print(ended, running)
        assert 0 < ended["response.failed"] <= 4
        assert served.children()[other] == before[other]
        async with Redis.from_url(empty_redis) as client:
            outcomes = Counter[str]()
            async with asyncio.timeout(150):
                # A turn that failed in its first second may have no entry.
                while outcomes["completed"] < ended["response.completed"] or not outcomes["lost"]:
                    await asyncio.sleep(0.5)
                    entries = [entry async for entry in report.turns(client, _always())]
                    outcomes = Counter(entry.outcome for entry in entries)
        assert len({entry.turn for entry in entries}) == len(entries)
        # One may have been completed a moment before its process was killed, so that its client never heard of it.
        assert outcomes.total() <= sum(ended.values())
        assert outcomes.keys() == {"completed", "lost"}
        assert await served.stop() == 0


async def test_changes_scrapes_and_the_admin_listener_reach_every_process(model: Path, empty_redis: str) -> None:
    admin = f"127.0.0.1:{free_port()}"
    tables = f'[admin]\nlisten = "{admin}"\n{CALLER}{OPERATOR}'
    async with gateways(1, model, empty_redis, environments=[{SHARING: "3"}], tables=tables) as ((served,), _):
        page = await asyncio.to_thread(_read, f"{served.url}/metrics")
        assert {f'process="{number}"' in page for number in (1, 2, 3)} == {True}
        assert page.count("# HELP roundhouse_turns_running ") == 1
        alone = await asyncio.to_thread(_read, f"{served.url}/metrics?process=2")
        assert "process=" not in alone and "roundhouse_turns_running " in alone
        for unknown in ("4", "02", "%D9%A2"):
            assert (await served.call(f"/metrics?process={unknown}"))[0] == 404

        _edit(served, sha256(KEY.encode()).hexdigest(), sha256(b"another").hexdigest())
        done = await _reload(served)
        assert (done.returncode, done.stdout) == (0, "changed: tenants.demo\n"), done
        for _ in range(12):
            assert (await served.call("/v1/models", key="another"))[0] == 200
        _edit(served, 'tier = "small"', 'tier = "medium"')
        refused = await _reload(served)
        assert refused.returncode == 1 and "cannot change while the gateway runs" in refused.stderr

        before = served.children()
        os.kill(before[2], signal.SIGKILL)
        for _ in range(12):  # those that are there answer
            listed = await asyncio.to_thread(_read, f"http://{admin}/admin/v1/tenants", authorization=f"Bearer {ADMIN}")
            assert '"demo"' in listed
        await eventually(lambda: served.children().get(2, before[2]) != before[2], seconds=60)
        await eventually(lambda: 'process="2"' in _read(f"{served.url}/metrics"), seconds=60)
        for _ in range(12):  # also the one that was started again
            assert (await served.call("/v1/models", key="another"))[0] == 200


async def test_sigterm_lets_the_turns_of_all_processes_finish(model: Path, empty_redis: str) -> None:
    async with gateways(1, model, empty_redis, environments=[{SHARING: "2"}], pause=0.02) as ((served,), _):
        sockets = [await served.connect() for _ in range(4)]
        for socket in sockets:
            await send(socket, type="response.create", input="hello")
            await receive(socket)
        assert served.process is not None
        served.process.send_signal(signal.SIGTERM)
        for end in await asyncio.gather(*map(_last, sockets)):
            assert end["type"] == "response.completed"
            assert end["response"]["output"][0]["content"][0]["text"] == ANSWER
        assert await served.stop(signal.SIGTERM) == 0


async def test_nothing_survives_a_supervisor_that_is_killed(model: Path, empty_redis: str) -> None:
    """Also while turns run, so that it can be started again at once."""
    async with gateways(1, model, empty_redis, environments=[{SHARING: "2"}], pause=0.2) as ((served,), _):
        sockets = [await served.connect() for _ in range(4)]
        for socket in sockets:
            await send(socket, type="response.create", input="hello")
            await receive(socket)
        children = served.children()
        await served.stop(signal.SIGKILL)
        await eventually(lambda: not any(alive(pid) for pid in children.values()))
        for socket in sockets:
            await socket.close()
        await served.start()
        await served.ready()
        assert len(served.children()) == 2


async def _one_turn(served: GatewayProcess, heard: Counter[str]) -> str:
    """Ask for a turn and resume it wherever the connection is taken; return how it ended. `heard`: events by turn."""
    key, id, last = os.urandom(8).hex(), None, -1
    while True:
        try:
            async with asyncio.timeout(60), served.connect() as socket:
                if id is None:
                    await send(socket, type="response.create", input="hello", idempotency_key=key)
                else:
                    await send(socket, type="response.resume", response_id=id, starting_after=last)
                while True:
                    event = await receive(socket)
                    assert event["type"] != "error", event
                    last = event.get("sequence_number", last)
                    if event["type"] == "response.created":
                        id = event["response"]["id"]
                    heard[str(id)] += 1
                    if event["type"] in ENDS:
                        return str(event["type"])
        except (WebSocketException, ConnectionError):
            await asyncio.sleep(0.05)


async def _values(served: GatewayProcess, name: str) -> dict[str, float]:
    """The sum of a metric's series, by process."""
    sums: dict[str, float] = {}
    for series, value in (await served.metrics()).items():
        if series.startswith(name + "{"):
            number = series.partition('process="')[2].partition('"')[0]
            sums[number] = sums.get(number, 0) + value
    return sums


def _running(url: str, process: int) -> float:
    """Turns that run in one of the processes."""
    families = text_string_to_metric_families(_read(f"{url}/metrics?process={process}"))
    return next(family.samples[0].value for family in families if family.name == "roundhouse_turns_running")


def _read(url: str, **headers: str) -> str:
    with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=10) as answer:
        return str(answer.read().decode())


def _edit(served: GatewayProcess, before: str, after: str) -> None:
    """Change its configuration file."""
    config = Path(served.command[served.command.index("--config") + 1])
    config.write_text(config.read_text().replace(before, after))


async def _reload(served: GatewayProcess) -> subprocess.CompletedProcess[str]:
    config = served.command[served.command.index("--config") + 1]
    command = [sys.executable, "-m", "gateway.cli", "reload", "--config", config]
    return await asyncio.to_thread(
        subprocess.run, command, env=served.environment, capture_output=True, text=True, check=False
    )
