"""`roundhouse serve` starts and ends engines as the load comes and goes: real processes, from none to two and back."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import openai
import pytest
import redis

from tests.e2e.conftest import KEY, Installation, installation

POOL = """
max_running = 4
min_replicas = 0
max_replicas = 2
start_seconds = 10

[turns]
queue_timeout = 120

[scaling]
period = 0.5
lease = 2
hold_seconds = 3
sleep_seconds = 6
drain_timeout = 60
retry_seconds = 0.5
"""
ASKED: dict[str, Any] = {
    "model": "small",
    "max_output_tokens": 300,
    "temperature": 0,
    "extra_body": {"ignore_eos": True, "roundhouse": {"cache": "no-store"}},
}
DEADLINE = 120.0


class Elastic:
    """An installation with one pool that may have no engine, one or two."""

    def __init__(self, running: Installation) -> None:
        self.running = running
        self.client = openai.OpenAI(base_url=running.api, api_key=KEY, max_retries=0, timeout=DEADLINE)

    def scale(self, *words: str) -> str:
        """Run `roundhouse scale`."""
        done = subprocess.run(
            [sys.executable, "-m", "gateway.cli", "scale", *words],
            env={
                **os.environ,
                "ROUNDHOUSE_CONFIG": str(self.running.folder / "roundhouse.toml"),
                "ROUNDHOUSE_REDIS_DATA": str(self.running.folder / "data"),
            },
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def status(self) -> dict[str, Any]:
        """Return what `roundhouse scale status` shows, without the process that shows it."""
        with redis.Redis(unix_socket_path=str(self.running.folder / "data" / "redis.sock")) as client:
            fields: Any = client.hgetall("rh1:pool:small")
        told = {name.decode(): json.loads(value) for name, value in fields.items() if name != b"remembered"}
        return {**told, "reasons": [each["text"] for each in told.get("reasons", [])]}

    def engines(self) -> list[int]:
        """Return the processes of engines."""
        return self.running.pids("engine[.]server.*engine-small-[0-9]+[.]sock")

    def eventually(self, true: Callable[[], bool]) -> None:
        deadline = time.monotonic() + DEADLINE
        while not true():
            assert time.monotonic() < deadline, f"{self.status()}\n{self.running.log.read_text()[-5000:]}"
            time.sleep(0.2)


class Asking:
    """Clients that each ask one question after the other, until they are told to stop."""

    def __init__(self, elastic: Elastic, count: int) -> None:
        self._elastic = elastic
        self._stopping = threading.Event()
        self.answered: list[tuple[str, str, str]] = []
        """Question, replica and text of each turn."""
        self.failed: list[object] = []
        self._threads = [threading.Thread(target=self._ask, args=(number,)) for number in range(count)]

    def __enter__(self) -> Asking:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join(DEADLINE)

    @property
    def replicas(self) -> set[str]:
        return {replica for _, replica, _ in self.answered}

    def _ask(self, number: int) -> None:
        asked = 0
        while not self._stopping.is_set():
            asked += 1
            try:
                self.answered.append(ask(self._elastic, f"Tell me everything about {number} and {asked}."))
            except Exception as error:
                self.failed.append(error)
                return


def ask(elastic: Elastic, question: str) -> tuple[str, str, str]:
    """Return the question, the replica that began to answer, and the text of a whole answer."""
    replica, text, end = "", "", ""
    options: dict[str, Any] = {**ASKED, "input": question, "extra_headers": {"x-roundhouse-events": "true"}}
    with elastic.client.responses.create(stream=True, **options) as stream:
        for event in stream:
            kind: Any = event.type
            if kind == "roundhouse.route":
                replica = getattr(event, "replica", None) or replica
            elif kind == "response.output_text.delta":
                text += getattr(event, "delta", "")
            end = kind
    assert end == "response.incomplete", end
    return question, replica, text


@pytest.fixture(scope="module")
def elastic() -> Iterator[Elastic]:
    with installation(tiers=["small"], tables=POOL) as running:
        elastic = Elastic(running)
        with elastic.client:
            yield elastic


def test_nothing_runs_until_a_turn_wakes_the_pool(elastic: Elastic) -> None:
    assert elastic.engines() == []
    assert ask(elastic, "Who is there?")[2]
    assert len(elastic.engines()) == 1
    assert re.search(r"small +\d +\d +\d +\d +0 +2 ", elastic.scale("status"))


def test_a_burst_starts_a_second_engine_which_gets_turns(elastic: Elastic) -> None:
    with Asking(elastic, 12) as asking:
        elastic.eventually(lambda: len(asking.replicas) == 2 or bool(asking.failed))
    assert asking.failed == []
    assert len(elastic.engines()) == 2


def test_an_engine_is_drained_under_load_without_a_failed_turn(elastic: Elastic) -> None:
    """Operators allow one engine only; answers are those that it would have given alone."""
    with Asking(elastic, 2) as asking:
        elastic.eventually(lambda: len(elastic.engines()) == 2 and len(asking.answered) >= 2)
        assert "0 to 1 engines" in elastic.scale("set", "small", "--max", "1")
        elastic.eventually(lambda: len(elastic.engines()) == 1)
    assert asking.failed == []
    for question, _, text in asking.answered[-4:]:
        assert ask(elastic, question)[2] == text
    assert "0 to 2 engines" in elastic.scale("set", "small", "--reset")


def test_a_quiet_pool_goes_to_sleep(elastic: Elastic) -> None:
    elastic.eventually(lambda: elastic.engines() == [])
    # An engine's lease may outlive it for a moment.
    elastic.eventually(lambda: (elastic.status()["desired"], elastic.status()["ready"]) == (0, 0))
    elastic.eventually(lambda: any("no request for" in each for each in elastic.status()["reasons"]))


def test_starts_that_fail_are_told_and_tried_again(elastic: Elastic) -> None:
    """The turn waits all the while."""
    answers: list[str] = []
    asked = threading.Thread(target=lambda: answers.append(ask(elastic, "Are you coming?")[2]))
    asked.start()
    killed: set[int] = set()
    while len(killed) < 3:
        for pid in set(elastic.engines()) - killed:
            os.kill(pid, signal.SIGKILL)
            killed.add(pid)
        time.sleep(0.05)
    elastic.eventually(lambda: any("3 starts have failed" in each for each in elastic.status()["reasons"]))
    asked.join(DEADLINE)
    assert answers and answers[0]
    elastic.eventually(lambda: not any("failed" in each for each in elastic.status()["reasons"]))
