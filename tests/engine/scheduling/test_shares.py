"""A step's prompt tokens are shared max-min fairly."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from engine.request import Request
from engine.scheduling.policy import PromptShare
from engine.scheduling.shares import PromptTokens, fair_shares
from engine.wire import SamplingParams

Demands = st.lists(
    st.tuples(st.integers(0, 500), st.sampled_from([0.25, 1.0, 2.0, 7.0]), st.integers(-300, 300)),
    min_size=1,
    max_size=8,
)


def test_small_demands_are_met_and_the_rest_is_shared_evenly() -> None:
    assert fair_shares([10, 500, 500], [1.0, 1.0, 1.0], [0.0, 0.0, 0.0], 110) == [10, 50, 50]


def test_weights_divide_what_is_scarce() -> None:
    assert fair_shares([500, 500], [1.0, 3.0], [0.0, 0.0], 100) == [25, 75]


def test_who_has_had_less_catches_up_first() -> None:
    assert fair_shares([500, 500], [1.0, 1.0], [60.0, 0.0], 100) == [20, 80]
    assert fair_shares([500, 500], [1.0, 1.0], [900.0, 0.0], 100) == [0, 100]


def test_what_rounding_leaves_goes_to_the_lowest() -> None:
    assert fair_shares([5, 5, 5], [1.0, 1.0, 1.0], [9.0, 0.0, 0.0], 1) == [0, 1, 0]


@given(Demands, st.integers(0, 1000))
def test_everything_is_given_away_and_nobody_gets_more_than_asked_for(
    demands: list[tuple[int, float, int]], budget: int
) -> None:
    wanted, weights, starts = (list(column) for column in zip(*demands, strict=True))
    shares = fair_shares(wanted, weights, starts, budget)  # type: ignore[arg-type]
    assert sum(shares) == min(budget, sum(wanted))
    assert all(0 <= share <= demand for share, demand in zip(shares, wanted, strict=True))


@given(Demands, st.integers(0, 1000))
def test_nobody_is_served_above_the_level_of_one_who_wants_more(
    demands: list[tuple[int, float, int]], budget: int
) -> None:
    wanted, weights, starts = (list(column) for column in zip(*demands, strict=True))
    shares = fair_shares(wanted, weights, starts, budget)  # type: ignore[arg-type]
    levels = [start + share / weight for share, (_, weight, start) in zip(shares, demands, strict=True)]
    rounding = (len(demands) + 1) / min(weights)
    for level, share, demand in zip(levels, shares, wanted, strict=True):
        if share < demand:
            served = (other for other, given in zip(levels, shares, strict=True) if given)
            assert all(other <= level + rounding for other in served)


def _request(id: str, tenant: str, tokens: int) -> Request:
    return Request(id, [0] * tokens, SamplingParams(), 0.0, tenant=tenant)


def _counts(prompts: PromptTokens) -> dict[str, int]:
    return {request.id: count for request, count in prompts.counts().items()}


def test_prompts_of_one_tenant_run_in_their_order_and_beside_those_of_others() -> None:
    paid = {"x": 160.0, "y": 30.0}
    prompts = PromptTokens(100, lambda request: PromptShare(request.tenant, paid=paid[request.tenant]))
    for request in (_request("a", "x", 80), _request("b", "x", 80), _request("c", "y", 30)):
        prompts.add(request)
    assert _counts(prompts) == {"a": 70, "c": 30}
    paid["y"] = 1e6
    assert _counts(prompts) == {"a": 80, "b": 20}


def test_the_first_of_all_gets_a_token_however_much_its_tenant_has_had() -> None:
    prompts = PromptTokens(100, lambda request: PromptShare(request.tenant, paid=1e6 if request.tenant == "x" else 0.0))
    prompts.add(_request("a", "x", 80))
    prompts.add(_request("b", "y", 300))
    assert _counts(prompts) == {"a": 1, "b": 99}


def test_a_full_step_has_room_for_another_tenant_only() -> None:
    prompts = PromptTokens(100, lambda request: PromptShare(request.tenant))
    prompts.add(_request("a", "x", 100))
    assert not prompts.has_room(_request("b", "x", 1))
    assert prompts.has_room(_request("c", "y", 1))
