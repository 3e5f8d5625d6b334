"""What is shown of a run while it goes on."""

from __future__ import annotations

import asyncio
import contextlib
import io

import pytest
from rich.console import Console

from load.progress import ProgressLine, describe
from load.records import TurnEnd
from load.run import OpenLoop
from tests.load.samples import measured


async def never(*_: object) -> None:
    raise AssertionError("no turn is run here")


def running() -> OpenLoop:
    loop = OpenLoop(never)  # type: ignore[arg-type]
    loop.turns = [measured(), measured(first=0.3), measured(end=TurnEnd.LOST, first=None)]
    return loop


def test_ends_faults_and_recent_times_are_told() -> None:
    said = describe(running(), 1000)
    assert "3 of 1,000 turns ended, 0 in flight, 1 bad; TTFT p50 100 ms, p95 300 ms" in said


def test_a_run_without_text_says_so() -> None:
    assert "no first text yet" in describe(OpenLoop(never), 5)  # type: ignore[arg-type]


@pytest.mark.anyio
async def test_a_terminal_shows_it_at_once() -> None:
    output = io.StringIO()
    line = ProgressLine(Console(file=output, force_terminal=True, width=120))
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(0.4):
            await line.watch(running(), 9)
    assert "3 of 9 turns ended" in output.getvalue()
