"""Serve, explore or reject."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cache.semantic.decision import (
    Action,
    Exploration,
    ExplorationReason,
    SemanticCandidate,
    SemanticDecision,
    ServingTerms,
    decide,
)
from cache.semantic.entry import EntryState, Observation
from cache.semantic.guards import Rejection
from cache.semantic.model import offset_of, shipped
from cache.semantic.profile import profile

MODEL = shipped()
ASKED = profile("How can I learn to play the guitar?")
TRUSTED = offset_of([Observation(1.0, True)] * 20, MODEL.sigma)


def candidate(
    text: str = "How do I learn to play the guitar?", similarity: float = 0.97, **more: object
) -> SemanticCandidate:
    fields = {"id": "q1", "answer": "a1", "state": EntryState.VERIFIED, "offset": TRUSTED, "support": 20} | more
    return SemanticCandidate(similarity=similarity, profile=profile(text), **fields)  # type: ignore[arg-type]


def decision(
    *candidates: SemanticCandidate, draw: float = 0.9, delta: float = 0.05, **more: object
) -> SemanticDecision:
    return decide(ASKED, candidates, model=MODEL, terms=ServingTerms(delta=delta, **more), draw=draw)  # type: ignore[arg-type]


def test_nothing_similar_is_a_miss() -> None:
    assert decision().action is Action.MISS
    assert decision(candidate(similarity=MODEL.floor - 0.01)).action is Action.MISS


def test_a_trusted_paraphrase_is_served() -> None:
    found = decision(candidate())
    assert (found.action, found.answer, found.phrasing, found.reason) == (Action.SERVE, "a1", "q1", None)
    assert found.would_serve
    assert found.propensity == Exploration().verified


def test_a_refused_candidate_gives_its_reason_and_is_not_compared() -> None:
    found = decision(candidate("How do I learn to play the piano?"))
    assert (found.action, found.reason, found.answer) == (Action.REJECT, Rejection.SUBSTITUTION, None)


def test_the_best_that_passes_the_guards_decides_not_the_nearest() -> None:
    near = candidate("How do I learn to play the piano?", similarity=0.99, id="q2", answer="a2")
    found = decision(near, candidate(similarity=0.95))
    assert (found.action, found.answer) == (Action.SERVE, "a1")


def test_an_unsure_one_is_explored_always() -> None:
    found = decision(candidate(similarity=0.62, offset=None, support=0), delta=0.005)
    assert (found.action, found.reason, found.propensity) == (Action.EXPLORE, ExplorationReason.UNSURE, 1.0)
    assert not found.would_serve


@pytest.mark.parametrize("state", [EntryState.PROBATION, EntryState.VERIFIED])
def test_a_share_of_what_would_be_served_is_checked(state: EntryState) -> None:
    share = Exploration().propensity(state)
    below, at = (decision(candidate(state=state), draw=draw) for draw in (share * 0.99, share))
    assert (below.action, below.reason) == (Action.EXPLORE, ExplorationReason.SAMPLED)
    assert at.action is Action.SERVE
    assert below.would_serve
    assert below.propensity == at.propensity == share


def test_a_quarantined_one_is_checked_never_served() -> None:
    found = decision(candidate(state=EntryState.QUARANTINED))
    assert (found.action, found.reason, found.would_serve) == (Action.EXPLORE, ExplorationReason.QUARANTINED, False)


def test_a_revoked_one_is_passed_over() -> None:
    assert decision(candidate(state=EntryState.REVOKED)).action is Action.MISS


def test_after_the_trip_everything_is_checked_and_counts_for_recovery() -> None:
    found = decision(candidate(), exact_only=True)
    assert (found.action, found.reason) == (Action.EXPLORE, ExplorationReason.EXACT_ONLY)
    assert (found.would_serve, found.propensity) == (True, 1.0)


def test_a_bound_below_the_calibrated_ones_serves_nothing() -> None:
    assert decision(candidate(similarity=1.0), delta=0.0001).action is Action.EXPLORE


@given(
    st.floats(0.6, 1),
    st.sampled_from([0.005, 0.01, 0.02, 0.05]),
    st.floats(0, 6),
    st.floats(0, 0.999),
    st.sampled_from(EntryState),
    st.booleans(),
)
def test_stricter_never_serves_more(
    similarity: float, delta: float, strictness: float, draw: float, state: EntryState, exact_only: bool
) -> None:
    entry = candidate(similarity=similarity, state=state)
    found = decision(entry, draw=draw, delta=delta, strictness=strictness, exact_only=exact_only)
    if found.action is Action.SERVE:
        assert state.servable
        assert not exact_only
        for looser in (0.005, 0.01, 0.02, 0.05):
            if looser >= delta:
                assert decision(entry, draw=draw, delta=looser, strictness=strictness / 2).action is Action.SERVE


def test_the_nearest_other_answer_counts_against_a_candidate() -> None:
    rival = candidate("What guitar should a child learn first?", similarity=0.96, id="q2", answer="a2")
    friend = candidate("Learning to play the guitar, how?", similarity=0.96, id="q2")
    alone, contested, supported = (decision(candidate(), *others).judgement for others in ((), (rival,), (friend,)))
    assert alone is not None
    assert contested is not None
    assert supported is not None
    assert contested.lower < alone.lower
    assert contested.lower < supported.lower


def test_the_order_of_equals_does_not_matter() -> None:
    entries = [candidate(similarity=0.9 + place / 50, id=f"q{place}", answer=f"a{place}") for place in range(3)]
    assert len({decision(*order).answer for order in itertools.permutations(entries)}) == 1
