"""Figures of a run: quantiles, rates and counts."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

import msgspec

from load.objectives import LoadVerdict, Objectives, verdict
from load.records import MeasuredTurn, TurnEnd

_MOST_ERRORS = 20
"""Different errors that are told, the most frequent ones."""


def quantile(ordered: Sequence[float], share: float) -> float:
    """Return the smallest of the values, which are in order, that at least `share` of all do not exceed."""
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


class Quantiles(msgspec.Struct, frozen=True):
    """A distribution, in the unit of its values."""

    count: int
    mean: float
    p50: float
    p90: float
    p95: float
    p99: float
    p999: float
    maximum: float

    @classmethod
    def of(cls, values: Iterable[float | None]) -> Quantiles | None:
        """Return the distribution of the values that are not None; None if there are none."""
        ordered = sorted(each for each in values if each is not None)
        if not ordered:
            return None
        p50, p90, p95, p99, p999 = (quantile(ordered, share) for share in (0.5, 0.9, 0.95, 0.99, 0.999))
        return cls(len(ordered), math.fsum(ordered) / len(ordered), p50, p90, p95, p99, p999, ordered[-1])


class LoadSummary(msgspec.Struct, frozen=True):
    """A run, or a part of its turns. Latencies in seconds, from the intended starts."""

    turns: int
    seconds: float
    """From the run's beginning to the last turn's end."""
    offered: float
    """Turns per second that were due while turns arrived."""
    completed: float
    """Turns per second that ended well."""
    goodput: float
    """Turns per second that ended well within all bounds."""
    output_tokens: float
    """Tokens of answers per second."""
    most_in_flight: int
    """Most turns that were due and had not ended at the same time."""
    ends: dict[str, int]
    """Number of turns by their end."""
    errors: dict[str, int]
    """Number of turns by what went wrong."""
    verdict: LoadVerdict
    ttft: Quantiles | None
    itl: Quantiles | None
    """Gaps between pieces of text, of all turns."""
    tpot: Quantiles | None
    e2e: Quantiles | None
    """Of turns that completed."""
    late: Quantiles | None
    """From the intended start until the request was written; part of the TTFT."""
    resumed: Quantiles | None
    """From the cut of a connection to the next text."""
    stopped: Quantiles | None
    """From cancelling to the end."""


class LoadRun(msgspec.Struct, frozen=True):
    """One run at one rate."""

    rate: float
    """Turns per second that were intended."""
    stopped: bool
    """Whether it ended before all its turns had begun."""
    summary: LoadSummary


def summarise(turns: Sequence[MeasuredTurn], objectives: Objectives, arriving: float) -> LoadSummary:
    """Reduce turns to figures; `arriving`: seconds during which turns were due."""
    seconds = max((each.ended for each in turns), default=0.0) or 1.0
    ended_well = [each for each in turns if each.ended_well]
    return LoadSummary(
        turns=len(turns),
        seconds=seconds,
        offered=len(turns) / arriving,
        completed=len(ended_well) / seconds,
        goodput=sum(map(objectives.good, turns)) / seconds,
        output_tokens=sum(each.tokens for each in turns) / seconds,
        most_in_flight=most_in_flight(turns),
        ends=dict(Counter(each.end.value for each in turns)),
        errors=dict(
            Counter(reason for each in turns if (reason := each.fault or each.error)).most_common(_MOST_ERRORS)
        ),
        verdict=verdict(turns, objectives),
        ttft=Quantiles.of(each.ttft for each in turns),
        itl=Quantiles.of(gap for each in turns for gap in each.gaps),
        tpot=Quantiles.of(each.tpot for each in turns),
        e2e=Quantiles.of(each.e2e for each in turns if each.end is TurnEnd.COMPLETED),
        late=Quantiles.of(each.late for each in turns),
        resumed=Quantiles.of(each.resumed for each in turns),
        stopped=Quantiles.of(each.stopped for each in turns),
    )


def most_in_flight(turns: Iterable[MeasuredTurn]) -> int:
    """Return the most turns that overlap, each from its intended start to its end."""
    changes = [(each.plan.start, 1) for each in turns] + [(each.ended, -1) for each in turns]
    running = most = 0
    for _, change in sorted(changes):
        running += change
        most = max(most, running)
    return most


def grouped(turns: Iterable[MeasuredTurn], name: Callable[[MeasuredTurn], str]) -> dict[str, list[MeasuredTurn]]:
    """Return the turns by a name of each."""
    groups: dict[str, list[MeasuredTurn]] = {}
    for each in turns:
        groups.setdefault(name(each), []).append(each)
    return dict(sorted(groups.items()))
