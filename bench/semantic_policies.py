"""Ways to decide what a semantic cache serves, behind one interface, so that they meet the same requests.

In front of each stands an exact cache: a question that was asked before in the same words and answered by the model
does not reach the semantic one. A label takes the place of a comparison of two answers; whoever asks for it has let
the model answer.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from statistics import NormalDist
from typing import Protocol

import msgspec
import numpy as np

from bench.question_pairs import QuestionPool
from cache.semantic.decision import Action, SemanticCandidate, SemanticDecision, ServingTerms, decide
from cache.semantic.entry import EntryState, Observation, Thresholds, after_check
from cache.semantic.evidence import Comparisons, Evidence
from cache.semantic.guards import GUARDS, Rejection, written_alike
from cache.semantic.model import CorrectnessModel, Offset, offset_of
from cache.semantic.profile import Profile, profile

CANDIDATES = 5
Near = Sequence[tuple[int, float]]
Compare = Callable[[int], bool]
"""Tells whether the answer to this earlier question serves the present one too."""


class SemanticPolicy(Protocol):
    """One way to decide what is served."""

    stored: set[int]
    """Questions that can be found."""

    def handle(self, question: int, near: Near, compare: Compare) -> int | None:
        """Return the earlier question whose answer is served, or None if the model answers.

        Args:
            near: the nearest stored questions with their cosines.
            compare: only to be called if the model answers.
        """
        ...


class SemanticOutcome(msgspec.Struct, kw_only=True):
    """Results of a policy on a stream."""

    requests: int = 0
    exact: int = 0
    """Requests answered by the exact cache in front."""
    hits: int = 0
    wrong: int = 0
    """Hits between questions that no chain of "same" labels joins."""
    unlabelled: int = 0
    """Wrong hits between questions that no chain of labels of any kind joins: many are paraphrases in truth."""
    served: list[tuple[int, int]] = []
    """Each hit's question and the one whose answer it got."""


def simulate(pool: QuestionPool, requests: Sequence[int], policy: SemanticPolicy) -> SemanticOutcome:
    """Return a policy's outcome on a stream. It begins with nothing stored."""
    outcome = SemanticOutcome(requests=len(requests))
    answered: set[int] = set()
    for question in requests:
        if question in answered:
            outcome.exact += 1
            continue
        near = []
        for other, cosine in pool.neighbours[question]:
            if other in policy.stored:
                near.append((other, cosine))
                if len(near) == CANDIDATES:
                    break
        served = policy.handle(question, near, lambda other, asked=question: same(pool, asked, other))  # type: ignore[misc]
        if served is None:
            answered.add(question)
            continue
        outcome.hits += 1
        outcome.served.append((question, served))
        if not same(pool, question, served):
            outcome.wrong += 1
            outcome.unlabelled += pool.components[question] != pool.components[served]
    return outcome


def same(pool: QuestionPool, left: int, right: int) -> bool:
    return pool.clusters[left] == pool.clusters[right]


class GlobalThreshold:
    """GPTCache's policy: serves the nearest question whenever it is near enough."""

    def __init__(self, threshold: float) -> None:
        self.stored: set[int] = set()
        self._threshold = threshold

    def handle(self, question: int, near: Near, compare: Compare) -> int | None:
        if near and near[0][1] >= self._threshold:
            return near[0][0]
        self.stored.add(question)
        return None


class GuardedThreshold(GlobalThreshold):
    """Serves the nearest question that the guards let pass, whenever it is near enough.

    Args:
        without: guards that are left out.
    """

    def __init__(self, threshold: float, refusals: Refusals, without: frozenset[str] = frozenset()) -> None:
        super().__init__(threshold)
        self._refusals = refusals
        self._without = without

    def handle(self, question: int, near: Near, compare: Compare) -> int | None:
        passing = [each for each in near if self._refusals.of(question, each[0]) <= self._without]
        return super().handle(question, passing, compare)


class PerEntry:
    """vCache's policy (arXiv 2502.03771): each entry learns a logistic curve of its own from its own checks and is
    explored with a probability that keeps the error of each request below delta, the curve's uncertainty included."""

    LEAST = 6
    """Observations before an entry may serve, two artificial ones included."""

    def __init__(self, delta: float, seed: int) -> None:
        self.stored: set[int] = set()
        self._delta = delta
        self._random = np.random.default_rng(seed)
        self._seen: dict[int, list[tuple[float, bool]]] = {}
        self._curves: dict[int, tuple[float, float, float]] = {}

    def handle(self, question: int, near: Near, compare: Compare) -> int | None:
        if near:
            entry, cosine = near[0]
            if self._random.random() > self._exploration(entry, cosine):
                return entry
            right = compare(entry)
            self._seen.setdefault(entry, [(0.0, False), (1.0, True)]).append((cosine, right))
            self._curves.pop(entry, None)
            if right:
                return None
        self.stored.add(question)
        return None

    def _exploration(self, entry: int, cosine: float) -> float:
        """Return tau: the least probability of asking the model that keeps the bound, over all splits of confidence."""
        seen = self._seen.get(entry, ())
        if len(seen) < self.LEAST:
            return 1.0
        if entry not in self._curves:
            self._curves[entry] = fit_curve(seen)
        slope, threshold, deviation = self._curves[entry]
        least = 1.0
        for confidence, z in _CONFIDENCES:
            right = confidence / (1 + math.exp(min(700.0, -slope * (cosine - threshold - z * deviation))))
            least = min(least, 1 - self._delta / (1 - right))
        return max(0.0, least)


_CONFIDENCES = tuple((level, NormalDist().inv_cdf(level)) for level in (0.5, 0.8, 0.9, 0.95, 0.975, 0.99, 0.995, 0.999))
"""One-sided confidences of the curve's threshold with their normal quantiles."""


def fit_curve(seen: Sequence[tuple[float, bool]]) -> tuple[float, float, float]:
    """Slope, threshold and the threshold's standard deviation (delta method) of P(right | cosine). A weak ridge
    keeps the slope finite where the observations can be separated."""
    design = np.array([[1.0, cosine] for cosine, _ in seen])
    labels = np.array([right for _, right in seen], dtype=float)
    weights = np.zeros(2)
    ridge = np.diag([1e-3, 1e-3])
    information = ridge
    for _ in range(50):
        probabilities = 1 / (1 + np.exp(-np.clip(design @ weights, -30, 30)))
        information = (design * (probabilities * (1 - probabilities))[:, None]).T @ design + ridge
        step = np.linalg.solve(information, design.T @ (labels - probabilities) - ridge @ weights)
        weights += np.clip(step, -5, 5)
        if np.abs(step).max() < 1e-6:
            break
    slope = max(float(weights[1]), 1e-3)
    threshold = -float(weights[0]) / slope
    gradient = np.array([-1 / slope, float(weights[0]) / slope**2])
    variance = float(gradient @ np.linalg.inv(information) @ gradient)
    return slope, threshold, math.sqrt(max(0.0, variance))


class SimulatedAnswer(msgspec.Struct):
    """A stored answer in the simulation."""

    state: EntryState = EntryState.PROBATION
    observations: list[Observation] = []
    offset: Offset | None = None
    support: int = 0


class Profiles:
    """Profiles of a pool's questions, made once."""

    def __init__(self, texts: Sequence[str]) -> None:
        self._texts = texts
        self._made: dict[int, Profile] = {}

    def __getitem__(self, question: int) -> Profile:
        if question not in self._made:
            self._made[question] = profile(self._texts[question])
        return self._made[question]


class Refusals:
    """All guards that refuse a pair of a pool's questions, found once."""

    def __init__(self, profiles: Profiles) -> None:
        self._profiles = profiles
        self._found: dict[tuple[int, int], frozenset[Rejection]] = {}

    def of(self, question: int, other: int) -> frozenset[Rejection]:
        pair = (question, other)
        if pair not in self._found:
            one, two = self._profiles[question], self._profiles[other]
            one, two = written_alike(one, two), written_alike(two, one)
            self._found[pair] = frozenset(reason for reason, differs in GUARDS.items() if differs(one, two))
        return self._found[pair]


class Roundhouse:
    """Our policy: the decision of `cache.semantic`, with everything that it remembers."""

    def __init__(
        self,
        model: CorrectnessModel,
        profiles: Profiles,
        *,
        promise: float,
        seed: int,
        cutoff: float | None = None,
        mistakes: float = 0.0,
    ) -> None:
        """
        Args:
            promise: highest share of served answers that may be wrong.
            cutoff: serve from this lower bound of the model on, whatever comparisons show: to see in hindsight what
                could have been served.
            mistakes: share of comparisons that come out wrong.
        """
        self.stored: set[int] = set()
        self.evidence = Evidence()
        self.decisions: Counter[str] = Counter()
        self.answers: dict[int, SimulatedAnswer] = {}
        self._hindsight = cutoff is not None
        if cutoff is not None:
            model = msgspec.structs.replace(model, bands=(cutoff,))
            self.evidence = Evidence(bands=(Comparisons(1e6),))
        self.model = model
        self._profiles = profiles
        self._promise = promise
        self._random = np.random.default_rng(seed)
        self._mistakes = mistakes

    def handle(self, question: int, near: Near, compare: Compare) -> int | None:
        decision = decide(
            self._profiles[question],
            [self._candidate(other, cosine) for other, cosine in near],
            model=self.model,
            terms=ServingTerms(max_wrong_hits=self._promise, evidence=self.evidence),
            draw=self._random.random(),
        )
        self.decisions[".".join(filter(None, (decision.action, decision.reason)))] += 1
        if decision.action is Action.SERVE:
            return int(decision.answer or 0)
        self.stored.add(question)
        if decision.action is Action.EXPLORE:
            self._check(decision, compare)
        return None

    def _candidate(self, other: int, cosine: float) -> SemanticCandidate:
        answer = self.answers.get(other) or SimulatedAnswer()
        return SemanticCandidate(
            id=str(other),
            answer=str(other),
            similarity=cosine,
            profile=self._profiles[other],
            state=answer.state,
            offset=answer.offset,
            support=answer.support,
        )

    def _check(self, decision: SemanticDecision, compare: Compare) -> None:
        assert decision.judgement is not None
        place = int(decision.answer or 0)
        right = compare(place) != (self._random.random() < self._mistakes)
        answer = self.answers.setdefault(place, SimulatedAnswer())
        answer.observations = [*answer.observations, Observation(decision.judgement.logit, right)][-64:]
        answer.offset = offset_of(answer.observations, self.model.sigma)
        answer.support += right
        answer.state = after_check(answer.state, answer.observations, Thresholds())
        if decision.band is not None and not self._hindsight:
            self.evidence = self.evidence.after(decision.band, right, self._promise)
