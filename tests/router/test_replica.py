"""The choice among replicas, as a function of its arguments."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.replica import Replica, ReplicaChoice, ReplicaPolicy, ReplicaReason, choose, explain

POLICY = ReplicaPolicy()
DRAWS = st.integers(0, 2**64 - 1)
DRAWN = [low << 31 | high << 63 | at for low in range(2) for high in range(2) for at in range(2)]
"""Draws that choose each of two replicas first, in either way."""


def replica(number: int = 0, **facts: object) -> Replica:
    return Replica(name=f"small-{number}", **facts)  # type: ignore[arg-type]


def first(*replicas: Replica, prompt: int = 100, policy: ReplicaPolicy = POLICY, draw: int = 0) -> str:
    return choose(replicas, prompt, policy, draw).order[0]


def test_one_replica_needs_no_choice() -> None:
    choice = choose([replica()], 10, POLICY, 0)
    assert choice == ReplicaChoice(("small-0",), ReplicaReason.ONLY, {})


def test_a_known_prefix_wins_among_equals() -> None:
    choice = choose([replica(0), replica(1, matched_tokens=80)], 100, POLICY, 0)
    assert (choice.order, choice.how) == (("small-1", "small-0"), ReplicaReason.PREFIX)
    assert choice.scores["small-1"].match == pytest.approx(0.8)
    assert "80%" in explain(choice, 100)


def test_a_prefix_is_worth_as_many_tokens_of_waiting_as_it_saves() -> None:
    """On a pool that is otherwise idle, with beta 1; up to the mean's own growth with the load."""
    policy = ReplicaPolicy(beta=1.0)
    knows = replica(0, matched_tokens=80)
    assert first(replica(1), Replica(**{**_fields(knows), "load": 60}), policy=policy) == "small-0"
    assert first(replica(1), Replica(**{**_fields(knows), "load": 400}), policy=policy) == "small-1"


def test_nobody_gets_everything() -> None:
    """The failure of longest prefix: all requests share one, and all of them stay."""
    loads = [0] * 4
    for number in range(400):
        replicas = [replica(at, load=load, matched_tokens=500 if load else 0) for at, load in enumerate(loads)]
        loads[int(first(*replicas, prompt=1000, draw=number).removeprefix("small-"))] += 500
    assert max(loads) <= 1.1 * sum(loads) / 4


def test_a_replica_outside_the_window_is_not_a_candidate() -> None:
    """Whatever it knows, and however little load counts; it is tried last."""
    policy = ReplicaPolicy(beta=0.0, window=0.5)
    replicas = [replica(0, load=1000, matched_tokens=100), replica(1), replica(2, load=5)]
    assert choose(replicas, 100, policy, 0).order[2] == "small-0"


def test_an_adapter_that_is_loaded_counts_as_a_match() -> None:
    replicas = [replica(0), replica(1, resident=True)]
    choice = choose(replicas, 100, POLICY, 0, adapter=True)
    assert (choice.order[0], choice.how) == ("small-1", ReplicaReason.PREFIX)
    assert choose(replicas, 100, POLICY, 0).how is ReplicaReason.LOAD  # nobody asked for it


def test_failures_cost_and_many_failures_cost_everything() -> None:
    assert first(replica(0, matched_tokens=30, error_rate=0.4), replica(1, matched_tokens=10)) == "small-1"
    assert first(replica(0, matched_tokens=100, error_rate=0.6), replica(1, load=50)) == "small-1"


def test_if_all_replicas_fail_all_are_used() -> None:
    replicas = [replica(at, error_rate=0.9) for at in range(3)]
    assert sorted(choose(replicas, 10, POLICY, 7).order) == ["small-0", "small-1", "small-2"]
    assert first(*replicas[:2], replica(2, error_rate=0.9, matched_tokens=90)) == "small-2"


def test_a_conversation_stays_where_it_was_among_equals() -> None:
    for draw in range(4):
        assert first(replica(0), replica(1, sticky=True), replica(2), draw=draw) == "small-1"


def test_of_equal_replicas_the_near_one_comes_first_and_premium_turns_avoid_spot() -> None:
    """A tie-break only: less load, or a prefix that is known, counts more."""
    near, spot, far = replica(0, near=True, spot=True), replica(1, near=True), replica(2)
    for draw in DRAWN:
        order = choose([far, near], 10, POLICY, draw).order
        assert order == ("small-0", "small-2")
        assert choose([near, spot], 10, POLICY, draw, premium=True).order == ("small-1", "small-0")
        assert choose([far, replica(3, spot=True)], 10, POLICY, draw, premium=True).order[0] == "small-2"
        assert first(replica(0, near=True, load=1), far, draw=draw) == "small-2"
        assert first(replica(0, near=True), replica(2, matched_tokens=1), draw=draw) == "small-2"
    assert {choose([near, spot], 10, POLICY, draw).order[0] for draw in DRAWN} == {"small-0", "small-1"}


def test_a_miss_takes_the_least_loaded_replica() -> None:
    """Of several, each for some draw: gateways that see the same loads do not all choose the same one."""
    replicas = [replica(0, load=20), replica(1, load=10), replica(2, load=30), replica(3, load=10)]
    choices = [choose(replicas, 10, POLICY, draw) for draw in range(8)]
    assert {choice.order[0] for choice in choices} == {"small-1", "small-3"}
    assert {choice.order[2:] for choice in choices} == {("small-0", "small-2")}
    assert choices[0].how is ReplicaReason.LOAD and "least to do" in explain(choices[0], 10)


def test_load_follows_the_weights() -> None:
    loads, weights = [0, 0, 0], [9.0, 1.0, 1.0]
    for draw in range(1100):
        replicas = [replica(at, load=loads[at], weight=weights[at]) for at in range(3)]
        loads[int(first(*replicas, draw=draw).removeprefix("small-"))] += 100
    assert loads == pytest.approx([90_000, 10_000, 10_000], rel=0.02)


@st.composite
def pools(draw: st.DrawFn) -> list[Replica]:
    facts = st.builds(
        dict,
        load=st.integers(0, 10**7),
        weight=st.floats(0.01, 100),
        matched_tokens=st.integers(0, 5000),
        resident=st.booleans(),
        error_rate=st.floats(0, 1),
        sticky=st.booleans(),
    )
    return [replica(at, **each) for at, each in enumerate(draw(st.lists(facts, min_size=1, max_size=9)))]


@given(pools(), st.integers(1, 4000), DRAWS, st.booleans())
def test_every_replica_is_tried_once(replicas: list[Replica], prompt: int, draw: int, adapter: bool) -> None:
    """And the same arguments give the same choice, which can be explained."""
    choice = choose(replicas, prompt, POLICY, draw, adapter=adapter)
    assert sorted(choice.order) == sorted(each.name for each in replicas)
    assert choice == choose(replicas, prompt, POLICY, draw, adapter=adapter)
    assert choice.order[0] in explain(choice, prompt)
    assert all(0 <= score.match <= 1 for score in choice.scores.values())


@given(pools(), st.integers(1, 4000), DRAWS)
def test_more_load_never_helps(replicas: list[Replica], prompt: int, draw: int) -> None:
    before = choose(replicas, prompt, POLICY, draw).scores
    for each in replicas:
        lighter = [Replica(**{**_fields(one), "load": 0}) if one is each else one for one in replicas]
        after = choose(lighter, prompt, POLICY, draw).scores
        assert len(replicas) == 1 or after[each.name].total >= before[each.name].total - 1e-9


def _fields(each: Replica) -> dict[str, object]:
    return {name: getattr(each, name) for name in each.__struct_fields__}
