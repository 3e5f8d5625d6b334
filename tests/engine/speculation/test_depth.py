"""Drafts are as long as they bring tokens per second, no longer, and none where they bring nothing."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.speculation.depth import Candidate, choose_depths

Cost = Callable[[int], float]


def flat(tokens: int) -> float:
    """A machine that waits for its weights: a step costs the same whatever it runs."""
    return 1.0


def linear(tokens: int) -> float:
    """A machine that computes: every token costs the same."""
    return float(tokens)


def free(tokens: int) -> float:
    return 0.0


def choose(
    *candidates: Candidate, target: Cost = flat, draft: Cost = free, tokens: int | None = None
) -> dict[str, int]:
    requests = max(len(candidates), 1)
    return choose_depths(candidates, tokens=tokens or requests, requests=requests, target=target, draft=draft)


def test_where_tokens_are_free_every_draft_is_as_long_as_it_may_be() -> None:
    assert choose(Candidate("a", 0.9, 8), Candidate("b", 0.5, 3)) == {"a": 8, "b": 3}


def test_where_every_token_costs_the_same_there_are_no_drafts() -> None:
    assert choose(Candidate("a", 0.9, 8), Candidate("b", 0.99, 8), target=linear) == {}


def test_a_token_that_is_hardly_ever_right_is_not_drafted() -> None:
    assert choose(Candidate("a", 0.5, 8), Candidate("b", 0.01, 8)) == {"a": 4}


def test_nobody_to_draft_for() -> None:
    assert choose() == {}


def test_the_more_likely_draft_is_longer() -> None:
    depths = choose(Candidate("a", 0.9, 8), Candidate("b", 0.4, 8), target=lambda tokens: 1 + 0.2 * tokens)
    assert depths["a"] > depths.get("b", 0)


def test_drafts_become_shorter_as_more_requests_share_a_step() -> None:
    """The batch alone already fills what the machine computes while it waits for its weights."""

    def cost(tokens: int) -> float:
        return max(1.0, tokens / 16)

    totals = []
    for requests in (1, 4, 16, 64):
        depths = choose(*(Candidate(str(index), 0.7, 8) for index in range(requests)), target=cost)
        totals.append(sum(depths.values()) / requests)
    assert totals[0] == 8
    assert totals == sorted(totals, reverse=True)
    assert totals[-1] == 0


def test_a_draft_model_must_pay_for_itself() -> None:
    one = Candidate("a", 0.8, 8, modelled=True)
    cheap, dear = choose(one, draft=lambda tokens: 0.05), choose(one, draft=lambda tokens: 0.5)
    assert cheap["a"] > dear.get("a", 0) > 0
    assert choose(one, draft=lambda tokens: 1.0) == {}


def test_a_text_to_catch_up_on_must_pay_over_the_rest_of_the_answer() -> None:
    cost: dict[str, Cost] = {"target": flat, "draft": lambda tokens: 0.1 + 0.01 * tokens}
    behind = Candidate("a", 0.8, 4, modelled=True, lag=1000, left=200)
    assert choose(behind, **cost) != {}
    assert choose(Candidate("a", 0.8, 4, modelled=True, lag=1000, left=5), **cost) == {}
    assert choose(Candidate("a", 0.8, 4, modelled=True, lag=20, left=5), **cost) != {}
    with_other = choose(Candidate("a", 0.8, 4, modelled=True, lag=9000), Candidate("b", 0.8, 4, modelled=True), **cost)
    assert with_other.keys() == {"b"}


@given(
    st.lists(st.tuples(st.floats(0.4, 1.0), st.integers(1, 3)), min_size=1, max_size=3),
    st.lists(st.floats(0.01, 1.0), min_size=12, max_size=12),
)
def test_no_other_choice_brings_more_tokens_per_second(drafts: list[tuple[float, int]], steps: list[float]) -> None:
    """Against every combination of depths, for any target whose steps cost more the larger they are."""
    costs = [1.0]
    for step in steps:
        costs.append(costs[-1] + step)

    def rate(depths: tuple[int, ...]) -> float:
        gained = sum(sum(p**level for level in range(depth + 1)) for (p, _), depth in zip(drafts, depths, strict=True))
        return gained / costs[len(drafts) + sum(depths) - 1]

    candidates = [Candidate(str(index), p, limit) for index, (p, limit) in enumerate(drafts)]
    chosen = choose(*candidates, target=lambda tokens: costs[tokens - 1])
    mine = rate(tuple(chosen.get(str(index), 0) for index in range(len(drafts))))
    best = max(map(rate, product(*(range(limit + 1) for _, limit in drafts))))
    # Within the margin that drafts must promise to be made at all.
    assert mine == pytest.approx(best, rel=0.021)
