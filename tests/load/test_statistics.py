"""Figures of a run, beside numpy's."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from load.objectives import Objectives
from load.records import TurnEnd
from load.statistics import Quantiles, grouped, most_in_flight, quantile, summarise
from tests.load.samples import measured

VALUES = st.lists(st.floats(0, 1e6), min_size=1, max_size=200)


@given(VALUES, st.floats(0, 1))
def test_a_quantile_is_numpy_s(values: list[float], share: float) -> None:
    assert quantile(sorted(values), share) == np.quantile(values, share, method="inverted_cdf")


@given(VALUES)
def test_distributions_are_numpy_s(values: list[float]) -> None:
    found = Quantiles.of([None, *values])
    assert found is not None
    assert found.count == len(values)
    assert found.mean == pytest.approx(np.mean(values))
    shares = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99, "p999": 0.999, "maximum": 1.0}
    for name, share in shares.items():
        assert getattr(found, name) == np.quantile(values, share, method="inverted_cdf")


def test_nothing_has_no_distribution() -> None:
    assert Quantiles.of([None]) is None


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(1, 50)), max_size=30))
def test_turns_in_flight_are_those_that_overlap(spans: list[tuple[int, int]]) -> None:
    turns = [measured(float(start), ended=float(start + length)) for start, length in spans]
    counts = [sum(start <= at < start + length for start, length in spans) for at in range(101)]
    assert most_in_flight(turns) == max(counts)


def test_a_run_is_summarised() -> None:
    turns = [
        measured(0.0, gaps=(0.05, 0.05)),
        measured(1.0, gaps=(0.1,), sent=1.02),
        measured(2.0, end=TurnEnd.REFUSED, first=None, last=None, error="429 too many", ended=2.1, output_tokens=None),
        measured(3.0, end=TurnEnd.CANCELLED, stopped=0.01, ended=4.0),
    ]
    found = summarise(turns, Objectives(ttft=0.1001), arriving=4.0)
    assert (found.turns, found.seconds, found.offered) == (4, 4.0, 1.0)
    assert (found.completed, found.goodput) == (0.75, 0.75)
    assert found.output_tokens == 33 / 4.0
    assert found.ends == {"completed": 2, "refused": 1, "cancelled": 1}
    assert found.errors == {"429 too many": 1}
    assert not found.verdict.met and found.verdict.attainment == 0.75
    assert found.ttft is not None and found.ttft.count == 3
    assert found.itl is not None and (found.itl.count, found.itl.maximum) == (3, 0.1)
    assert found.e2e is not None and found.e2e.count == 2
    assert found.late is not None and found.late.maximum == pytest.approx(0.02)
    assert found.stopped is not None and found.resumed is None


def test_turns_are_grouped_by_a_name() -> None:
    turns = [measured(number=number, ended=float(number % 2)) for number in range(4)]
    groups = grouped(turns, lambda each: str(each.ended))
    assert {name: [each.plan.number for each in group] for name, group in groups.items()} == {
        "0.0": [0, 2],
        "1.0": [1, 3],
    }
