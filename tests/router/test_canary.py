"""The split among a route's targets, and the error rates of the test that takes canaries out."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.canary import CanaryRule, CanarySignal, Failures, WeightedTarget, evidence, judge, split

SHARES = [WeightedTarget("stable", 95), WeightedTarget("canary", 5)]
CONVERSATIONS = [b"%d" % number for number in range(20_000)]
WEIGHTS = st.lists(st.integers(0, 1000), min_size=1, max_size=6)


def test_conversations_are_split_by_weight() -> None:
    found = Counter(split("r", "demo", each, SHARES) for each in CONVERSATIONS)
    assert abs(found["canary"] / len(CONVERSATIONS) - 0.05) < 0.006


@given(WEIGHTS, st.binary(), st.text(max_size=5))
def test_a_conversation_has_one_target_and_that_has_a_weight(weights: list[int], talk: bytes, tenant: str) -> None:
    shares = [WeightedTarget(f"m{at}", weight) for at, weight in enumerate(weights)]
    chosen = split("r", tenant, talk, shares)
    assert chosen == split("r", tenant, talk, shares)
    if sum(weights) == 0:
        assert chosen is None
    else:
        assert next(share.weight for share in shares if share.model == chosen) > 0


def test_more_weight_for_the_canary_takes_no_conversation_away_from_it() -> None:
    """As long as it stands in the same place and the weights add up to the same."""
    more = [WeightedTarget("stable", 80), WeightedTarget("canary", 20)]
    for each in CONVERSATIONS[:2000]:
        if split("r", "demo", each, SHARES) == "canary":
            assert split("r", "demo", each, more) == "canary"


def test_tenants_and_routes_are_split_apart() -> None:
    """Nobody is the canary's in everything."""
    half = [WeightedTarget("a", 1), WeightedTarget("b", 1)]
    for other in (("r", "other"), ("s", "demo")):
        same = sum(split("r", "demo", each, half) == split(*other, each, half) for each in CONVERSATIONS[:2000])
        assert 850 < same < 1150


def taken_out(
    ratio: float, *, seed: int, failing: float, rule: CanaryRule, requests: int = 20_000, share: float = 0.1
) -> int:
    """How many requests it takes until a canary is out that fails `ratio` times as often; 0: it stays.

    Looked at after every failure.
    """
    chance = random.Random(seed)
    stable = canary = 0
    for number in range(1, requests + 1):
        to_canary = chance.random() < share
        if chance.random() >= failing * (ratio if to_canary else 1):
            continue
        canary, stable = canary + to_canary, stable + (not to_canary)
        counted = {CanarySignal.ERROR: Failures(stable, canary)}
        if judge(1, 9, counted, rule).out:
            return number
    return 0


@pytest.mark.parametrize(("failing", "requests"), [(0.002, 3000), (0.05, 3000), (0.3, 1000)])
def test_a_canary_that_is_no_worse_is_hardly_ever_taken_out(failing: float, requests: int) -> None:
    """At most alpha of them, although one looks after every failure; here alpha is large, to be seen at all.

    One signal of three is used, so that a third of alpha is spent: 300 runs may have 0.1 * 300 = 30 at the bound, and
    the bound of the test is three times as far as a binomial of that mean would let it come by chance.
    """
    rule = CanaryRule(alpha=0.3, least=1)
    out = sum(taken_out(1.0, seed=seed, failing=failing, rule=rule, requests=requests) > 0 for seed in range(300))
    assert out <= 30


def test_a_better_canary_stays_and_so_does_one_within_the_tolerance() -> None:
    for ratio, rule in ((0.5, CanaryRule(alpha=0.3, least=1)), (1.5, CanaryRule(alpha=0.3, least=1, tolerance=2.0))):
        assert sum(taken_out(ratio, seed=seed, failing=0.05, rule=rule, requests=3000) > 0 for seed in range(100)) <= 2


@pytest.mark.parametrize(("ratio", "requests"), [(3.0, 12_000), (10.0, 1500)])
def test_a_bad_canary_is_taken_out(ratio: float, requests: int) -> None:
    """The worse, the sooner; nearly always with the default rule."""
    found = [taken_out(ratio, seed=seed, failing=0.02, rule=CanaryRule(), requests=requests) for seed in range(60)]
    assert sum(number > 0 for number in found) >= 57


@given(st.integers(0, 10_000), st.integers(0, 10_000), st.floats(0.001, 0.999), st.floats(1.0, 5.0))
def test_evidence_grows_with_the_canary_s_failures_and_falls_with_the_others(
    stable: int, canary: int, share: float, tolerance: float
) -> None:
    here = evidence(share, Failures(stable, canary), tolerance)
    assert evidence(share, Failures(stable, canary + 1), tolerance) >= here * 0.999999
    assert evidence(share, Failures(stable + 1, canary), tolerance) <= here * 1.000001
    assert evidence(share, Failures(), tolerance) == pytest.approx(1.0)


def test_the_expected_evidence_of_the_next_failure_is_the_evidence_now() -> None:
    """What makes the test exact: under equal rates it is a martingale."""
    share = 0.1
    for stable, canary in ((0, 0), (40, 3), (5, 9), (500, 60)):
        now = evidence(share, Failures(stable, canary))
        then = share * evidence(share, Failures(stable, canary + 1))
        then += (1 - share) * evidence(share, Failures(stable + 1, canary))
        assert then == pytest.approx(now)


def test_few_failures_decide_nothing_and_the_worst_signal_is_named() -> None:
    rule = CanaryRule(least=5)
    assert not judge(5, 95, {CanarySignal.ERROR: Failures(0, 4)}, rule).out
    verdict = judge(5, 95, {CanarySignal.ERROR: Failures(90, 6), CanarySignal.SLOW: Failures(2, 8)}, rule)
    assert (verdict.out, verdict.signal) == (True, CanarySignal.SLOW)
    assert verdict.evidence >= verdict.threshold == 300
