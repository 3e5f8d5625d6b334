"""Bounds that hold at certain times of the week."""

from __future__ import annotations

from datetime import datetime
from zoneinfo import ZoneInfo

import pytest

from scale.schedule import BoundsWindow, bounds_at
from scale.signals import PoolBounds

ALWAYS = PoolBounds(min_replicas=1, max_replicas=10, spare=1)
OFFICE = BoundsWindow(days=("mon", "tue", "wed", "thu", "fri"), start="08:00", end="18:00", min_replicas=4)
NIGHT = BoundsWindow(days=("fri",), start="22:00", end="06:00", max_replicas=2)


def seconds(when: str, zone: str = "UTC") -> float:
    return datetime.fromisoformat(when).replace(tzinfo=ZoneInfo(zone)).timestamp()


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
    found = bounds_at(ALWAYS, [OFFICE, NIGHT], seconds(when))
    assert (found.min_replicas, found.max_replicas, found.spare) == (*expected, 1)


def test_a_minimum_above_the_maximum_raises_it() -> None:
    window = BoundsWindow(start="00:00", end="00:00", min_replicas=20)
    found = bounds_at(ALWAYS, [window], seconds("2026-11-26 12:00"))
    assert (found.min_replicas, found.max_replicas) == (20, 20)


@pytest.mark.parametrize("when", ["2026-01-15 08:30", "2026-07-15 08:30"], ids=["winter", "summer"])
def test_a_window_follows_the_clocks_of_its_time_zone(when: str) -> None:
    window = BoundsWindow(start="08:00", end="09:00", timezone="Europe/Berlin", min_replicas=4)
    assert window.holds(seconds(when, "Europe/Berlin"))
    assert not window.holds(seconds(when))


def test_of_windows_that_overlap_the_later_one_holds() -> None:
    fair = BoundsWindow(start="09:00", end="12:00", min_replicas=8, max_replicas=20)
    found = bounds_at(ALWAYS, [OFFICE, fair], seconds("2026-11-26 10:00"))
    assert (found.min_replicas, found.max_replicas) == (8, 20)
    found = bounds_at(ALWAYS, [fair, OFFICE], seconds("2026-11-26 10:00"))
    assert (found.min_replicas, found.max_replicas) == (4, 20)


@pytest.mark.parametrize(
    "wrong",
    [
        {"min_replicas": 3, "max_replicas": 2},
        {"min_replicas": -1},
        {"max_replicas": 0, "min_replicas": 0},
        {"spare": -1},
        {"budget": 5.0},
        {"budget": 5.0, "price": 3.0, "spot_price": 0.0},
        {"budget": 5.0, "price": 3.0, "min_replicas": 2, "max_replicas": 2},
    ],
    ids=str,
)
def test_bounds_that_contradict_each_other_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=r"replicas|spare|price"):
        PoolBounds(**wrong)  # type: ignore[arg-type]
