"""Which features make wording matter, and what it costs to do without them: for `bench.router_wordings`.

Outcomes are those that the model of this release was learnt from and keeps. Every question, with its wordings, is
judged by a model that has not seen it, and features are left out by the wordings of the other questions alone.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from bench.data import embed
from router import evaluation
from router.canonical import canonical
from router.crossfit import features, folds, vectors
from router.evaluation import Interval, Values, interval
from router.fit import Examples, trained
from router.questions import Question
from router.success import COUNTS, SHARES, Array, SuccessModel

FEATURES = (*COUNTS, *SHARES)
BOUNDS = (np.inf, 0.5, 0.3, 0.2, 0.1)
RESAMPLES = 2000


class Reworded(Struct, frozen=True):
    """Questions with outcomes, of which some have several wordings."""

    examples: Examples
    fold: NDArray[np.intp]
    rows: NDArray[np.intp]
    """Which questions have wordings."""
    wordings: Array
    """Their features, (questions, wordings, features)."""
    embedded: Array
    """Their embeddings."""


class BlamedFeature(Struct, frozen=True):
    """What one feature has to do with it."""

    name: str
    differs: float
    """Mean standard deviation over the wordings of a question, in standard deviations over questions."""
    without: float
    """Median spread if all wordings of a question had the same of it."""


class TradeOff(Struct, frozen=True):
    """Models without the features that differ more than a bound from wording to wording."""

    bound: float
    basis: str
    median: float
    within: float
    """Share of the questions whose spread is at most 0.02."""
    apgr: Interval
    less: Interval
    """Less that of the model with all features."""
    brier: Interval
    """More than that of the model with all features; more is worse."""


def reworded(model: SuccessModel, asked: Sequence[Question], texts: Sequence[Sequence[str]]) -> Reworded:
    """Return what the model was learnt from. Args: texts: wordings, each question's first one as it was asked."""
    known = {each.digest: each for each in asked}
    questions = [known[digest] for digest in model.metadata.digests]
    outcomes = np.vstack([model.arrays["outcomes"], model.arrays["suite_outcomes"]])
    place = {each.prompt: row for row, each in enumerate(questions)}
    flat = [text for wordings in texts for text in wordings]
    shape = len(texts), len(texts[0]), -1
    return Reworded(
        Examples(
            vectors(features([each.prompt for each in questions])),
            embed([canonical(each.prompt) for each in questions]),
            outcomes,
        ),
        folds([each.kind for each in questions], model.metadata.digests),
        np.array([place[wordings[0]] for wordings in texts]),
        vectors(features(flat)).reshape(shape),
        embed([canonical(text) for text in flat]).reshape(shape),
    )


def blame(model: SuccessModel, wordings: Array) -> list[BlamedFeature]:
    """Return the features by what the spread would be without their changes."""
    found = []
    for column, name in enumerate(FEATURES):
        same = wordings.copy()
        same[:, :, column] = wordings[:, :, column].mean(axis=1, keepdims=True)
        differs = float(_differs(wordings, model.arrays["feature_scale"])[column])
        found.append(BlamedFeature(name, differs, float(np.median(_spreads(model, same, None)))))
    return sorted(found, key=lambda each: -each.differs)


def trade_off(data: Reworded) -> list[TradeOff]:
    """Leave out more and more features."""
    outcomes = data.examples.outcomes.astype(np.float64)
    drawn, found, first = evaluation.resamples(len(outcomes), RESAMPLES), list[TradeOff](), dict[str, list[Values]]()
    for bound in BOUNDS:
        for basis, believed, spread in _judged(data, bound):
            gain = believed[:, 2] - believed[:, 0]
            ends = gain, outcomes[:, 0], outcomes[:, 2]
            error = ((believed - outcomes) ** 2).mean(axis=1)
            now = [evaluation.apgr(*ends), evaluation.apgr(*ends, drawn), error]
            apgr, resampled, errors = first.setdefault(basis, now)
            more = error - errors
            found.append(
                TradeOff(
                    bound=float(bound),
                    basis=basis,
                    median=float(np.median(spread)),
                    within=float((spread <= 0.02).mean()),
                    apgr=interval(now[0], now[1]),
                    less=interval(now[0] - apgr, now[1] - resampled),
                    brier=interval(more.mean(keepdims=True), drawn @ more / len(more)),
                )
            )
    return found


def _judged(data: Reworded, bound: float) -> list[tuple[str, Values, Values]]:
    """Return what is believed of all questions, and the spreads, by features and with embeddings."""
    size = len(data.examples)
    believed, spread = np.zeros((2, size, 3)), np.zeros((2, len(data.rows)))
    for number in np.unique(data.fold):
        rest, rows = np.flatnonzero(data.fold != number), np.flatnonzero(data.fold == number)
        others = data.fold[data.rows] != number
        learnt = data.examples.take(rest)
        kept = _differs(data.wordings[others], learnt.vectors.std(axis=0) + 1e-3) < bound
        # A feature that never changes gets no weight.
        model = trained(Examples(learnt.vectors * kept, learnt.embeddings, learnt.outcomes))
        asked, wordings = data.examples.vectors[rows] * kept, data.wordings[~others] * kept
        projected = model.project(data.examples.embeddings[rows])
        for basis, (text, reworded) in enumerate(((None, None), (projected, data.embedded[~others]))):
            believed[basis, rows] = model.estimate(asked, text)[0]
            spread[basis, np.flatnonzero(~others)] = _spreads(model, wordings, reworded)
    return [(name, believed[basis], spread[basis]) for basis, name in enumerate(("features", "with an embedding"))]


def _differs(wordings: Array, scale: Array) -> Array:
    return np.asarray(wordings.std(axis=1).mean(axis=0) / scale)


def _spreads(model: SuccessModel, wordings: Array, embedded: Array | None) -> Values:
    """Return the spread of each question, whether familiar or not."""
    if not len(wordings):
        return np.zeros(0)
    projected = None if embedded is None else model.project(embedded.reshape(-1, embedded.shape[2]))
    believed = model.estimate(wordings.reshape(-1, wordings.shape[2]), projected)[0].astype(np.float64)
    return np.asarray(np.ptp((believed[:, 2] - believed[:, 0]).reshape(len(wordings), -1), axis=1))
