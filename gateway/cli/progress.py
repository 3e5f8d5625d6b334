"""Shows how far work has come: bars on a terminal, else a line now and then."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from time import monotonic
from typing import Protocol

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

_LINE_SECONDS = 20.0
"""Seconds between two lines of progress where there is no terminal."""


class ProgressReport(Protocol):
    """Is told the name of some work, and how much of it is done."""

    def __call__(self, name: str, done: int) -> None: ...


@contextmanager
def progress(names: Sequence[str], total: int, things: str = "questions") -> Iterator[ProgressReport]:
    """Show how much of each work is done, and how long the rest will take. Args: things: that are counted."""
    console = Console(stderr=True, highlight=False)
    if not console.is_terminal:
        yield _lines(total, things)
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, speed_estimate_period=120) as shown:
        tasks: dict[str, TaskID] = {name: shown.add_task(name, total=total, start=False) for name in names}

        def said(name: str, done: int) -> None:
            shown.start_task(tasks[name])
            shown.update(tasks[name], completed=done)

        yield said


def _lines(total: int, things: str) -> ProgressReport:
    """Print a line when work begins and ends, and now and then between."""
    begun: dict[str, tuple[float, int]] = {}
    last = float("-inf")

    def said(name: str, done: int) -> None:
        nonlocal last
        now = monotonic()
        started, at = begun.setdefault(name, (now, done))
        if done in (at, total) or now - last >= _LINE_SECONDS:
            left = f", about {(now - started) / (done - at) * (total - done):.0f} s left" if at < done < total else ""
            click.echo(f"{name}: {done} of {total} {things}{left}", err=True)
            last = now

    return said
