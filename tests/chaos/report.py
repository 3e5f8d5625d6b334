"""What a run found, as a table."""

from __future__ import annotations

import math
import platform
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from tests.chaos.faults import LOSES_ENGINE, Injected, Kind
from tests.chaos.invariants import excuse, gaps, quantile
from tests.chaos.records import TurnRecord
from tests.chaos.run import Outcome

PAGE = Path(__file__).parents[2] / "bench" / "results" / "chaos.md"
HUNG_AIM = 6.0
"""Seconds in which a hung core should be noticed."""
_HEAD = """\
| fault | times | turns under way | moved | failed, and why they may | gap p50, s | gap p99, s |
|---|--:|--:|--:|---|--:|--:|
"""


def summary(outcome: Outcome) -> str:
    """Return the figures of a run in a few lines."""
    plan, turns = outcome.plan, outcome.turns
    failed = Counter(turn.failure for turn in turns if turn.failure and turn.failure != "insufficient_quota")
    interruptions = sum(turn.interruptions for turn in turns)
    refused = Counter(code for turn in turns for _, code in turn.refusals)
    hung = [fault.noticed for fault in outcome.injected if fault.noticed is not None]
    lines = [
        f'seed {plan.seed}, {plan.clients} clients, `on_redis_down = "{plan.on_redis_down}"`, '
        f"{outcome.seconds:.0f} s, {platform.machine()}",
        f"{len(outcome.injected)} faults, {len(turns)} turns, {interruptions} connections lost on the way, "
        f"at least {outcome.moves} answers moved",
        f"failed: {_counts(failed)}; refused, and asked again: {_counts(refused)}",
        f"wrong: {len(outcome.problems)} (text lost, doubled or changed, numbers, tokens, ledger, limits, leaks); "
        f"limits compared {outcome.looks} times",
    ]
    if hung:
        late = sum(seconds > HUNG_AIM for seconds in hung)
        lines.append(f"hung cores noticed after {max(hung):.1f} s at most; {late} of {len(hung)} after {HUNG_AIM:g} s")
    return "\n".join(f"- {line}" for line in lines)


def table(outcome: Outcome) -> str:
    """Return a line for each kind of fault."""
    lines = []
    for kind in Kind:
        faults = [fault for fault in outcome.injected if fault.kind is kind]
        if faults:
            lines.append(_line(kind, faults, outcome.turns, outcome.injected))
    return _HEAD + "\n".join(lines)


def _line(
    kind: Kind,
    faults: list[Injected],
    turns: list[TurnRecord],
    injected: list[Injected],
) -> str:
    caught = [gap for fault in faults for gap in gaps(turns, fault)]
    touched = [turn for turn in turns if any(fault.touches(turn.began, turn.ended or math.inf) for fault in faults)]
    failed = Counter(
        f"{turn.failure.partition(':')[0]}: {excuse(turn, injected)}"
        for turn in touched
        if turn.failure and turn.failure != "insufficient_quota"
    )
    moved = str(len(caught)) if kind in LOSES_ENGINE and kind is not Kind.ENGINE_STOPPED else ""
    p50, p99 = (f"{quantile(caught, share):.2f}" if caught else "" for share in (0.5, 0.99))
    return f"| {kind} | {len(faults)} | {len(touched)} | {moved} | {_counts(failed)} | {p50} | {p99} |"


def _counts(counted: Counter[str]) -> str:
    return ", ".join(f"{count} {name}" for name, count in counted.most_common()) or "none"


def write(page: Iterable[str]) -> None:
    """Write the page of results."""
    PAGE.write_text("\n\n".join(page) + "\n")
