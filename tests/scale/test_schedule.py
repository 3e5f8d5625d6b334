"""Bounds that hold at certain times of the week."""

from __future__ import annotations

from datetime import datetime

import msgspec
import pytest

from scale.schedule import BoundsWindow, bounds_at
from scale.signals import PoolBounds

ALWAYS = PoolBounds(min_replicas=1, max_replicas=10, spare=1)
OFFICE = BoundsWindow(days=("mon", "tue", "wed", "thu", "fri"), start="08:00", end="18:00", min_replicas=4)
NIGHT = BoundsWindow(days=("fri",), start="22:00", end="06:00", max_replicas=2)


@pytest.mark.parametrize(
    ("when", "expected"),
    [
        ("2026-11-26 07:59", (1, 10)),
        ("2026-11-26 08:00", (4, 10)),
        ("2026-11-26 18:00", (1, 10)),
        ("2026-11-28 09:00", (1, 10)),
        ("2026-11-27 23:00", (1, 2)),
        ("2026-11-28 05:59", (1, 2)),
        ("2026-11-28 06:00", (1, 10)),
        ("2026-11-28 22:30", (1, 10)),
    ],
)
def test_a_window_replaces_what_it_names_on_its_days(when: str, expected: tuple[int, int]) -> None:
    found = bounds_at(ALWAYS, [OFFICE, NIGHT], datetime.fromisoformat(when))
    assert (found.min_replicas, found.max_replicas, found.spare) == (*expected, 1)


def test_a_minimum_above_the_maximum_raises_it() -> None:
    window = BoundsWindow(start="00:00", end="00:00", min_replicas=20)
    found = bounds_at(ALWAYS, [window], datetime.fromisoformat("2026-11-26 12:00"))
    assert (found.min_replicas, found.max_replicas) == (20, 20)


def test_a_time_that_no_clock_shows_is_refused() -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"start": "25:00", "end": "06:00"}, BoundsWindow)


@pytest.mark.parametrize(
    "wrong",
    [
        {"min_replicas": 3, "max_replicas": 2},
        {"min_replicas": -1},
        {"max_replicas": 0, "min_replicas": 0},
        {"spare": -1},
        {"budget": 5.0},
        {"budget": 5.0, "price": 3.0, "min_replicas": 2, "max_replicas": 2},
    ],
    ids=str,
)
def test_bounds_that_contradict_each_other_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=r"replicas|spare|price"):
        PoolBounds(**wrong)  # type: ignore[arg-type]
