"""A plan and its seed say what is sent."""

from __future__ import annotations

from collections import Counter
from itertools import count, islice

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from load.plan import PlannedTurn, TrafficPlan, bounded, planned_turns, prompt, starts, synthetic
from load.traces import TracePoint
from tests.load.samples import PLAN

MIXED = msgspec.structs.replace(
    PLAN,
    models=(("one", 1.0), ("two", 3.0)),
    protocols=(("chat", 1.0), ("responses", 1.0), ("responses-http", 2.0)),
    tenants=("a", "b"),
    input_tokens=(5, 50),
    output_tokens=(1, 40),
    cancelled=0.2,
    dropped=0.3,
    repeated=0.25,
)


def turns(plan: TrafficPlan, number: int) -> list[PlannedTurn]:
    return list(planned_turns(plan, islice(synthetic(plan, starts(plan, 5.0, True)), number)))


@given(st.integers(0, 2**31))
def test_a_seed_gives_the_same_turns_again_and_another_one_other_prompts(seed: int) -> None:
    plan = msgspec.structs.replace(MIXED, seed=seed)
    first = turns(plan, 20)
    assert first == turns(plan, 20)
    other = turns(msgspec.structs.replace(MIXED, seed=seed + 1), 20)
    assert not {each.prompt for each in first} & {each.prompt for each in other}


def test_shares_are_those_of_the_plan() -> None:
    made = turns(MIXED, 4000)
    fresh = [each for each in made if each.repeats is None]
    models, protocols = Counter(each.model for each in fresh), Counter(each.protocol for each in fresh)
    assert abs(models["two"] / len(fresh) - 0.75) < 0.03
    assert abs(protocols["responses-http"] / len(fresh) - 0.5) < 0.03
    assert abs(sum(each.cancel_after is not None for each in fresh) / len(fresh) - 0.2) < 0.03
    resumable = [each for each in fresh if each.protocol != "chat"]
    assert abs(sum(each.drop_after is not None for each in resumable) / len(resumable) - 0.3) < 0.03
    assert abs(1 - len(fresh) / len(made) - 0.25) < 0.03
    assert {each.tenant for each in made} == {"a", "b"}


def test_only_what_can_be_resumed_is_cut_off_and_never_what_is_cancelled() -> None:
    for each in turns(MIXED, 1000):
        assert each.drop_after is None or (each.protocol != "chat" and each.cancel_after is None)


def test_a_repetition_asks_the_same_with_the_same_seed_and_is_of_no_cancelled_turn() -> None:
    made = turns(MIXED, 1000)
    repetitions = [each for each in made if each.repeats is not None]
    assert repetitions
    for each in repetitions:
        assert each.seed is not None
        earlier = made[each.repeats or 0]
        assert earlier.cancel_after is None and earlier.number < each.number
        fields = {"number": each.number, "start": each.start, "repeats": each.repeats}
        assert msgspec.structs.replace(earlier, **fields) == each


def test_without_repetitions_no_seed_is_sent() -> None:
    assert {each.seed for each in turns(PLAN, 50)} == {None}


@given(st.floats(0.1, 100), st.integers(1, 50))
def test_a_run_is_bounded_in_time_and_in_turns(seconds: float, most: int) -> None:
    points = list(bounded((TracePoint(float(at), 1, 1) for at in count()), seconds, most))
    assert len(points) <= most
    assert all(each.start < seconds for each in points)
    assert len(points) == most or len(points) >= seconds


def test_prompts_are_as_long_as_planned_and_all_different() -> None:
    made = turns(msgspec.structs.replace(PLAN, input_tokens=(40, 40)), 50)
    assert {len(each.prompt.split()) for each in made} == {40}
    assert len({each.prompt for each in made}) == 50


def test_equal_blocks_of_a_trace_are_equal_text() -> None:
    first = prompt(1, 0, TracePoint(0.0, 700, 1, (4, 5)))
    second = prompt(1, 1, TracePoint(0.0, 1000, 1, (4, 6))).split()
    assert len(first.split()) == 700 and len(second) == 1000
    assert first.split()[:512] == second[:512]
    assert first.split()[512:700] != second[512:700]


def test_blocks_shrink_with_the_trace_s_lengths() -> None:
    first, second = (prompt(1, 0, TracePoint(0.0, 60, 1, blocks), 1 / 16).split() for blocks in ((4, 5), (4, 6)))
    assert first[:32] == second[:32] and first[32:] != second[32:]


def test_given_prompts_are_asked_instead() -> None:
    made = turns(msgspec.structs.replace(PLAN, prompts=("Why?", "How?")), 50)
    assert {each.prompt for each in made} == {"Why?", "How?"}
