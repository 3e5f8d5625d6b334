"""What a run found, as a table."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

from bench.report import Environment
from tests.chaos.faults import LOSES_ENGINE, Injected, Kind
from tests.chaos.invariants import Excuse, gaps, quantile
from tests.chaos.records import TurnRecord
from tests.chaos.run import Outcome

PAGE = Path(__file__).parents[2] / "bench" / "results" / "chaos.md"
_MOVES = LOSES_ENGINE - {Kind.ENGINE_STOPPED} | {Kind.ENGINE_DRAINED}
"""Kinds after which another engine goes on with the harmed one's answers."""
HUNG_AIM = 6.0
"""Seconds in which a hung core should be noticed."""
_PREFACE = """\
# Random faults

{environment}.

Clients, gateways, engines and Redis share the machine. Written by `make chaos CHAOS_ARGS=--write`;
[failures.md](../../docs/failures.md#random-faults) says what is injected and what must hold. *Under way* are turns that
ran when a fault began; *moved* are those of the harmed engine that were in the middle of their text; a *gap* is the
longest pause in the text of a turn around the fault.\
"""
_NUMBERS = re.compile(r"\w*\d\w*")
"""What differs between problems of one sort: numbers and ids."""
_HEAD = """\
| fault | times | turns under way | moved | failed, and why they may | gap p50, s | gap p99, s |
|---|--:|--:|--:|---|--:|--:|
"""


def summary(outcome: Outcome) -> str:
    """Return the figures of a run in a few lines."""
    plan, turns = outcome.plan, outcome.turns
    # A budget that is spent is no failure of ours, but what it is for.
    failed = Counter(_failure(turn, why) for turn, why in outcome.excused if why.kind)
    refused = Counter(code for turn in turns for _, code in turn.refusals)
    moved = sum(len(gaps(turns, fault)) for fault in outcome.injected if fault.kind in _MOVES)
    lines = [
        f'seed {plan.seed}, {plan.clients} clients, `on_redis_down = "{plan.on_redis_down}"`, {outcome.seconds:.0f} s',
        f"{len(outcome.injected)} faults, {len(turns)} turns, {sum(turn.interruptions for turn in turns)} connections "
        f"lost, {moved} answers moved in the middle of their text",
        f"wrong: **{len(outcome.problems)}** (text lost, doubled or changed; numbers, tokens, ledger, limits, leaks); "
        f"limits compared {outcome.looks} times",
        f"failed as they may: {_counts(failed)}",
        f"refused, and asked again: {_counts(refused)}",
    ]
    kills = [gap for fault in outcome.injected if fault.kind is Kind.ENGINE_KILLED for gap in gaps(turns, fault)]
    if kills:
        lines.append(
            f"gap at the kill of an engine: p50 {quantile(kills, 0.5):.2f} s, p99 {quantile(kills, 0.99):.2f} s"
        )
    hung = [fault.noticed for fault in outcome.injected if fault.noticed is not None]
    if hung:
        late = sum(seconds > HUNG_AIM for seconds in hung)
        lines.append(f"hung cores noticed within {max(hung):.1f} s; {late} of {len(hung)} later than {HUNG_AIM:g} s")
    if outcome.skipped:
        lines.append(f"not injected on this machine: {', '.join(outcome.skipped)}")
    return "\n".join(f"- {line}" for line in lines)


def table(outcome: Outcome) -> str:
    """Return a line for each kind of fault."""
    lines = []
    for kind in Kind:
        faults = [fault for fault in outcome.injected if fault.kind is kind]
        if faults:
            lines.append(_line(kind, faults, outcome))
    return _HEAD + "\n".join(lines)


def _line(kind: Kind, faults: list[Injected], outcome: Outcome) -> str:
    caught = [gap for fault in faults for gap in gaps(outcome.turns, fault)]
    begun = [fault.began for fault in faults]
    under_way = sum(turn.began <= at <= (turn.ended or math.inf) for turn in outcome.turns for at in begun)
    failed = Counter(_failure(turn, why) for turn, why in outcome.excused if why.kind is kind)
    moved = str(len(caught)) if kind in _MOVES else ""
    p50, p99 = (f"{quantile(caught, share):.2f}" if caught else "" for share in (0.5, 0.99))
    return f"| {kind} | {len(faults)} | {under_way} | {moved} | {_counts(failed)} | {p50} | {p99} |"


def _failure(turn: TurnRecord, why: Excuse) -> str:
    return f"{turn.failure.partition(':')[0]} ({why.reason})"


def _counts(counted: Counter[str]) -> str:
    return ", ".join(f"{count} {name}" for name, count in counted.most_common()) or "none"


def grouped(problems: Iterable[str]) -> list[str]:
    """Return a line for each sort of problem, the most frequent first: how many there are, and one of them."""
    sorts: dict[str, list[str]] = {}
    for problem in problems:
        said = problem.partition(": ")[2] or problem
        sorts.setdefault(_NUMBERS.sub("#", said), []).append(problem)
    return [f"{len(each)} times: {each[0]}" for each in sorted(sorts.values(), key=len, reverse=True)]


def write(parts: Mapping[str, Outcome]) -> None:
    """Write the page of results."""
    PAGE.write_text(page(parts))


def page(parts: Mapping[str, Outcome]) -> str:
    """Return the page of results: a section for each run."""
    sections = [f"## {name}\n\n{summary(outcome)}\n\n{table(outcome)}" for name, outcome in parts.items()]
    return "\n\n".join([_PREFACE.format(environment=Environment.here()), *sections]) + "\n"
