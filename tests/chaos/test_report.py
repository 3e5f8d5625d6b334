"""The page of results."""

from __future__ import annotations

from tests.chaos.faults import Kind
from tests.chaos.invariants import Excuse
from tests.chaos.report import grouped, page
from tests.chaos.run import Outcome, Plan
from tests.chaos.test_invariants import injected, turn


def test_a_failure_stands_in_the_line_of_the_fault_that_excuses_it() -> None:
    killed, cut = injected(Kind.ENGINE_KILLED), injected(Kind.CLIENTS_CUT)
    killed.replica = "small-0"
    moved = turn(replica="small-0", moments=[14.0, 16.5, 19.0])
    failed = turn(failure="engine_failed")
    outcome = Outcome(
        Plan(seed=7, clients=2),
        turns=[moved, failed],
        injected=[killed, cut],
        problems=["a text that is wrong"],
        excused=[(failed, Excuse("three engines lost", Kind.ENGINE_KILLED))],
    )
    text = page({"A run": outcome})
    assert "| engine killed | 1 | 2 | 1 | 1 engine_failed (three engines lost) | 2.50 | 2.50 |" in text
    assert "| clients cut | 1 | 2 |  | none | 2.50 | 2.50 |" in text
    assert "seed 7" in text and "wrong: **1**" in text


def test_each_sort_of_problem_is_told_once_the_most_frequent_first() -> None:
    problems = ["stream 9, greedy: ended after 3 events", "a leak", "socket 16, json: ended after 12 events"]
    assert grouped(problems) == ["2 times: stream 9, greedy: ended after 3 events", "1 times: a leak"]
