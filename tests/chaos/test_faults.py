"""What is drawn from a seed."""

from __future__ import annotations

from collections import Counter
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.chaos.faults import ENGINES, GATEWAYS, LANES, Fault, Injected, Kind, draw


@given(seed=st.integers(0, 2**32), lane=st.sampled_from(range(len(LANES))))
def test_a_seed_gives_the_same_faults_each_time(seed: int, lane: int) -> None:
    assert list(islice(draw(seed, lane), 30)) == list(islice(draw(seed, lane), 30))


@given(seed=st.integers(0, 2**32), lane=st.sampled_from(range(len(LANES))))
def test_each_kind_of_a_lane_comes_as_often_as_the_table_says(seed: int, lane: int) -> None:
    faults = list(islice(draw(seed, lane), sum(LANES[lane].values())))
    assert Counter(fault.kind for fault in faults) == Counter(LANES[lane])
    assert all(fault.engine in range(ENGINES) and fault.gateway in range(GATEWAYS) for fault in faults)
    assert all(0 <= fault.choice < 1 and fault.seconds > 0 for fault in faults)


def test_every_kind_is_in_one_lane() -> None:
    assert Counter(kind for lane in LANES for kind in lane) == Counter(Kind)


@pytest.mark.parametrize(
    ("began", "ended", "slack", "touches"),
    [(0, 9, 0, False), (0, 10, 0, True), (12, 13, 0, True), (21, 30, 0, False), (21, 30, 2, True), (0, 9, 2, True)],
)
def test_when_a_fault_touches_a_turn(began: float, ended: float, slack: float, touches: bool) -> None:
    fault = Injected(Fault(Kind.ENGINE_KILLED, 0, 0, 1.0, 0.0, 0.0), began=10.0, ended=20.0)
    assert fault.touches(began, ended, slack) is touches
