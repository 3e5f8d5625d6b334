"""The routing decision as a function of its arguments."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.complexity import Complexity, Reason
from router.route import (
    AUTO,
    TIERS,
    ComingTier,
    NoRoute,
    Refusal,
    RouteCandidate,
    RouteDecision,
    RouteReason,
    RouteRequest,
    RoutingPolicy,
    SleepingTier,
    TierAsleep,
    route,
)
from router.tier import Outlook, Terms, ValueSource, choose

POLICY = RoutingPolicy(medium_from=0.2, large_from=0.45)


def engine(tier: str, number: int = 0, **facts: object) -> RouteCandidate:
    defaults: dict[str, object] = {"context": 1000, "prompt_tokens": 10, "load": 0}
    values = {"replica": f"{tier}-{number}", "tier": tier, "model": f"model-{tier}"} | defaults | facts
    return msgspec.convert(values, RouteCandidate)


ALL = [engine(tier) for tier in TIERS]
SMALL_COMING = ComingTier(tier="small", model="model-small", size=100_000_000, here=50_000_000)


def ask(model: str = AUTO, complexity: float = 0.0, output: int = 1) -> RouteRequest:
    reasons = (Reason("length", complexity, "is long"),)
    return RouteRequest(model=model, complexity=Complexity(complexity, reasons), output_tokens=output)


def decide(request: RouteRequest, candidates: Sequence[RouteCandidate] = ALL) -> RouteDecision:
    return route(request, candidates, POLICY)


@pytest.mark.parametrize(("complexity", "tier"), [(0.0, "small"), (0.2, "medium"), (0.44, "medium"), (0.45, "large")])
def test_auto_follows_the_complexity(complexity: float, tier: str) -> None:
    decision = decide(ask(complexity=complexity))
    assert (decision.tier, decision.why) == (tier, RouteReason.COMPLEXITY)
    assert any("is long" in reason for reason in decision.reasons)


@pytest.mark.parametrize("name", ["large", "model-large"])
def test_a_tier_or_model_name_overrides_the_complexity(name: str) -> None:
    decision = decide(ask(name))
    assert (decision.tier, decision.why) == ("large", RouteReason.REQUESTED)


MEDIUM_COMING = ComingTier(tier="medium", model="model-medium", size=491_400_064, here=211_400_000)


@pytest.mark.parametrize("model", [AUTO, "medium"])
def test_the_next_tier_stands_in_for_one_whose_model_is_coming(model: str) -> None:
    """Upwards first, as for a tier that is down."""
    there = [engine("small"), engine("large")]
    decision = route(ask(model, complexity=0.3), there, POLICY, [MEDIUM_COMING])
    assert (decision.tier, decision.why) == ("large", RouteReason.FALLBACK)
    assert decision.reasons[-1] == "the medium tier is coming: 43 % of 491 MB, the large tier stands in"
    assert route(ask(model, complexity=0.3), there[:1], POLICY, [MEDIUM_COMING]).tier == "small"


def test_a_model_that_is_coming_is_no_unknown_one() -> None:
    with pytest.raises(
        NoRoute, match=r"the model 'model-medium' is coming: 43 % of 491 MB; .* ask for 'auto'"
    ) as refused:
        route(ask("model-medium"), [engine("small")], POLICY, [MEDIUM_COMING])
    assert refused.value.refusal is Refusal.UNAVAILABLE


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"here": 0}, "is coming: 0 % of 491 MB"),
        ({"here": MEDIUM_COMING.size - 1}, "is coming: 99 % of 491 MB"),
        ({"here": MEDIUM_COMING.size}, "is starting"),
        ({"failed": True}, "could not be fetched yet"),
    ],
)
def test_how_far_a_tier_is(fields: dict[str, object], told: str) -> None:
    assert str(msgspec.structs.replace(MEDIUM_COMING, **fields)) == told


def test_the_least_loaded_replica_of_the_tier_answers() -> None:
    replicas = [engine("small", 0, load=500), engine("small", 1, load=20), engine("small", 2, load=90)]
    decision = decide(ask(), replicas)
    assert decision.replica == "small-1"
    assert decision.fallbacks == ("small-2", "small-0")


@given(st.lists(st.floats(min_value=0.1, max_value=10), min_size=2, max_size=5), st.integers(1, 50))
def test_replicas_are_loaded_by_their_weights(weights: list[float], cost: int) -> None:
    """Requests that all stay: no replica falls behind its share by a whole one."""
    loads = [0] * len(weights)
    for _ in range(60):
        replicas = [
            engine("small", number, load=load, weight=weight, prompt_tokens=cost)
            for number, (load, weight) in enumerate(zip(loads, weights, strict=True))
        ]
        loads[int(decide(ask(), replicas).replica.removeprefix("small-"))] += cost
    fair = sum(loads) / sum(weights)
    for load, weight in zip(loads, weights, strict=True):
        assert load > fair * weight - cost - 1e-6


def test_a_drained_replica_gets_nothing() -> None:
    """Also not as a fallback, nor when all others are down or tripped."""
    replicas = [engine("small", 0, drained=True), engine("small", 1, load=900), engine("small", 2, tripped=True)]
    decision = decide(ask(), replicas)
    assert (decision.replica, decision.fallbacks) == ("small-1", ())
    assert decide(ask(), [replicas[0], replicas[2]]).replica == "small-2"
    with pytest.raises(NoRoute) as caught:
        decide(ask(), replicas[:1])
    assert caught.value.refusal is Refusal.UNAVAILABLE


@pytest.mark.parametrize(
    ("wanted", "down", "stands_in"),
    [("small", {"small"}, "medium"), ("medium", {"medium"}, "large"), ("large", {"large"}, "medium")],
)
def test_a_tier_that_is_down_is_replaced_by_the_next_up_then_down(wanted: str, down: set[str], stands_in: str) -> None:
    candidates = [engine(tier, connected=tier not in down) for tier in TIERS]
    decision = decide(ask(wanted), candidates)
    assert (decision.tier, decision.why) == (stands_in, RouteReason.FALLBACK)


def test_a_model_name_is_a_promise_that_no_other_model_keeps() -> None:
    candidates = [engine(tier, connected=tier != "small") for tier in TIERS]
    with pytest.raises(NoRoute) as caught:
        decide(ask("model-small"), candidates)
    assert caught.value.refusal is Refusal.UNAVAILABLE


def test_a_prompt_that_does_not_fit_goes_where_it_does() -> None:
    candidates = [engine("small", context=100, prompt_tokens=100), engine("large", context=1000, prompt_tokens=100)]
    decision = decide(ask("small"), candidates)
    assert (decision.tier, decision.why) == ("large", RouteReason.CONTEXT)


def test_a_prompt_that_fits_nowhere_is_refused_with_both_figures() -> None:
    with pytest.raises(NoRoute, match=r"1000 tokens.*10 of input.*991 of output") as caught:
        decide(ask(output=991))
    assert caught.value.refusal is Refusal.CONTEXT


def test_the_context_that_is_too_small_is_that_of_the_name_asked_for() -> None:
    """In OpenAI's words, by which LiteLLM and LangChain know the error."""
    with pytest.raises(NoRoute) as caught:
        decide(ask("large", output=991))
    assert str(caught.value).startswith(
        "This model's maximum context length is 1000 tokens (large, which is model-large). However, you requested"
    )
    assert "context_length_exceeded" in str(caught.value)


def test_an_unknown_model_is_refused_with_the_names_that_exist() -> None:
    with pytest.raises(NoRoute, match="auto, small, medium, large, model-large, model-medium, model-small") as caught:
        decide(ask("gpt-9"))
    assert caught.value.refusal is Refusal.UNKNOWN_MODEL


def test_an_engine_whose_breaker_is_open_is_avoided_but_tried_when_nothing_else_is_up() -> None:
    assert decide(ask("small"), [engine("small", tripped=True), engine("large")]).tier == "large"
    assert decide(ask("small"), [engine("small", tripped=True)]).tier == "small"


def test_a_decision_survives_serialisation() -> None:
    decision = decide(ask(complexity=0.3))
    assert msgspec.json.decode(msgspec.json.encode(decision), type=RouteDecision) == decision


def test_the_policy_digest_changes_with_the_policy() -> None:
    assert POLICY.digest == RoutingPolicy(medium_from=0.2, large_from=0.45).digest
    assert POLICY.digest != RoutingPolicy(medium_from=0.2, large_from=0.46).digest


CANDIDATES = st.lists(
    st.builds(
        RouteCandidate,
        replica=st.uuids().map(str),
        tier=st.sampled_from(TIERS),
        model=st.sampled_from(["a", "b"]),
        context=st.integers(1, 100),
        prompt_tokens=st.integers(1, 100),
        load=st.integers(0, 1000),
        connected=st.booleans(),
        tripped=st.booleans(),
    ),
    max_size=8,
)


@given(CANDIDATES, st.sampled_from([AUTO, *TIERS, "a", "b", "c"]), st.floats(0, 1), st.integers(1, 50))
def test_a_choice_is_always_able_to_answer(
    candidates: list[RouteCandidate], model: str, complexity: float, output: int
) -> None:
    """Chosen engine and fallbacks are connected, hold the prompt, and keep the promise of a model's own name."""
    try:
        decision = route(ask(model, complexity, output), candidates, POLICY)
    except NoRoute:
        return
    by_name = {candidate.replica: candidate for candidate in candidates}
    for replica in (decision.replica, *decision.fallbacks):
        candidate = by_name[replica]
        assert candidate.connected
        assert candidate.prompt_tokens + output <= candidate.context
        assert model not in ("a", "b") or candidate.model == model
    assert len({decision.replica, *decision.fallbacks}) == 1 + len(decision.fallbacks)


@given(CANDIDATES, st.floats(0, 1))
def test_the_order_of_the_snapshot_does_not_matter(candidates: list[RouteCandidate], complexity: float) -> None:
    shuffled = sorted(candidates, key=lambda candidate: candidate.replica)
    outcomes = []
    for order in (candidates, shuffled):
        try:
            outcomes.append(msgspec.to_builtins(route(ask(AUTO, complexity), order, POLICY)))
        except NoRoute as refusal:
            outcomes.append({"refusal": refusal.refusal})
    assert outcomes[0] == outcomes[1]


@pytest.mark.parametrize(("facts", "state"), [({"full": True}, "full"), ({"connected": False}, "not available")])
def test_who_stands_in_says_what_is_wrong_with_the_tier(facts: dict[str, bool], state: str) -> None:
    decision = decide(ask(), [engine("small", **facts), engine("medium")])
    assert decision.why is RouteReason.FALLBACK
    assert decision.reasons[-1] == f"the small tier is {state}, the medium tier stands in"


def test_a_tier_that_lacks_what_is_asked_for_is_stood_in_for() -> None:
    asked = msgspec.structs.replace(ask("large", output=500), unsuited={"model-large": "top_k"})
    decision = decide(asked)
    assert (decision.tier, decision.why, decision.fallbacks) == ("medium", RouteReason.UNSUITED, ("small-0",))
    assert decision.reasons[-1] == "the large tier cannot do what top_k asks for, the medium tier stands in"
    with pytest.raises(NoRoute, match="maximum context length is 400 tokens") as caught:
        decide(asked, [engine("small", context=400), engine("large", context=5000)])
    assert caught.value.refusal is Refusal.CONTEXT


def test_a_prompt_is_not_too_long_for_engines_that_cannot_be_asked_it() -> None:
    """The pool that can be has none at the moment."""
    asked = msgspec.structs.replace(ask("auto"), unsuited={"model-large": "top_k"})
    with pytest.raises(NoRoute, match="no engine that can do what top_k asks for is up") as caught:
        decide(asked, [engine("large")])
    assert caught.value.refusal is Refusal.UNAVAILABLE


def test_what_keeps_each_tier_from_answering_is_told_to_requests_that_leave_it_open() -> None:
    """Of those that were open to it, and did not answer."""
    choice = choose(Outlook(ValueSource.COMPLEXITY, 0.0), Terms(0.2, 0.2, (0.1, 0.3, 1.0)), offered=("small", "large"))
    asked = msgspec.structs.replace(ask(), choice=choice)
    engines = [engine("small", full=True), engine("medium"), engine("large")]
    assert decide(asked, engines).unavailable == {"small": "is full"}
    assert decide(asked, [engine("small"), engine("medium"), engine("large", context=5)]).unavailable == {
        "large": "cannot hold the prompt"
    }
    lacking = msgspec.structs.replace(asked, unsuited={"model-large": "top_k"})
    assert decide(lacking, ALL).unavailable == {"large": "cannot do what top_k asks for"}
    asleep = SleepingTier(tier="large", model="model-large", context=1000, prompt_tokens=10)
    assert route(asked, engines[1:2], POLICY, [SMALL_COMING], [asleep]).unavailable == {
        "small": "is coming: 50 % of 100 MB",
        "large": "is asleep",
    }
    assert decide(ask(), engines).unavailable == {}


SHARED = [engine("large", 0, model="ours", rank=1, replica="ours-0"), engine("large", 0, model="theirs", replica="b-0")]


def test_of_a_tier_s_pools_the_one_answers_to_which_the_conversation_belongs() -> None:
    """However busy it is, and the other one is next."""
    busy = [SHARED[0], msgspec.structs.replace(SHARED[1], load=10_000)]
    decision = decide(ask("large"), busy)
    assert (decision.model, decision.why, decision.fallbacks) == ("theirs", RouteReason.REQUESTED, ("ours-0",))
    assert decision.reasons[-1] == "the large tier has 2 models, this conversation goes to theirs"


@pytest.mark.parametrize(
    ("facts", "state"), [({"tripped": True}, "is not available"), ({"connected": False}, "is not available")]
)
def test_a_pool_that_cannot_answer_is_stood_in_for_by_the_next_one_of_its_tier(
    facts: dict[str, bool], state: str
) -> None:
    down = [SHARED[0], msgspec.structs.replace(SHARED[1], **facts), engine("small")]
    decision = decide(ask("large"), down)
    assert (decision.tier, decision.model, decision.why) == ("large", "ours", RouteReason.FALLBACK)
    assert decision.reasons[-1] == f"theirs {state}, ours stands in"
    full = [SHARED[0], msgspec.structs.replace(SHARED[1], full=True)]
    assert decide(ask("large"), full).reasons[-1] == "theirs is full, ours stands in"


def test_a_pool_whose_context_is_too_short_is_passed_over_within_its_tier() -> None:
    short = [SHARED[0], msgspec.structs.replace(SHARED[1], context=100)]
    decision = decide(ask("large", output=500), short)
    assert (decision.model, decision.why) == ("ours", RouteReason.REQUESTED)
    assert decision.reasons[-1] == "the prompt does not fit the context of theirs, ours stands in"


def test_a_pool_that_lacks_what_is_asked_for_is_passed_over_within_its_tier() -> None:
    decision = decide(msgspec.structs.replace(ask("large"), unsuited={"theirs": "top_k"}), SHARED)
    assert (decision.model, decision.why, decision.fallbacks) == ("ours", RouteReason.REQUESTED, ())
    assert decision.reasons[-1] == "theirs cannot do what top_k asks for, ours stands in"


def test_a_model_s_own_name_is_a_promise_beside_other_pools_of_its_tier() -> None:
    assert decide(ask("ours"), SHARED).fallbacks == ()
    with pytest.raises(NoRoute):
        decide(ask("ours"), [msgspec.structs.replace(SHARED[0], connected=False), SHARED[1]])


def test_a_pool_that_sleeps_is_waited_for_only_if_no_other_one_of_its_tier_is_up() -> None:
    asleep = [SleepingTier(tier="large", model="theirs", context=1000, prompt_tokens=10)]
    decision = route(ask("large"), [SHARED[0]], POLICY, asleep=asleep)
    assert (decision.model, decision.why, decision.asleep) == ("ours", RouteReason.FALLBACK, "large")
    assert decision.reasons[-1] == "theirs is asleep, ours stands in"
    with pytest.raises(TierAsleep) as caught:
        route(ask("large"), [msgspec.structs.replace(SHARED[0], connected=False)], POLICY, asleep=asleep)
    assert caught.value.model == "theirs"
