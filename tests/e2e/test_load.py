"""`roundhouse load` on a whole Roundhouse: what breaks off goes on, and no character is lost or doubled."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from bench.servers import process, wait_for
from load.connections.address import Address
from load.objectives import Objectives
from load.plan import TrafficPlan
from load.report.document import LoadReport
from load.run import OpenLoop
from load.session import LoadSession, LoadTarget, Schedule
from tests.e2e.conftest import KEY, Installation
from tests.ports import free_port


def load(url: str, *options: str, folder: Path) -> tuple[int, LoadReport]:
    done = subprocess.run(
        [sys.executable, "-m", "gateway.cli", "load", url, "--output", str(folder), *options],
        env={**os.environ, "ROUNDHOUSE_API_KEY": KEY},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode in (0, 1), done.stderr
    assert KEY not in done.stdout + done.stderr
    return done.returncode, msgspec.json.decode((folder / "report.json").read_bytes(), type=LoadReport)


def test_every_character_arrives_though_sockets_break_and_turns_are_cancelled(
    roundhouse: Installation, tmp_path: Path
) -> None:
    options = ["--rate", "6", "--duration", "6", "--model", "small", "--timeout", "120", "--seed", "1"]
    options += ["--protocol", "responses=3", "--protocol", "responses-http=2", "--protocol", "chat"]
    options += ["--drop", "0.4", "--cancel", "0.2", "--repeat", "0.2", "--output-tokens", "40-60"]
    # Both answers to a question that is asked twice are computed.
    status, report = load(roundhouse.url, *options, "--body", '{"roundhouse": {"cache": "no-store"}}', folder=tmp_path)
    summary = report.run.summary
    assert (status, summary.errors) == (0, {})
    assert summary.resumed is not None and summary.stopped is not None
    assert set(summary.ends) <= {"completed", "cancelled"}
    assert set(report.groups["protocol"]) == {"chat", "responses", "responses-http"}


@pytest.fixture
def stub(tmp_path: Path) -> Iterator[tuple[int, int]]:
    """A plain OpenAI-compatible server, as its port and process id: first text after 50 ms, then one every 5 ms."""
    port = free_port()
    command = [sys.executable, "-m", "bench.stub", "--http", str(port), "--frames", str(tmp_path), "--token", "0"]
    with process([*command, "--chunks", "8", "--ttft", "0.05", "--itl", "0.005"]) as running:
        wait_for(port)
        yield port, running.pid


@pytest.mark.anyio
async def test_turns_that_are_due_while_a_server_stands_still_count_from_their_due_time(stub: tuple[int, int]) -> None:
    port, pid = stub
    woken = 0.0

    async def stop_for_a_while(loop: OpenLoop, planned: int) -> None:
        nonlocal woken
        os.kill(pid, signal.SIGSTOP)
        await asyncio.sleep(1.0)
        woken = loop.seconds
        os.kill(pid, signal.SIGCONT)

    target = LoadTarget(Address("127.0.0.1", port, False, "/v1"), {"t": {}})
    plan = TrafficPlan(models=(("stub", 1.0),), protocols=(("chat", 1.0),), tenants=("t",))
    schedule = Schedule(arrivals="constant", duration=2.0)
    run, turns = await LoadSession(target, plan, schedule, Objectives(), watch=stop_for_a_while).measure(20.0)
    assert run.summary.turns == 40 and run.summary.verdict.met
    within = [each for each in turns if each.plan.start < woken]
    assert len(within) >= 20
    for each in within:
        assert each.ttft is not None and each.ttft >= woken - each.plan.start
