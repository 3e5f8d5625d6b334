"""Decides whether a look-up in the semantic cache serves, explores or rejects what the index found. Pure."""

from __future__ import annotations

import enum
from collections.abc import Sequence

from msgspec import Struct

from cache.semantic.entry import EntryState
from cache.semantic.evidence import Evidence, PromiseStanding, standing
from cache.semantic.guards import Rejection, guard
from cache.semantic.model import CorrectnessModel, Judgement, Offset, features_of
from cache.semantic.profile import Profile


class Action(enum.StrEnum):
    SERVE = "serve"
    """Give the entry's answer."""
    EXPLORE = "explore"
    """Let the model answer, compare its answer with the entry's, and record the check."""
    REJECT = "reject"
    """Let the model answer; the candidates are out of the question."""
    MISS = "miss"
    """Let the model answer; nothing similar is known."""


class ExplorationReason(enum.StrEnum):
    """Why a look-up is explored."""

    UNSURE = "unsure"
    """Similarity or the bound on P(correct) are too low to serve, whatever the evidence."""
    UNPROVEN = "unproven"
    """Comparisons do not show that enough answers of its band are right."""
    SAMPLED = "sampled"
    """The answer would have been served; it was drawn by chance, to go on measuring."""
    QUARANTINED = "quarantined"
    """The entry is being checked."""


class SemanticCandidate(Struct, frozen=True, kw_only=True):
    """A stored question that the index found, with its own answer."""

    id: str
    """Id of the phrasing."""
    answer: str
    """Digest of the answer that the phrasing leads to."""
    similarity: float
    """Cosine of its embedding and the question's."""
    profile: Profile
    state: EntryState = EntryState.PROBATION
    """State of the answer."""
    offset: Offset | None = None
    """Offset from the answer's checks (`offset_of`); None before the first check."""
    support: int = 0
    """Number of checks that found the answer right."""


EXPLORED = 0.05
"""Share of the answers to be served that are compared with fresh ones instead."""


class ServingTerms(Struct, frozen=True, kw_only=True):
    """The terms under which a stored answer may be served."""

    max_wrong_hits: float
    """The highest share of served answers that may be wrong, above 0."""
    evidence: Evidence
    """Comparisons so far."""


class SemanticDecision(Struct, frozen=True, kw_only=True):
    """The decision on a look-up, and its reason."""

    action: Action
    reason: Rejection | ExplorationReason | None = None
    phrasing: str | None = None
    """Id of the stored question that decided."""
    answer: str | None = None
    """Digest of the answer that is served or checked."""
    judgement: Judgement | None = None
    band: int | None = None
    """Band of an answer that may be served as soon as the evidence allows it: a comparison of it is evidence."""


def decide(
    question: Profile,
    candidates: Sequence[SemanticCandidate],
    *,
    model: CorrectnessModel,
    terms: ServingTerms,
    draw: float,
) -> SemanticDecision:
    """Decide on a look-up.

    Args:
        candidates: the nearest stored questions of the partition, nearest first; five, as the model was fitted on.
            Those of revoked answers are passed over.
        draw: uniform in [0, 1), new for each look-up.
    """
    near = [candidate for candidate in candidates if candidate.similarity >= model.floor and candidate.state.checkable]
    if not near:
        return SemanticDecision(action=Action.MISS)
    best = _best(question, near, model)
    if isinstance(best, Rejection):
        return SemanticDecision(action=Action.REJECT, reason=best)
    judgement, candidate = best
    band = model.band(judgement.lower, candidate.similarity) if candidate.state.servable else None
    reason: ExplorationReason | None = None
    if candidate.state is EntryState.QUARANTINED:
        reason = ExplorationReason.QUARANTINED
    elif band is None:
        reason = ExplorationReason.UNSURE
    elif standing(terms.evidence.of(band), terms.max_wrong_hits) is not PromiseStanding.KEPT:
        reason = ExplorationReason.UNPROVEN
    elif draw < EXPLORED:
        reason = ExplorationReason.SAMPLED
    return SemanticDecision(
        action=Action.SERVE if reason is None else Action.EXPLORE,
        reason=reason,
        phrasing=candidate.id,
        answer=candidate.answer,
        judgement=judgement,
        band=band,
    )


def _best(
    question: Profile, near: Sequence[SemanticCandidate], model: CorrectnessModel
) -> tuple[Judgement, SemanticCandidate] | Rejection:
    """Return the candidate most surely right of those that the guards let pass, or why the nearest did not pass."""
    refused: Rejection | None = None
    best: tuple[Judgement, SemanticCandidate] | None = None
    for candidate in near:
        rejection = guard(question, candidate.profile)
        if rejection is not None:
            refused = refused or rejection
            continue
        features = features_of(
            question,
            candidate.profile,
            similarity=candidate.similarity,
            support=candidate.support,
        )
        judgement = model.judge(features, candidate.offset)
        if best is None or judgement.lower > best[0].lower:
            best = judgement, candidate
    found = best or refused
    assert found is not None  # there was one at least
    return found
