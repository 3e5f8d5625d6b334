"""What a judge's comparisons of two answers each say of questions that nothing can grade. Pure.

An answer counts as right there if no other pool's answer was found better: what a larger pool gains is how often it is
preferred. Whether a judge may say so is seen on the questions with graders: of two answers, one right and one wrong, it
has to name the right one more often, beyond chance, than any rule that reads neither (`router.judging`).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

import numpy as np
from msgspec import Struct

from router.evaluation import Values
from router.judging import Trust, TwicePair, trust


class AnswerPair(Struct, frozen=True):
    """Two pools' answers to a question."""

    row: int
    """Which question."""
    pools: tuple[int, int]
    """Places of the pools, the smaller one first."""


class JudgeFigures(Struct, frozen=True, kw_only=True):
    """What a judge is worth on questions with graders, and what it was asked for."""

    judge: str
    """Public name of its model."""
    trust: Trust
    """How often it names the right one of a right and a wrong answer, where it names one."""
    silent: int
    """Further such pairs, of which it names none."""
    alike: int
    """Pairs of two right answers that it has compared."""
    preferred: int
    """Of these, pairs of which it names one all the same."""
    judged: int
    """Questions without graders."""

    @property
    def established(self) -> bool:
        """Whether its opinions count."""
        return self.trust.established


def pairs(right: Values, digests: Sequence[str]) -> list[AnswerPair]:
    """Return the pairs that a judge is asked about.

    Of a question without a grader these are all. Of one with a grader it is one pair, so that questions stay
    independent: of a right and a wrong answer if there is any, else of two right ones. Which of several is drawn by the
    question's digest.

    Args:
        right: (questions, pools); NaN without a grader.
    """
    found = []
    for row, (outcomes, digest) in enumerate(zip(right, digests, strict=True)):
        every = list(combinations(range(len(outcomes)), 2))
        if np.isnan(outcomes).any():
            found += [AnswerPair(row, pools) for pools in every]
            continue
        telling = [(one, other) for one, other in every if outcomes[one] != outcomes[other]]
        chosen = telling or [(one, other) for one, other in every if outcomes[one] and outcomes[other]]
        if chosen:
            found.append(AnswerPair(row, chosen[int(digest, 16) % len(chosen)]))
    return found


def judged(right: Values, compared: Sequence[AnswerPair], opinions: Sequence[int]) -> Values:
    """Return the outcomes with those of the questions without graders.

    Args:
        opinions: on each pair; 1 the larger pool's answer is better, -1 the smaller one's, 0 no opinion.
    """
    found = np.where(np.isnan(right), 1.0, right)
    for pair, opinion in zip(compared, opinions, strict=True):
        if opinion and np.isnan(right[pair.row]).any():
            smaller, larger = pair.pools
            found[pair.row, smaller if opinion > 0 else larger] = 0.0
    return found


def figures(
    judge: str, right: Values, characters: Values, compared: Sequence[AnswerPair], opinions: Sequence[int]
) -> JudgeFigures:
    """Hold a judge against the graders. Args: characters: lengths of the answers; others as of `judged`."""
    told, silent, alike, preferred = list[TwicePair](), 0, 0, 0
    for pair, opinion in zip(compared, opinions, strict=True):
        (smaller, larger), outcomes = pair.pools, right[pair.row]
        if np.isnan(outcomes).any():
            continue
        if outcomes[smaller] == outcomes[larger]:
            alike += 1
            preferred += opinion != 0
        elif opinion:
            longer = np.sign(characters[pair.row, larger] - characters[pair.row, smaller])
            told.append(TwicePair(1 if outcomes[larger] else -1, opinion, int(longer)))
        else:
            silent += 1
    return JudgeFigures(
        judge=judge,
        trust=trust(told),
        silent=silent,
        alike=alike,
        preferred=preferred,
        judged=int(np.isnan(right).any(axis=1).sum()),
    )
