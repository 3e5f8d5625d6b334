"""What comparisons show of a promise about what is served."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.stats import beta

from cache.semantic.evidence import Comparisons, Evidence, PromiseStanding, lacking, report, standing

PROMISE = 0.02


def compared(right: int, wrong: int = 0) -> Comparisons:
    return Comparisons(float(right), float(wrong))


def test_without_comparisons_nothing_is_known_and_nothing_served() -> None:
    assert Comparisons().interval(PROMISE) == (0.0, 1.0)
    assert standing(Comparisons(), PROMISE) is PromiseStanding.UNPROVEN


@pytest.mark.parametrize(("right", "wrong"), [(0, 3), (50, 0), (200, 1), (90, 12), (900, 9)])
@pytest.mark.parametrize("share", [0.005, 0.02, 0.1])
def test_the_evidence_is_a_mixture_of_likelihood_ratios(right: int, wrong: int, share: float) -> None:
    """By numerical integration over the shares of the mixture."""
    prior = beta(0.5, 0.5 / PROMISE)

    def ratio(other: float) -> float:
        return float(prior.pdf(other)) * (other / share) ** wrong * ((1 - other) / (1 - share)) ** right

    pieces = [0.0, 1e-6, 1e-4, 1e-3, 0.01, 0.05, 0.2, 1.0]
    total = sum(quad(ratio, low, high, limit=200)[0] for low, high in itertools.pairwise(pieces))
    assert compared(right, wrong).against(share, PROMISE) == pytest.approx(math.log(total), abs=0.02)


@given(st.integers(0, 2000), st.integers(0, 200))
def test_the_interval_holds_the_share_and_ends_where_the_evidence_says(right: int, wrong: int) -> None:
    seen = compared(right, wrong)
    low, high = seen.interval(PROMISE)
    assert 0 <= low <= seen.share <= high <= 1
    for limit in (low, high):
        if 0 < limit < 1:
            assert seen.against(limit, PROMISE) == pytest.approx(math.log(20), abs=0.1)
    assert (standing(seen, PROMISE) is PromiseStanding.KEPT) == (high <= PROMISE)
    assert (standing(seen, PROMISE) is PromiseStanding.BROKEN) == (low >= PROMISE)


@pytest.mark.parametrize(("promise", "needed"), [(0.01, 431), (0.02, 215), (0.05, 85)])
def test_about_four_over_the_promise_right_comparisons_in_a_row_are_enough(promise: float, needed: int) -> None:
    assert lacking(Comparisons(), promise) == needed
    assert standing(compared(needed * 2), promise) is PromiseStanding.KEPT
    assert standing(compared(needed // 2), promise) is PromiseStanding.UNPROVEN
    assert 0 < lacking(compared(needed, 1), promise) < needed


@pytest.mark.parametrize(("right", "wrong"), [(0, 0), (30, 3), (500, 40)])
def test_the_comparisons_that_are_lacking_are_those_that_it_takes(right: int, wrong: int) -> None:
    evidence, missing = compared(right, wrong), 0
    while standing(evidence, PROMISE) is not PromiseStanding.KEPT:
        evidence, missing = evidence.after(True, PROMISE), missing + 1
    assert lacking(compared(right, wrong), PROMISE) == missing


def test_a_share_above_the_promise_is_served_at_any_time_with_five_percent_at_most() -> None:
    """However often it is looked at: after each of 3,000 comparisons, 2.2 % of which are wrong."""
    random = np.random.default_rng(0)
    served = 0
    for _ in range(200):
        evidence = Comparisons()
        for wrong in random.random(3000) < 0.022:
            evidence = evidence.after(not wrong, PROMISE)
            if standing(evidence, PROMISE) is PromiseStanding.KEPT:
                served += 1
                break
    assert served <= 18  # 10 on average at the very most


def test_a_small_share_is_served_soon_and_a_large_one_is_told() -> None:
    random = np.random.default_rng(1)
    for share, expected in ((0.003, PromiseStanding.KEPT), (0.15, PromiseStanding.BROKEN)):
        evidence = Comparisons()
        for wrong in random.random(1500) < share:
            evidence = evidence.after(not wrong, PROMISE)
        assert standing(evidence, PROMISE) is expected


def test_traffic_that_gets_worse_is_served_no_more() -> None:
    """Old comparisons fade."""
    evidence = Comparisons()
    for _ in range(10_000):
        evidence = evidence.after(True, PROMISE)
    assert evidence.total == pytest.approx(40 / PROMISE, rel=0.01)
    worse = 0
    while standing(evidence, PROMISE) is PromiseStanding.KEPT:
        worse += 1
        evidence = evidence.after(worse % 10 != 0, PROMISE)
    assert worse < 400


def test_bands_are_counted_apart_and_only_for_one_embedder_and_model() -> None:
    evidence = Evidence().on("one:2").after(2, True, PROMISE).after(0, False, PROMISE)
    assert [round(evidence.of(band).total) for band in range(4)] == [1, 0, 1, 0]
    assert evidence.on("one:2") is evidence
    assert evidence.on("other:2") == Evidence(basis="other:2")


def test_the_report_tells_why() -> None:
    evidence = Evidence(bands=(Comparisons(80.0, 20.0), Comparisons(50.0, 0.0), Comparisons(600.0, 1.0)))
    sure, unsure, bad = report(evidence, (0.5, 0.7, 0.9), PROMISE)
    assert (sure.bound, sure.standing, sure.lacking, sure.compared, sure.wrong) == (
        0.9,
        PromiseStanding.KEPT,
        0,
        601,
        1,
    )
    assert sure.low < sure.share < sure.high <= PROMISE
    assert (unsure.standing, unsure.lacking) == (PromiseStanding.UNPROVEN, lacking(Comparisons(50.0), PROMISE))
    assert bad.standing is PromiseStanding.BROKEN and bad.low > PROMISE and bad.lacking > 1000
