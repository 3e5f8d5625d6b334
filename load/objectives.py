"""Service level objectives: what a good turn is, and whether enough turns were good."""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec

from load.records import MeasuredTurn

_BOUND = re.compile(r"(ttft|tpot|e2e)=([0-9.]+)(ms|s)?")


class Objectives(msgspec.Struct, frozen=True):
    """Bounds of one turn in seconds (None: no bound), and the share of all turns that must keep them."""

    ttft: float | None = None
    """From the intended start to the first text."""
    tpot: float | None = None
    """Time per output token: mean from the first token to the last."""
    e2e: float | None = None
    """From the intended start to the end."""
    attainment: float = 0.99

    def good(self, turn: MeasuredTurn) -> bool:
        """Whether a turn ended as it should, has the right text, and keeps all bounds."""
        return turn.ended_well and all(
            bound is None or (value is not None and value <= bound)
            for bound, value in ((self.ttft, turn.ttft), (self.tpot, turn.tpot or 0.0), (self.e2e, turn.e2e))
        )

    def __str__(self) -> str:
        bounds = [f"{name} <= {value:g} s" for name in ("ttft", "tpot", "e2e") if (value := getattr(self, name))]
        return f"{100 * self.attainment:g} % of turns {'with ' + ', '.join(bounds) if bounds else 'answered'}"


class LoadVerdict(msgspec.Struct, frozen=True):
    """Whether a run kept its objectives, and why not."""

    met: bool
    attainment: float
    """Share of all turns that were good."""
    reasons: tuple[str, ...]


def parse_objectives(text: str, attainment: float = 0.99) -> Objectives:
    """Read bounds such as `ttft=1,tpot=50ms`.

    Raises:
        ValueError: it is none.
    """
    bounds: dict[str, float] = {}
    for part in filter(None, (each.strip() for each in text.split(","))):
        found = _BOUND.fullmatch(part)
        if found is None:
            raise ValueError(f"{part!r} is no bound: write ttft=1, tpot=50ms or e2e=30s")
        name, number, unit = found.groups()
        bounds[name] = float(number) / (1000 if unit == "ms" else 1)
    return Objectives(**bounds, attainment=attainment)


def verdict(turns: Sequence[MeasuredTurn], objectives: Objectives) -> LoadVerdict:
    """Judge a run. A wrong text is never excused, whatever share of turns is good."""
    if not turns:
        return LoadVerdict(False, 0.0, ("no turn was sent",))
    share = sum(map(objectives.good, turns)) / len(turns)
    reasons = []
    if share < objectives.attainment:
        reasons.append(f"{100 * share:.2f} % of turns were good; wanted: {objectives}")
    if wrong := sum(turn.fault is not None for turn in turns):
        reasons.append(f"{wrong} turns have a wrong text")
    return LoadVerdict(not reasons, share, tuple(reasons))


def lost(bad: int, planned: int, objectives: Objectives) -> bool:
    """Whether so many bad turns of a run with so many planned ones leave no way to reach the attainment."""
    return bad > (1 - objectives.attainment) * planned
