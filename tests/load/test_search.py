"""The search finds the highest rate that a server takes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from load.search import LOWEST, bracket, next_rate


def searched(capacity: float, first: float, most: float, precision: float) -> list[tuple[float, bool]]:
    tried: list[tuple[float, bool]] = []
    while (rate := next_rate(tried, first, most, precision)) is not None:
        tried.append((rate, rate <= capacity))
        assert len(tried) < 100
    return tried


@given(
    capacity=st.floats(0.5, 500), first=st.floats(0.5, 500), precision=st.floats(0.02, 1.0), most=st.floats(501, 2000)
)
def test_the_answer_is_within_the_precision(capacity: float, first: float, precision: float, most: float) -> None:
    met, missed = bracket(searched(capacity, first, most, precision))
    if capacity < first * LOWEST:
        assert met is None
        return
    assert met is not None and missed is not None
    assert met <= capacity < missed <= met * (1 + precision) * (1 + 1e-9)


@given(first=st.floats(0.1, 100), most=st.floats(1, 1000))
def test_it_goes_no_higher_than_it_may(first: float, most: float) -> None:
    tried = searched(1e9, first, most, 0.1)
    assert tried[-1][0] == most
    assert max(rate for rate, _ in tried) == most


def test_it_gives_up_far_below_the_first_rate() -> None:
    tried = searched(0.0, 64.0, 1000.0, 0.1)
    assert [rate for rate, _ in tried] == [64.0, 32.0, 16.0, 8.0, 4.0, 2.0, 1.0]
    assert bracket(tried) == (None, 1.0)


def test_a_lucky_run_above_a_missed_rate_does_not_count() -> None:
    assert bracket([(1.0, True), (2.0, False), (4.0, True)]) == (1.0, 2.0)
    assert next_rate([(1.0, True), (2.0, False), (4.0, True)], 1.0, 9.0, 0.1) == pytest.approx(2**0.5)
