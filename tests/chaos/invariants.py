"""What must hold whatever fails, as pure functions of what clients saw, what was injected and what Redis holds."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

from gateway.billing.entry import LedgerEntry
from gateway.turns.ids import gateway_of
from tests.chaos.cases import Whole
from tests.chaos.faults import ENGINES, LANES, LOSES_ENGINE, REDIS_AWAY, Injected, Kind
from tests.chaos.records import TurnRecord

PICO = 1_000_000
"""Picodollars of a micro-dollar."""
_ENGINES_LOST = 3
"""Engines that one answer may lose before it fails, see `turns.move_timeout` in docs/failures.md."""
_SLACK = 5.0
"""Seconds in which a fault may still be felt: connections come back, breakers close."""
_AFTERMATH = 15.0
"""Seconds after a fault in which turns may be refused: breakers try again at growing intervals."""
_SILENT = 2.0
"""Seconds without a heartbeat after which other gateways may give a gateway up."""
_FOR_ALL = frozenset({Kind.REDIS_KILLED, Kind.REDIS_STOPPED, Kind.REDIS_FULL})
"""Kinds that take Redis from all gateways."""
_GIVEN_UP = frozenset({"gateway_lost", "response_not_found"})


def wrong(turn: TurnRecord, whole: Whole) -> list[str]:
    """Return what is wrong with a turn, beside that it may have failed: text lost, doubled or different."""
    found = list(turn.problems)
    if turn.failure:
        if not whole.text.startswith(turn.text):
            found.append(f"failed after a text that nobody has asked for: {_difference(turn.text, whole.text)}")
        return found
    if turn.text != whole.text:
        found.append(f"another text: {_difference(turn.text, whole.text)}")
    if turn.ending not in (whole.ending, "shown"):
        found.append(f"ended as {turn.ending!r} instead of {whole.ending!r}")
    counted = turn.input_tokens, turn.output_tokens
    if turn.ending != "shown" and counted != (whole.input_tokens, whole.output_tokens):
        found.append(f"counted {counted} tokens instead of {(whole.input_tokens, whole.output_tokens)}")
    return found


class Excuse(NamedTuple):
    """Why a turn may have failed, by docs/failures.md, and the kind of fault that is the reason."""

    reason: str
    kind: Kind | None = None


def excuse(turn: TurnRecord, faults: Sequence[Injected]) -> Excuse | None:
    """Return why this turn may fail, or None if it may not."""
    ended = turn.ended or math.inf
    during = [fault for fault in faults if fault.touches(turn.began, ended, _SLACK)]
    if turn.failure == "engine_failed":
        lost = [fault for fault in during if fault.kind in LOSES_ENGINE]
        return Excuse("three engines lost", lost[-1].kind) if len(lost) >= _ENGINES_LOST else None
    if turn.failure == "unavailable":
        away = [fault for fault in faults if fault.kind in LANES[0] and fault.touches(turn.began, ended, _AFTERMATH)]
        return Excuse("no engine was there", away[-1].kind) if len(away) >= ENGINES else None
    if turn.failure == "insufficient_quota":
        return Excuse("its budget is spent") if turn.tenant == "poor" else None
    gone = turn.failure in _GIVEN_UP or turn.failure.startswith("told: ")
    dropped = any(fault.kind is Kind.REDIS_FULL for fault in during)
    return next((found for fault in during if (found := _gone(turn, fault, dropped))), None) if gone else None


def _gone(turn: TurnRecord, fault: Injected, dropped: bool) -> Excuse | None:
    """Return the excuse if the fault took the turn's gateway away, or seemed to.

    The turn must be found even so, unless Redis has dropped what it knew to make room (`dropped`).
    """
    if turn.failure == "response_not_found" and not dropped:
        return None
    gateways = {gateway_of(id) for id in turn.ids}
    its_own = fault.gateway in gateways or not gateways  # a terminal does not tell where it was
    if fault.kind is Kind.GATEWAY_KILLED and its_own:
        return Excuse("its gateway was killed", fault.kind)
    if _silenced(fault) and (its_own or fault.kind in _FOR_ALL):
        return Excuse("its gateway counted as dead", fault.kind)
    return None


def _silenced(fault: Injected) -> bool:
    """Whether the fault kept heartbeats of a gateway from the others for long enough."""
    return fault.kind in REDIS_AWAY | {Kind.GATEWAY_STOPPED} and fault.ended - fault.began >= _SILENT


def refused_without_reason(turn: TurnRecord, faults: Sequence[Injected]) -> list[str]:
    """Return refusals, other than for a limit, at times when nothing was broken."""
    return [
        f"refused as {code} while nothing was broken"
        for at, code in turn.refusals
        if code != "rate_limit_exceeded" and not any(fault.touches(at, at, _AFTERMATH) for fault in faults)
    ]


def billed(turns: Iterable[TurnRecord], entries: Sequence[LedgerEntry]) -> list[str]:
    """Return where the ledger differs from the usage that clients were told."""
    by_turn: dict[str, list[LedgerEntry]] = {}
    for entry in entries:
        by_turn.setdefault(entry.turn, []).append(entry)
    found = [f"{turn} stands in the ledger {len(own)} times" for turn, own in by_turn.items() if len(own) > 1]
    for turn in turns:
        if turn.failure or turn.ending == "shown" or turn.ended is None:
            continue
        own = by_turn.get(turn.ids[-1], [])
        if not own:
            found.append(f"{turn.ids[-1]} ({turn.case.name}) is not in the ledger")
            continue
        entry = own[0]
        if (entry.input, entry.output) != (turn.input_tokens, turn.output_tokens):
            found.append(
                f"{entry.turn} was charged {entry.input} and {entry.output} tokens ({entry.outcome}), "
                f"its client was told {turn.input_tokens} and {turn.output_tokens}"
            )
        elif turn.cost is not None and turn.cost != math.ceil((entry.picodollars or 0) / PICO):
            found.append(
                f"{entry.turn} costs {entry.picodollars} picodollars, its client was told {turn.cost} microdollars"
            )
    return found


def gaps(turns: Iterable[TurnRecord], fault: Injected) -> list[float]:
    """Return how long the fault kept each turn that it caught between two pieces of its text, in seconds.

    Of a fault of an engine, only turns that began there count.
    """
    until = fault.began + fault.fault.seconds + 1.0
    found = []
    for turn in turns:
        if fault.kind in LANES[0] and turn.replica != fault.replica:
            continue
        if turn.moments and turn.moments[0] <= fault.began < turn.moments[-1]:
            pauses = pairwise(turn.moments)
            found.append(max(after - at for at, after in pauses if after >= fault.began and at <= until))
    return found


def quantile(values: Sequence[float], share: float) -> float:
    """Return the smallest value that so many of the values do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else math.nan


def _difference(text: str, whole: str) -> str:
    same = next((i for i, (a, b) in enumerate(zip(text, whole, strict=False)) if a != b), min(len(text), len(whole)))
    return f"{text[same : same + 40]!r} at character {same} of {len(whole)}, where {whole[same : same + 40]!r} is right"
