"""The report of a load test: what its page and its JSON show."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from typing import Any

import msgspec

from load.objectives import LoadVerdict, Objectives
from load.records import MeasuredTurn
from load.search import bracket
from load.statistics import LoadRun, LoadSummary, grouped, summarise

VERSION = 1


class LoadReport(msgspec.Struct, frozen=True):
    """One load test. Times in seconds, rates per second; no keys and no texts."""

    version: int
    date: str
    target: str
    options: dict[str, Any]
    """The command line's, so that the test can be run again."""
    objectives: Objectives
    runs: list[LoadRun]
    """One, or those of a search in their order."""
    shown: int
    """Which run the groups and plots are of."""
    groups: dict[str, dict[str, LoadSummary]]
    """Its turns by tenant, model and protocol, where there are several."""
    capacity: float | None
    """Highest rate of a search that kept the objectives."""
    verdict: LoadVerdict

    @property
    def run(self) -> LoadRun:
        return self.runs[self.shown]


def make_report(
    runs: Sequence[LoadRun],
    turns: Sequence[MeasuredTurn],
    objectives: Objectives,
    target: str,
    options: dict[str, Any],
    *,
    searched: bool,
) -> LoadReport:
    """Return the report of a run, or of a search; `turns` are those of its best run."""
    capacity = bracket([(run.rate, run.summary.verdict.met and not run.stopped) for run in runs])[0]
    shown = next((at for at, run in enumerate(runs) if searched and run.rate == capacity), 0)
    arriving = len(turns) / runs[shown].summary.offered if turns else 1.0
    parts = {
        "tenant": grouped(turns, lambda each: each.plan.tenant),
        "model": grouped(turns, lambda each: each.plan.model),
        "protocol": grouped(turns, lambda each: each.plan.protocol),
    }
    verdict = runs[shown].summary.verdict
    if searched and capacity is None:
        verdict = LoadVerdict(False, verdict.attainment, ("no rate kept the objectives",))
    return LoadReport(
        version=VERSION,
        date=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        target=target,
        options=options,
        objectives=objectives,
        runs=list(runs),
        shown=shown,
        groups={
            name: {part: summarise(group, objectives, arriving) for part, group in groups.items()}
            for name, groups in parts.items()
            if len(groups) > 1
        },
        capacity=capacity if searched else None,
        verdict=verdict,
    )
