"""Decides whether a look-up in the semantic cache serves, explores or rejects what the index found. Pure."""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence

from msgspec import Struct

from cache.semantic.entry import EntryState
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
    """The bound on P(correct) is too low to serve."""
    SAMPLED = "sampled"
    """The answer would have been served; it was drawn by chance, to measure the error."""
    QUARANTINED = "quarantined"
    """The entry is being checked."""
    EXACT_ONLY = "exact_only"
    """The answer would have been served, had the monitor not tripped."""


class SemanticCandidate(Struct, frozen=True, kw_only=True):
    """A stored question that the index found. Several may lead to one answer: whenever a check finds that a question's
    own answer is the same as a stored one, it becomes another phrasing of that answer."""

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


class Exploration(Struct, frozen=True, kw_only=True):
    """Share of the look-ups that would be served and are checked instead, by the entry's state."""

    probation: float = 0.05
    verified: float = 0.02

    def propensity(self, state: EntryState) -> float:
        return self.verified if state is EntryState.VERIFIED else self.probation


class ServingTerms(Struct, frozen=True, kw_only=True):
    """The terms under which a stored answer may be served."""

    delta: float
    """The bound on the share of wrong answers."""
    strictness: float = 0.0
    """Logits that the monitor adds to the bound asked for, at least 0."""
    exact_only: bool = False
    """Whether the monitor has tripped: nothing is served."""
    exploration: Exploration = Exploration()


class SemanticDecision(Struct, frozen=True, kw_only=True):
    """The decision on a look-up, and its reason."""

    action: Action
    reason: Rejection | ExplorationReason | None = None
    phrasing: str | None = None
    """Id of the stored question that decided."""
    answer: str | None = None
    """Digest of the answer that is served or checked."""
    judgement: Judgement | None = None
    propensity: float = 0.0
    """Probability with which this look-up was to be explored."""
    would_serve: bool = False
    """Whether the answer would have been served, chance and the monitor's trip aside: only then a check measures the
    error."""


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
    sure = _logit(judgement.lower) >= _logit(model.cutoff(terms.delta)) + terms.strictness
    would_serve = sure and candidate.state.servable
    propensity = terms.exploration.propensity(candidate.state) if would_serve and not terms.exact_only else 1.0
    reason: ExplorationReason | None
    if candidate.state is EntryState.QUARANTINED:
        reason = ExplorationReason.QUARANTINED
    elif not would_serve:
        reason = ExplorationReason.UNSURE
    elif terms.exact_only:
        reason = ExplorationReason.EXACT_ONLY
    else:
        reason = ExplorationReason.SAMPLED if draw < propensity else None
    return SemanticDecision(
        action=Action.SERVE if reason is None else Action.EXPLORE,
        reason=reason,
        phrasing=candidate.id,
        answer=candidate.answer,
        judgement=judgement,
        propensity=propensity,
        would_serve=would_serve,
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
        others = [other.similarity for other in near if other.answer != candidate.answer]
        features = features_of(
            question,
            candidate.profile,
            similarity=candidate.similarity,
            runner_up=max(others, default=0.0),
            agreement=len(near) - len(others) - 1,
            support=candidate.support,
        )
        judgement = model.judge(features, candidate.offset)
        if best is None or judgement.lower > best[0].lower:
            best = judgement, candidate
    found = best or refused
    assert found is not None  # there was one at least
    return found


def _logit(probability: float) -> float:
    """Logit of a bound, which may lie outside (0, 1): then it is passed always or never."""
    if not 0 < probability < 1:
        return math.copysign(math.inf, probability - 0.5)
    return math.log(probability / (1 - probability))
