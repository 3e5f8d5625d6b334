"""Shows a run while it goes on: one line of a terminal, or a line every ten seconds elsewhere."""

from __future__ import annotations

import asyncio

from rich.console import Console
from rich.live import Live
from rich.text import Text

from load.run import OpenLoop
from load.statistics import Quantiles

_INTERVAL, _LOG_INTERVAL = 0.5, 10.0
_WINDOW = 10.0
"""Seconds whose turns count for the times that are shown."""


class ProgressLine:
    """What `watch` of a session shows, on one console."""

    def __init__(self, console: Console) -> None:
        self._console = console

    async def watch(self, loop: OpenLoop, planned: int) -> None:
        """Show a run until cancelled."""
        if not self._console.is_terminal:
            while True:
                await asyncio.sleep(_LOG_INTERVAL)
                self._console.print(describe(loop, planned), soft_wrap=True)
        with Live(console=self._console, refresh_per_second=4, transient=True) as live:
            while True:
                live.update(Text(describe(loop, planned)))
                await asyncio.sleep(_INTERVAL)


def describe(loop: OpenLoop, planned: int) -> str:
    """Return one line about a run so far."""
    now = loop.seconds
    recent: list[float | None] = []
    for turn in reversed(loop.turns):
        if turn.ended < now - _WINDOW:
            break
        recent.append(turn.ttft)
    ttft = Quantiles.of(recent)
    bad = sum(not turn.ended_well for turn in loop.turns)
    times = f"TTFT p50 {1000 * ttft.p50:,.0f} ms, p95 {1000 * ttft.p95:,.0f} ms" if ttft else "no first text yet"
    return (
        f"{now:.0f} s: {len(loop.turns):,} of {planned:,} turns ended, {loop.in_flight} in flight, {bad} bad; {times}"
    )
