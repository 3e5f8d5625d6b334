"""Whose grammar is compiled next."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from engine.grammar.line import TrialQueue


def test_tenants_take_turns_by_the_time_that_theirs_take() -> None:
    line: TrialQueue[str] = TrialQueue(running=1, waiting=9)
    for index in range(6):
        line.push("slow", f"slow {index}")
        line.push("quick", f"quick {index}")
    order = []
    for _ in range(8):
        taken = line.pop()
        assert taken is not None
        order.append(taken[1])
        line.ended(taken[0], 3.0 if taken[0] == "slow" else 1.0)
    assert order == ["slow 0", "quick 0", "quick 1", "quick 2", "slow 1", "quick 3", "quick 4", "quick 5"]


def test_who_comes_late_is_next_but_has_saved_up_nothing() -> None:
    line: TrialQueue[int] = TrialQueue(running=1, waiting=9)
    for index in range(9):
        line.push("a", index)
    for _ in range(4):
        line.pop()
        line.ended("a", 5.0)
    line.push("b", 0)
    line.push("b", 1)
    tenants = []
    for _ in range(4):
        taken = line.pop()
        assert taken is not None
        tenants.append(taken[0])
        line.ended(taken[0], 5.0)
    assert Counter(tenants) == {"a": 2, "b": 2}


def test_nobody_has_more_running_than_allowed() -> None:
    line: TrialQueue[int] = TrialQueue(running=1, waiting=9)
    line.push("a", 0)
    line.push("a", 1)
    assert line.pop() == ("a", 0)
    assert line.pop() is None
    line.push("b", 2)
    assert line.pop() == ("b", 2)
    line.ended("a", 1.0)
    assert line.pop() == ("a", 1)


@given(
    st.lists(
        st.tuples(st.sampled_from("abcd"), st.sampled_from(["push", "pop", "end", "remove"]), st.floats(0, 9)),
        max_size=80,
    )
)
def test_nothing_is_lost_and_nothing_is_kept(events: list[tuple[str, str, float]]) -> None:
    """Of jobs that went through the line; of tenants that have none any more."""
    line: TrialQueue[int] = TrialQueue(running=2, waiting=3)
    waiting: dict[str, list[int]] = {tenant: [] for tenant in "abcd"}
    running: list[str] = []
    for number, (tenant, what, seconds) in enumerate(events):
        if what == "push" and line.has_room(tenant):
            line.push(tenant, number)
            waiting[tenant].append(number)
        elif what == "pop":
            taken = line.pop()
            able = [each for each in waiting if waiting[each] and running.count(each) < 2]
            assert (taken is None) == (not able)
            if taken is not None:
                assert taken[0] in able and waiting[taken[0]].pop(0) == taken[1]
                running.append(taken[0])
        elif what == "end" and running:
            line.ended(running.pop(0), seconds)
        elif what == "remove":
            job = waiting[tenant].pop() if waiting[tenant] else -1
            assert line.remove(tenant, job) == (job >= 0)
        assert len(line) == sum(map(len, waiting.values()))
        assert all(line.has_room(each) == (len(jobs) < 3) for each, jobs in waiting.items())
    while running or (taken := line.pop()) is not None:
        if not running:
            assert taken is not None
            waiting[taken[0]].pop(0)
            running.append(taken[0])
        line.ended(running.pop(0), 1.0)
    assert not any(waiting.values()) and line.clear() == []
