"""Routing where tiers sleep: who waits, and who is answered by another tier."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.route import AUTO, TIERS, NoRoute, Refusal, RouteReason, SleepingTier, TierAsleep, route
from tests.router.test_route import POLICY, ask, engine


def sleeping(tier: str, *, waits: bool = True, context: int = 1000) -> SleepingTier:
    return SleepingTier(tier=tier, model=f"model-{tier}", context=context, prompt_tokens=10, waits=waits)


@pytest.mark.parametrize("model", [AUTO, "small", "model-small"])
@pytest.mark.parametrize("engines", [[], [engine("small", connected=False)], [engine("large")]])
def test_a_turn_waits_for_the_tier_that_is_to_answer(model: str, engines: list[object]) -> None:
    with pytest.raises(TierAsleep) as caught:
        route(ask(model), engines, POLICY, asleep=[sleeping("small")])  # type: ignore[arg-type]
    assert caught.value.tier == "small"


def test_another_tier_stands_in_for_auto_where_it_may() -> None:
    asleep = [sleeping("small", waits=False)]
    decision = route(ask(), [engine("large")], POLICY, asleep=asleep)
    assert (decision.tier, decision.why, decision.asleep) == ("large", RouteReason.FALLBACK, "small")
    assert decision.reasons[-1] == "the small tier is asleep, the large tier stands in"
    for name in ("small", "model-small"):
        with pytest.raises(TierAsleep):
            route(ask(name), [engine("large")], POLICY, asleep=asleep)


@pytest.mark.parametrize("facts", [{"connected": False}, {"drained": True}, {"full": True}])
def test_where_no_other_tier_can_answer_the_nearest_is_woken(facts: dict[str, object]) -> None:
    asleep = [sleeping("medium", waits=False), sleeping("small", waits=False)]
    with pytest.raises(TierAsleep) as caught:
        route(ask(complexity=0.5), [engine("large", **facts)], POLICY, asleep=asleep)
    assert caught.value.tier == "medium"


def test_a_tier_that_cannot_hold_the_prompt_is_not_woken() -> None:
    decision = route(ask(output=500), [engine("large")], POLICY, asleep=[sleeping("small", context=100)])
    assert (decision.tier, decision.why, decision.asleep) == ("large", RouteReason.CONTEXT, "")
    with pytest.raises(NoRoute, match="context length is 100 tokens") as caught:
        route(ask("small", output=500), [], POLICY, asleep=[sleeping("small", context=100)])
    assert caught.value.refusal is Refusal.CONTEXT


@given(
    st.sets(st.sampled_from(TIERS)),
    st.sets(st.sampled_from(TIERS)),
    st.sampled_from([AUTO, *TIERS]),
    st.floats(0, 1),
    st.booleans(),
)
def test_whoever_waits_is_woken_and_nobody_is_refused_while_something_sleeps(
    awake: set[str], asleep: set[str], model: str, complexity: float, waits: bool
) -> None:
    engines = [engine(tier) for tier in sorted(awake - asleep)]
    tiers = [sleeping(tier, waits=waits) for tier in sorted(asleep)]
    try:
        decision = route(ask(model, complexity), engines, POLICY, asleep=tiers)
    except TierAsleep as woken:
        assert woken.tier in asleep
        assert waits or model != AUTO or not engines
    except NoRoute:
        assert not (asleep or engines) or model not in (AUTO, *awake, *asleep)
    else:
        assert decision.tier in awake - asleep
        assert not decision.asleep or (not waits and model == AUTO)
