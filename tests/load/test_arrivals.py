"""When turns arrive."""

from __future__ import annotations

from itertools import islice, pairwise
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from load.arrivals import constant, poisson


@given(rate=st.floats(0.01, 10_000), number=st.integers(0, 1000))
def test_constant_arrivals_are_as_far_apart_as_the_rate_says(rate: float, number: int) -> None:
    """Each is computed by itself: no error grows with their number."""
    assert list(islice(constant(rate), number, number + 1)) == [number / rate]


@pytest.mark.parametrize("rate", [0.2, 3.0, 500.0])
def test_gaps_of_poisson_arrivals_are_exponential(rate: float) -> None:
    times = list(islice(poisson(rate, Random(5)), 5000))
    gaps = [later - earlier for earlier, later in pairwise([0.0, *times])]
    assert stats.kstest(gaps, "expon", args=(0, 1 / rate)).pvalue > 0.001


def test_poisson_arrivals_come_again_with_their_seed() -> None:
    first, again, other = (list(islice(poisson(2.0, Random(seed)), 20)) for seed in (1, 1, 2))
    assert first == again != other
