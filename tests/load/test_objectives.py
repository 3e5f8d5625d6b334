"""What a good turn is, and whether enough were good."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from load.objectives import Objectives, lost, parse_objectives, verdict
from load.records import TurnEnd
from tests.load.samples import measured


@pytest.mark.parametrize(
    ("text", "bounds"),
    [
        ("", Objectives()),
        ("ttft=1", Objectives(ttft=1.0)),
        ("ttft=1s,tpot=50ms,e2e=30", Objectives(ttft=1.0, tpot=0.05, e2e=30.0)),
        (" e2e=2.5s , ttft=.5 ", Objectives(ttft=0.5, e2e=2.5)),
    ],
)
def test_bounds_are_read(text: str, bounds: Objectives) -> None:
    assert parse_objectives(text) == bounds


@pytest.mark.parametrize("text", ["ttft", "ttft=", "ttft=1m", "latency=1", "ttft=1;e2e=2", "ttft=1.2.3", "ttft=."])
def test_what_is_no_bound_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"bound|could not convert"):
        parse_objectives(text)


@pytest.mark.parametrize(
    ("bounds", "fields", "good"),
    [
        ({"ttft": 0.11}, {}, True),
        ({"ttft": 0.09}, {}, False),
        ({"tpot": 0.011}, {}, True),
        ({"tpot": 0.009}, {}, False),
        ({"tpot": 0.009}, {"output_tokens": 1}, True),
        ({"e2e": 0.19}, {}, False),
        ({}, {"end": TurnEnd.CANCELLED}, True),
        ({}, {"end": TurnEnd.FAILED}, False),
        ({}, {"end": TurnEnd.LOST}, False),
        ({}, {"fault": "a character is missing"}, False),
        ({"ttft": 9.0}, {"first": None, "last": None}, False),
    ],
)
def test_a_turn_is_good_within_all_bounds(bounds: dict[str, float], fields: dict[str, Any], good: bool) -> None:
    assert Objectives(**bounds).good(measured(**fields)) is good


@given(st.integers(1, 300), st.integers(0, 300), st.sampled_from([0.5, 0.9, 0.99, 0.999, 1.0]))
def test_a_run_is_lost_only_when_no_further_turn_could_save_it(planned: int, bad: int, attainment: float) -> None:
    bad = min(bad, planned)
    objectives = Objectives(ttft=1.0, attainment=attainment)
    best = [measured(number=at, end=TurnEnd.FAILED if at < bad else TurnEnd.COMPLETED) for at in range(planned)]
    if verdict(best, objectives).met:
        assert not lost(bad, planned, objectives)


def test_the_verdict_says_why_it_is_missed() -> None:
    turns = [measured(), measured(end=TurnEnd.TIMED_OUT)]
    found = verdict(turns, Objectives(ttft=0.5, attainment=0.9))
    assert (found.met, found.attainment) == (False, 0.5)
    assert found.reasons == ("50.00 % of turns were good; wanted: 90 % of turns with ttft <= 0.5 s",)


def test_a_wrong_text_is_never_excused() -> None:
    turns = [measured() for _ in range(999)]
    assert verdict(turns, Objectives()).met
    found = verdict([*turns, measured(fault="doubled")], Objectives())
    assert not found.met and found.attainment == 0.999
    assert found.reasons == ("1 turns have a wrong text",)


def test_no_turns_meet_nothing() -> None:
    assert not verdict([], Objectives(attainment=0.0)).met
