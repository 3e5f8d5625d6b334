"""When to come back."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from router.shedding import LONGEST, Turnover


def test_places_are_promised_one_after_another() -> None:
    """At the pace at which turns end: four places that are held for two seconds are free every half second."""
    turnover = Turnover()
    turnover.ended(2.0)
    assert [turnover.retry_after(4, 10.0) for _ in range(3)] == [0.5, 1.0, 1.5]
    assert turnover.retry_after(4, 11.0) == 1.0
    assert turnover.retry_after(4, 100.0) == 0.5


def test_late_turns_count_most() -> None:
    turnover = Turnover()
    turnover.ended(100.0)
    for _ in range(100):
        turnover.ended(1.0)
    assert turnover.retry_after(1, 0.0) < 1.1


@given(st.lists(st.tuples(st.floats(0, 1e4), st.floats(0, 100)), max_size=50), st.integers(1, 1000))
def test_nobody_is_told_nothing_or_to_stay_away_for_ever(steps: list[tuple[float, float]], places: int) -> None:
    turnover, now = Turnover(), 0.0
    for held, pause in steps:
        turnover.ended(held)
        now += pause
        assert 0 <= turnover.retry_after(places, now) <= LONGEST + 1e-6
