"""What outages do to users, as `docs/failures.md` says it: real processes, killed, paused, slowed down and emptied."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType

import openai
import pytest
import redis

from tests.conftest import redis_server
from tests.e2e.conftest import KEY, Installation, installation
from tests.e2e.test_serve import LONG, open_socket, send, until
from tests.gateway.conftest import text_of

ENDS = ("response.completed", "response.incomplete", "response.failed", "error")


class Outage:
    """A Roundhouse with a Redis of its own that a test may harm."""

    def __init__(self, running: Installation, server: redis_server) -> None:
        self.running = running
        self.server = server
        self.client = openai.OpenAI(base_url=running.api, api_key=KEY, max_retries=0, timeout=60)

    @property
    def pid(self) -> int:
        """Of Redis."""
        with redis.Redis.from_url(self.server.url) as client:
            return int(client.info("server")["process_id"])

    def ask(self, question: str = "What is a prefix cache?") -> str:
        return self.client.responses.create(model="small", input=question).output_text

    def fresh(self) -> str:
        """Which model answers a question that no cache knows, asked of the small one."""
        return self.client.responses.create(model="small", input=secrets.token_hex(4)).model

    def metric(self, name: str) -> float:
        with urllib.request.urlopen(f"{self.running.url}/metrics", timeout=20) as answer:
            for line in answer.read().decode().splitlines():
                if line.startswith(f"{name} "):
                    return float(line.split()[-1])
        raise AssertionError(f"no metric {name}")


@contextlib.contextmanager
def outage(*tiers: str, served: Mapping[str, str] = MappingProxyType({}), **environment: str) -> Iterator[Outage]:
    server = redis_server()
    server.start()
    try:
        with installation(tiers=tiers, served=served, ROUNDHOUSE_REDIS_URL=server.url, **environment) as running:
            harmed = Outage(running, server)
            with harmed.client:
                yield harmed
    finally:
        server.stop()


@pytest.fixture(scope="module")
def it(engine: str) -> Iterator[Outage]:
    """One that each test leaves as it found it: what fails must come back."""
    patient = {"ROUNDHOUSE_TURNS_ORPHAN_TIMEOUT": "0.5", "ROUNDHOUSE_TURNS_MOVE_TIMEOUT": "60"}
    with outage("small", served={"medium": engine}, **patient) as it:
        yield it


def eventually(true: Callable[[], bool], seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.1)


@contextlib.contextmanager
def paused(pid: int) -> Iterator[None]:
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def test_redis_killed_and_started_empty(it: Outage) -> None:
    """Turns go on, running ones included, and when Redis is back, empty, all is as on the first day."""
    with open_socket(it.running) as socket:
        before = it.ask()
        send(socket, LONG)
        until(socket, "response.output_text.delta")
        it.server.stop()
        assert until(socket, *ENDS)[-1]["type"] == "response.incomplete"
        assert it.ask() == before
        eventually(lambda: it.metric("roundhouse_redis_up") == 0)
        it.server.start()
        eventually(lambda: it.metric("roundhouse_redis_up") == 1)
        assert it.ask() == before
        with redis.Redis.from_url(it.server.url) as client:
            eventually(lambda: it.ask() == before and any(client.scan_iter("rh1:resp:*")))


def test_redis_paused_costs_a_timeout_and_no_answer(it: Outage) -> None:
    """A Redis that hangs is worse than none: the breaker takes it out after a few short timeouts."""
    before = it.ask()
    with paused(it.pid):
        answers = [it.ask() for _ in range(8)]
    assert answers == [before] * 8
    eventually(lambda: it.metric("roundhouse_redis_up") == 1)
    assert it.ask() == before


def test_redis_slow(it: Outage) -> None:
    """The same for one that answers, but too late."""
    before = it.ask()
    with redis.Redis.from_url(it.server.url) as client:
        client.client_pause(3000)
        assert [it.ask() for _ in range(5)] == [before] * 5


def test_without_redis_a_deny_is_a_503_that_says_when_to_come_back(engine: str) -> None:
    with outage(served={"small": engine}, ROUNDHOUSE_LIMITS_ON_REDIS_DOWN="deny") as it:
        assert it.ask()
        it.server.stop()
        with pytest.raises(openai.InternalServerError) as refused:
            it.ask("something new")
        assert refused.value.status_code == 503
        it.server.start()
        eventually(lambda: _answers(it))


def _answers(it: Outage) -> bool:
    try:
        return bool(it.ask("something new"))
    except openai.InternalServerError:
        return False


def test_an_engine_that_hangs_counts_as_dead(it: Outage) -> None:
    """Others answer for it; what it had begun goes on when it does, and it serves again."""
    with open_socket(it.running) as socket:
        send(socket, LONG)
        until(socket, "response.output_text.delta")
        [pid] = it.running.pids("engine-small")
        with paused(pid):
            assert it.fresh() == "roundhouse-demo-medium"
        assert until(socket, *ENDS)[-1]["type"] == "response.incomplete"
        eventually(lambda: it.fresh() == "roundhouse-demo-2m")


def test_an_engine_that_is_killed_costs_a_pause(it: Outage) -> None:
    """What it had begun goes on when the supervisor has started it again, word for word; others answer meanwhile."""
    asked = {**LONG, "temperature": 0, "roundhouse": {"cache": "no-store"}}
    with open_socket(it.running) as socket:
        send(socket, asked)
        whole = text_of(until(socket, *ENDS))
        send(socket, asked)
        events = until(socket, "response.output_text.delta")
        [pid] = it.running.pids("engine-small")
        os.kill(pid, signal.SIGKILL)
        assert it.fresh() == "roundhouse-demo-medium"
        events += until(socket, *ENDS)
        assert events[-1]["type"] == "response.incomplete"
        assert text_of(events) == whole
    eventually(lambda: it.fresh() == "roundhouse-demo-2m", 60)


def test_a_client_that_goes_away_costs_nothing(it: Outage) -> None:
    """Thirty sockets cut in the middle of an answer: engines are idle soon after, and nothing is held."""
    for _ in range(6):
        sockets = [open_socket(it.running) for _ in range(5)]
        for socket in sockets:
            send(socket, LONG)
        for socket in sockets:
            until(socket, "response.output_text.delta")
            socket.socket.close()
    eventually(lambda: it.metric("roundhouse_turns_running") == 0)
    eventually(lambda: it.metric("roundhouse_websocket_connections") == 0)
    assert it.ask()
