"""Turns for tests."""

from __future__ import annotations

from typing import Any

from load.plan import PlannedTurn, TrafficPlan
from load.records import MeasuredTurn, TurnEnd

PLAN = TrafficPlan(models=(("one", 1.0),), protocols=(("chat", 1.0),), tenants=("a",))


def planned(number: int = 0, start: float = 0.0, **fields: Any) -> PlannedTurn:
    common = {"tenant": "a", "model": "one", "protocol": "chat", "prompt": "Hello?", "output_tokens": 64}
    return PlannedTurn(number=number, start=start, **(common | fields))


def measured(start: float = 0.0, *, number: int = 0, repeats: int | None = None, **fields: Any) -> MeasuredTurn:
    """A turn of eleven tokens that came well, its first one after 0.1 s and then each after 0.01 s."""
    common = {
        "end": TurnEnd.COMPLETED,
        "sent": start,
        "first": start + 0.1,
        "last": start + 0.2,
        "ended": start + 0.2,
        "output_tokens": 11,
    }
    return MeasuredTurn(plan=planned(number, start, repeats=repeats), **(common | fields))
