"""What is believed of the tiers by the prompt, and what their first tokens add; for `bench.peek`.

Every probability is of a question that was not learnt from: half of the questions teach, the other half is judged, then
the other way round.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression

from bench.peek_evidence import LONGEST, PEEK, TierEvidence
from bench.peek_policies import PeekBeliefs
from router.evaluation import Values
from router.fit import Examples, trained

SPLITS = 10
COUNTS = (1, 4, 8, PEEK, LONGEST)
"""Numbers of first tokens that are looked at."""
OURS = "ours"
METHODS = ("prompt length", "kind of question, given", "ours, no embedding", OURS)
"""Methods that read the prompt alone."""
Rows = NDArray[np.intp]


class Seen(Struct, frozen=True):
    """Questions, their outcomes, and evidence."""

    examples: Examples
    kinds: NDArray[np.str_]
    lengths: Values
    """Logarithms of the prompts' tokens."""
    evidence: Sequence[Sequence[TierEvidence]]
    """Of the small tier and, if it was gathered, of the medium one."""

    @property
    def right(self) -> Values:
        return self.examples.outcomes.astype(np.float64)


def signals(evidence: TierEvidence, count: int) -> dict[str, float]:
    """Return what the first tokens show, each number higher where the answer looks better."""
    logprobs, entropies = evidence.logprobs[:count] or [0.0], evidence.entropies[:count] or [0.0]
    return {
        "mean log-probability": float(np.mean(logprobs)),
        "lowest log-probability": min(logprobs),
        "mean entropy": -float(np.mean(entropies)),
        "highest entropy": -max(entropies),
        "mean margin": float(np.mean(evidence.margins[:count] or [1.0])),
        "brevity": -float(len(evidence.logprobs[:count])),
    }


def agreement(evidence: TierEvidence) -> float:
    """Return how alike two samples are, word by word: 1 where they are the same."""
    one, other = ([word.strip(".,;:!") for word in text.casefold().split()] for text in evidence.samples)
    return difflib.SequenceMatcher(None, one, other, autojunk=False).ratio()


def inputs(evidence: Sequence[TierEvidence], count: int) -> Values:
    """Return the signals of the first tokens as a learner's input, by rows."""
    return np.array([list(signals(each, count).values()) for each in evidence], np.float64)


def halves(size: int) -> Iterator[tuple[Rows, Rows]]:
    """Yield the two halves of each split."""
    for seed in range(SPLITS):
        order = np.random.default_rng(seed).permutation(size)
        yield order[: size // 2], order[size // 2 :]


class ByPrompt(Struct, frozen=True):
    """Probabilities by the prompt alone."""

    asked: dict[str, Values]
    """Of the questions to judge, by each method."""
    ours: tuple[Values, Values]
    """By `router.fit`: of the questions learnt from, by estimates that had not seen them, and of the others."""


def by_prompt(seen: Seen, learn: Rows, judge: Rows) -> ByPrompt:
    """Learn from one half what prompts tell, and judge the other half."""
    right, asked = seen.right, seen.examples.take(judge)
    model = trained(seen.examples.take(learn))
    ours = model.estimate(asked.vectors, model.project(asked.embeddings))[0].astype(np.float64)
    mean = right[learn].mean(axis=0)
    # As if two more questions of each kind had come out as the mean: some kinds have few.
    of_kind = {kind: learn[seen.kinds[learn] == kind] for kind in set(seen.kinds)}
    priors = {kind: (right[rows].sum(axis=0) + 2 * mean) / (len(rows) + 2) for kind, rows in of_kind.items()}
    found = (
        learnt(seen.lengths[learn, None], right[learn], seen.lengths[judge, None]),
        np.array([priors[kind] for kind in seen.kinds[judge]]),
        model.estimate(asked.vectors, None)[0].astype(np.float64),
        ours,
    )
    return ByPrompt(dict(zip(METHODS, found, strict=True)), (model.calibration, ours))


def learnt(inputs: Values, right: Values, asked: Values, strength: float = 0.3) -> Values:
    """Return each tier's probability of a right answer by a logistic model of the inputs."""
    mean, scale = inputs.mean(axis=0), inputs.std(axis=0) + 1e-9
    models = [LogisticRegression(C=strength).fit((inputs - mean) / scale, column) for column in right.T]
    return np.stack([model.predict_proba((asked - mean) / scale)[:, 1] for model in models], axis=1)


def with_evidence(
    seen: Seen, prior: tuple[Values, Values], halves: tuple[Rows, Rows], evidence: Sequence[Values]
) -> Values:
    """Return probabilities by prompt and evidence.

    Args:
        prior: by the prompt alone, of the questions learnt from and of those to judge.
        evidence: inputs of every question.
    """
    learn, judge = halves
    known, asked = (_odds(values) for values in prior)
    return learnt(
        np.hstack([known, *(part[learn] for part in evidence)]),
        seen.right[learn],
        np.hstack([asked, *(part[judge] for part in evidence)]),
    )


def beliefs(seen: Seen, prior: tuple[Values, Values], halves: tuple[Rows, Rows], count: int) -> PeekBeliefs:
    """Return what is believed of the questions to judge before and after so many first tokens."""
    small, *medium = (inputs(part, count) for part in seen.evidence)
    return PeekBeliefs(
        before=prior[1],
        small=with_evidence(seen, prior, halves, [small]),
        medium=with_evidence(seen, prior, halves, medium),
        both=with_evidence(seen, prior, halves, [small, *medium]),
    )


def _odds(probabilities: Values) -> Values:
    inside = np.clip(probabilities, 0.01, 0.99)
    return np.asarray(np.log(inside / (1 - inside)))
