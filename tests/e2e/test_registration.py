"""Engines that announce themselves, die, drain and wake: real processes, as docs/operating.md starts them."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import redis

from engine.registration import INDEX_KEY, LEASE_KEY, sealed
from gateway.config.settings import demo_settings
from tests.e2e.test_failures import Outage, eventually, outage
from tests.engine.test_registration import LEASE

SLEEPS = "\nregistered = true\nmin_replicas = 0\n"
LONG: dict[str, Any] = {
    "model": "small",
    "input": "Tell me everything about prefix caches.",
    "max_output_tokens": 400,
    "temperature": 0,
    "extra_body": {"ignore_eos": True, "roundhouse": {"cache": "no-store"}},
}


class Engine:
    """`roundhouse engine serve --register`, with the small model of this repository."""

    def __init__(self, it: Outage, key: Path, number: int) -> None:
        [pool] = demo_settings().pools
        folder = it.running.folder
        command = ["--model", pool.model, "--pool", "small", "--listen", f"unix://{folder}/engine-{number}.sock"]
        command += ["--threads", "1", "--kv-tokens", "4096", "--drain-timeout", "60"]
        command += ["--register", it.server.url, "--register-key", str(key), "--zone", "here", "--spot"]
        with (folder / f"engine-{number}.log").open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "gateway.cli", "engine", "serve", *command], stdout=subprocess.PIPE, stderr=log
            )

    def ready(self) -> str:
        """Wait until it serves; returns the id of its process."""
        assert self.process.stdout
        return str(json.loads(self.process.stdout.readline())["id"])

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdout
        self.process.stdout.close()


class Fleet:
    """An installation whose engines announce themselves."""

    def __init__(self, it: Outage, key: Path, stack: contextlib.ExitStack) -> None:
        self.it = it
        self._key = key
        self._stack = stack
        self.engines: dict[str, Engine] = {}

    def start(self, count: int) -> list[str]:
        """Start engines; returns their ids once they serve."""
        started = [Engine(self.it, self._key, len(self.engines) + number) for number in range(count)]
        for each in started:
            self._stack.callback(each.close)
        ids = [each.ready() for each in started]
        self.engines |= dict(zip(ids, started, strict=True))
        return ids

    @property
    def up(self) -> set[str]:
        """Ids of the engines that the gateway is connected to."""
        return {name for name in self.engines if self._up(name)}

    def listed(self) -> set[str]:
        """Ids of the engines that the gateway has, connected or not."""
        return {name for name in self.engines if self._up(name) is not None}

    def _up(self, name: str) -> float | None:
        return self.metric(f'roundhouse_engine_up{{model="roundhouse-demo-2m",replica="{name}",tier="small"}}')

    def metric(self, name: str) -> float | None:
        """Return the value of a series, if there is one."""
        with contextlib.suppress(AssertionError):
            return self.it.metric(name)
        return None


@pytest.fixture(scope="module")
def fleet() -> Iterator[Fleet]:
    with contextlib.ExitStack() as stack:
        it = stack.enter_context(outage("small", tables=SLEEPS, ROUNDHOUSE_TURNS_QUEUE_TIMEOUT="90"))
        key = it.running.folder / "engines.key"
        done = subprocess.run(
            [sys.executable, "-m", "gateway.cli", "engine", "key"],
            env={**os.environ, "ROUNDHOUSE_REDIS_DATA": str(it.running.folder / "data")},
            capture_output=True,
            check=True,
        )
        key.write_bytes(done.stdout)
        yield Fleet(it, key, stack)


def test_engines_announce_themselves_to_a_gateway_that_waits(fleet: Fleet) -> None:
    """A turn that came before them is answered by the first of them."""
    client = fleet.it.client
    answers: list[str] = []
    asked = threading.Thread(target=lambda: answers.append(fleet.it.ask()))
    asked.start()
    with redis.Redis.from_url(fleet.it.server.url) as store:
        eventually(lambda: store.zcard("rh1:pool-wanted:small") == 1)
    ids = fleet.start(2)
    asked.join(60)
    assert answers and answers[0]
    eventually(lambda: fleet.up == set(ids))
    assert all(id.startswith("small-") and len(id) == len("small-") + 12 for id in ids)
    assert client.responses.create(**{**LONG, "max_output_tokens": 8}).output_text


def test_an_answer_survives_an_engine_that_is_killed(fleet: Fleet) -> None:
    """The other one goes on; the killed one leaves the list when its lease has ended."""
    client = fleet.it.client
    whole = client.responses.create(**LONG).output_text
    text, killed = "", ""
    with client.responses.create(**LONG, stream=True, extra_headers={"x-roundhouse-events": "true"}) as stream:
        for event in stream:
            if event.type == "roundhouse.route":  # type: ignore[comparison-overlap]
                killed = event.replica  # type: ignore[unreachable]
            elif event.type == "response.output_text.delta":
                if not text:
                    fleet.engines[killed].process.kill()
                text += event.delta
    assert text == whole
    eventually(lambda: killed not in fleet.listed(), 20)
    [left] = fleet.engines.keys() - {killed}
    assert fleet.up == {left}


def test_a_forged_lease_is_refused(fleet: Fleet) -> None:
    forged = msgspec.structs.replace(LEASE, id="small-f0f0f0", address="ws://127.0.0.1:9", time=time.time())
    with redis.Redis.from_url(fleet.it.server.url) as store:
        store.set(LEASE_KEY.format(pool="small", id=forged.id), sealed(forged, bytes(32)), ex=10)
        store.zadd(INDEX_KEY.format(pool="small"), {forged.id: forged.time})
    eventually(lambda: fleet.metric('roundhouse_engine_leases_refused_total{reason="seal"}') == 1)
    assert forged.id not in fleet.listed()


def test_without_redis_the_last_list_holds(fleet: Fleet) -> None:
    """Longer than a lease lasts."""
    os.kill(pid := fleet.it.pid, signal.SIGSTOP)
    try:
        time.sleep(12)
        assert fleet.it.fresh()
    finally:
        os.kill(pid, signal.SIGCONT)
    eventually(lambda: len(fleet.up) == 1)


def test_an_engine_that_drains_ends_what_it_has_and_the_pool_wakes_again(fleet: Fleet) -> None:
    client = fleet.it.client
    [last] = fleet.up
    answers: list[str] = []
    process = fleet.engines[last].process
    with client.responses.create(**LONG, stream=True) as stream:
        for event in stream:
            if event.type == "response.output_text.delta" and process.poll() is None:
                process.send_signal(signal.SIGTERM)
                break
        waiting = threading.Thread(target=lambda: answers.append(fleet.it.ask("Who is next?")))
        waiting.start()
        ended = [event.type for event in stream][-1]
    assert ended == "response.incomplete"
    assert process.wait(60) == 0
    with redis.Redis.from_url(fleet.it.server.url) as store:
        assert not store.exists(LEASE_KEY.format(pool="small", id=last))
    eventually(lambda: fleet.listed() == set())
    [fresh] = fleet.start(1)
    waiting.join(60)
    assert answers and answers[0]
    assert fleet.up == {fresh}
