"""Sums over the last minute."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.telemetry.activity import INTERVALS, MAX_TENANTS, OTHERS, WINDOW, Activity, Sums

STEP = WINDOW / INTERVALS
TURNS = st.lists(
    st.tuples(
        st.floats(0, 40),  # seconds since the turn before
        st.sampled_from("ab"),
        st.sampled_from(["completed", "failed", "refused", "unavailable"]),
        st.sampled_from(["hit", "miss", "bypass"]),
        st.integers(0, 100),
    ),
    max_size=30,
)


@given(TURNS, st.floats(0, 90))
def test_it_counts_what_a_list_of_all_turns_says(turns: list[tuple[float, str, str, str, int]], pause: float) -> None:
    activity, seen, now = Activity(), [], 0.0
    for wait, tenant, outcome, cache, tokens in turns:
        now += wait
        activity.started(tenant, now)
        activity.answered(tenant, cache, (tokens, tokens // 2, 7), now)
        activity.ended(tenant, outcome, now)
        seen.append((int(now / STEP), tenant, outcome, cache, tokens))
    now += pause
    total, tenants = activity.busiest(now, 10)
    recent = [turn for turn in seen if int(now / STEP) - turn[0] < INTERVALS]
    outcomes, caches = Counter(turn[2] for turn in recent), Counter(turn[3] for turn in recent)
    computed = [turn[4] for turn in recent if turn[3] != "hit"]
    assert total == Sums(
        turns=len(recent),
        refused=outcomes["refused"],
        failed=outcomes["failed"] + outcomes["unavailable"],
        input_tokens=sum(computed),
        cached_tokens=sum(tokens // 2 for tokens in computed),
        output_tokens=7 * len(computed),
        hits=caches["hit"],
        misses=caches["miss"],
    )
    assert {each.name: each.minute.turns for each in tenants} == Counter(turn[1] for turn in recent)
    assert all(each.running == 0 for each in tenants)


def test_those_who_are_busy_come_first_and_the_list_is_bounded() -> None:
    activity = Activity()
    for number in range(10):
        activity.started(f"tenant-{number}", 0.0)
        activity.answered(f"tenant-{number}", "miss", (number * 1000, 0, 0), 0.0)
    total, tenants = activity.busiest(1.0, 3)
    assert [each.name for each in tenants] == ["tenant-9", "tenant-8", "tenant-7"]
    assert total.input_tokens == 45_000


def test_a_turn_that_runs_for_long_keeps_its_tenant() -> None:
    activity = Activity()
    activity.started("patient", 0.0)
    _, tenants = activity.busiest(10 * WINDOW, 3)
    assert [(each.name, each.running, each.minute) for each in tenants] == [("patient", 1, Sums())]
    activity.ended("patient", "completed", 10 * WINDOW)
    _, tenants = activity.busiest(12 * WINDOW, 3)
    assert tenants == []


def test_beyond_the_bound_tenants_share_an_entry_and_no_turn_stays_open() -> None:
    activity = Activity()
    names = [f"tenant-{number}" for number in range(MAX_TENANTS + 50)]
    for name in names:
        activity.started(name, 0.0)
    _, tenants = activity.busiest(0.0, 2 * MAX_TENANTS)
    assert len(tenants) == MAX_TENANTS + 1
    assert {each.name: each.running for each in tenants}[OTHERS] == 50
    for name in names:
        activity.ended(name, "completed", 1.0)
    total, tenants = activity.busiest(1.0, 2 * MAX_TENANTS)
    assert total.turns == len(names)
    assert all(each.running == 0 for each in tenants)


def test_running_turns_are_counted_by_adapter() -> None:
    """Also those that fail; an adapter without any takes no room."""
    activity = Activity()
    with activity.using("pirate"), activity.using(None), activity.using("json"):
        with pytest.raises(ValueError, match="lost"), activity.using("pirate"):
            assert activity.adapters == {"pirate": 2, "json": 1}
            raise ValueError("lost")
        assert activity.adapters == {"pirate": 1, "json": 1}
    assert dict(activity.adapters) == {}
