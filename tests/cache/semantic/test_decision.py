"""Serve, explore or reject."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cache.semantic.decision import (
    EXPLORED,
    Action,
    ExplorationReason,
    SemanticCandidate,
    SemanticDecision,
    ServingTerms,
    decide,
)
from cache.semantic.entry import EntryState, Observation
from cache.semantic.evidence import Comparisons, Evidence
from cache.semantic.guards import Rejection
from cache.semantic.model import offset_of, shipped
from cache.semantic.profile import profile

MODEL = shipped()
ASKED = profile("How can I learn to play the guitar?")
TRUSTED = offset_of([Observation(1.0, True)] * 20, MODEL.sigma)
PROVEN = Evidence(bands=(Comparisons(1000.0, 1.0),) * len(MODEL.bands))
"""Of every band."""


def candidate(
    text: str = "How do I learn to play the guitar?", similarity: float = 0.97, **more: object
) -> SemanticCandidate:
    fields = {"id": "q1", "answer": "a1", "state": EntryState.VERIFIED, "offset": TRUSTED, "support": 20} | more
    return SemanticCandidate(similarity=similarity, profile=profile(text), **fields)  # type: ignore[arg-type]


def decision(
    *candidates: SemanticCandidate, draw: float = 0.9, evidence: Evidence = PROVEN, promise: float = 0.02
) -> SemanticDecision:
    terms = ServingTerms(max_wrong_hits=promise, evidence=evidence)
    return decide(ASKED, candidates, model=MODEL, terms=terms, draw=draw)


def test_nothing_similar_is_a_miss() -> None:
    assert decision().action is Action.MISS
    assert decision(candidate(similarity=MODEL.floor - 0.01)).action is Action.MISS


def test_a_trusted_paraphrase_is_served() -> None:
    found = decision(candidate())
    assert (found.action, found.answer, found.phrasing, found.reason) == (Action.SERVE, "a1", "q1", None)
    assert found.judgement is not None and found.band == MODEL.band(found.judgement.lower, 0.97)


def test_a_refused_candidate_gives_its_reason_and_is_not_compared() -> None:
    found = decision(candidate("How do I learn to play the piano?"))
    assert (found.action, found.reason, found.answer) == (Action.REJECT, Rejection.SUBSTITUTION, None)


def test_the_best_that_passes_the_guards_decides_not_the_nearest() -> None:
    near = candidate("How do I learn to play the piano?", similarity=0.99, id="q2", answer="a2")
    found = decision(near, candidate(similarity=0.95))
    assert (found.action, found.answer) == (Action.SERVE, "a1")


def test_an_unsure_one_is_checked_always_and_is_no_evidence() -> None:
    found = decision(candidate(similarity=0.62, offset=None, support=0))
    assert (found.action, found.reason, found.band) == (Action.EXPLORE, ExplorationReason.UNSURE, None)


@pytest.mark.parametrize("state", [EntryState.PROBATION, EntryState.VERIFIED])
def test_a_share_of_what_would_be_served_is_checked(state: EntryState) -> None:
    below, at = (decision(candidate(state=state), draw=draw) for draw in (EXPLORED * 0.99, EXPLORED))
    assert (below.action, below.reason) == (Action.EXPLORE, ExplorationReason.SAMPLED)
    assert at.action is Action.SERVE
    assert below.band == at.band is not None


def test_a_quarantined_one_is_checked_never_served_and_is_no_evidence() -> None:
    found = decision(candidate(state=EntryState.QUARANTINED))
    assert (found.action, found.reason, found.band) == (Action.EXPLORE, ExplorationReason.QUARANTINED, None)


def test_a_revoked_one_is_passed_over() -> None:
    assert decision(candidate(state=EntryState.REVOKED)).action is Action.MISS


def test_nothing_is_served_before_comparisons_show_that_it_is_right() -> None:
    """By default, however sure the model is; everything is checked, and counts."""
    for evidence in (Evidence(), Evidence(bands=(Comparisons(900.0, 100.0),) * len(MODEL.bands))):
        found = decision(candidate(similarity=1.0), evidence=evidence)
        assert (found.action, found.reason) == (Action.EXPLORE, ExplorationReason.UNPROVEN)
        assert found.band is not None


def test_the_evidence_is_that_of_the_answers_own_band() -> None:
    band = decision(candidate()).band
    assert band is not None
    for place in range(len(MODEL.bands)):
        bands = [Comparisons()] * len(MODEL.bands)
        bands[place] = Comparisons(1000.0, 0.0)
        found = decision(candidate(), evidence=Evidence(bands=tuple(bands)))
        assert (found.action is Action.SERVE) is (place == band)


@given(
    st.floats(0.6, 1),
    st.floats(0.001, 0.2),
    st.integers(0, 3000),
    st.integers(0, 300),
    st.floats(0, 0.999),
    st.sampled_from(EntryState),
)
def test_what_is_served_is_right_often_enough(
    similarity: float, promise: float, right: int, wrong: int, draw: float, state: EntryState
) -> None:
    entry = candidate(similarity=similarity, state=state)
    evidence = Evidence(bands=(Comparisons(float(right), float(wrong)),) * len(MODEL.bands))
    found = decision(entry, draw=draw, promise=promise, evidence=evidence)
    if found.action is Action.SERVE:
        assert state.servable and wrong / (right + wrong) < promise


def test_the_order_of_equals_does_not_matter() -> None:
    entries = [candidate(similarity=0.9 + place / 50, id=f"q{place}", answer=f"a{place}") for place in range(3)]
    assert len({decision(*order).answer for order in itertools.permutations(entries)}) == 1
