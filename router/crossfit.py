"""Beliefs about questions by models that had not seen them: folds, a fit for each, and the rule of the product.

Needs scikit-learn (`router.fit`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from router import mixture
from router.complexity import score
from router.expense import ExpectedCosts, Rates, Three, prices
from router.features import Features, PromptMessage, extract
from router.fit import Examples, fit
from router.success import Array, Prediction, SuccessModel, vector
from router.tier import NEVER, Outlook, ValueSource, source

FOLDS = 10
FEWEST = 60
"""Questions from which on a model is fitted."""


class Beliefs(Struct, frozen=True):
    """What is believed of each question, and the knob's prices of the model that judged it."""

    outlooks: list[Outlook]
    tables: list[tuple[float, ...]]

    @property
    def familiar(self) -> float:
        """Share of the questions that the model gives probabilities for."""
        return sum(each.source is ValueSource.LEARNT for each in self.outlooks) / max(1, len(self.outlooks))


class Rule(Struct, frozen=True):
    """The settings that a tier is chosen by."""

    costs: Three
    """Costs of a token at each tier, relative to the dearest."""
    rates: Rates
    by_complexity: bool = False
    medium_from: float = 0.2
    large_from: float = 0.45

    def outlook(self, seen: Features, prediction: Prediction | None, costs: Three | None = None) -> Outlook:
        """Return what is believed of a question. Args: costs: that it is expected to have."""
        found = source(prediction, seen.characters, by_complexity=self.by_complexity)
        known = costs if found is ValueSource.LEARNT else None
        return Outlook(found, score(seen).score, prediction, self.medium_from, self.large_from, costs=known)


def folds(kinds: Sequence[str], digests: Sequence[str], count: int = FOLDS) -> NDArray[np.intp]:
    """Return the fold of each question: folds of about equal size, and each kind in all of them alike.

    A question's fold depends on the others of its file, not on their order.
    """
    order = sorted(range(len(kinds)), key=lambda row: (kinds[row], digests[row]))
    found = np.zeros(len(kinds), np.intp)
    found[order] = np.arange(len(kinds)) % count
    return found


def features(prompts: Sequence[str]) -> list[Features]:
    """Return the features of prompts as first messages."""
    return [extract([PromptMessage("user", prompt)]) for prompt in prompts]


def held_out(examples: Examples, seen: Sequence[Features], fold: NDArray[np.intp], rule: Rule) -> Beliefs:
    """Judge each fold's questions by a model that was fitted on the others."""
    outlooks: list[Outlook | None] = [None] * len(examples)
    tables: list[tuple[float, ...]] = [()] * len(examples)
    for number in np.unique(fold):
        rows, rest = np.flatnonzero(fold == number), np.flatnonzero(fold != number)
        model = SuccessModel.read(fit(examples.take(rest), trained_on="the other folds", embedding="of the examples"))
        part = by_model(model, [seen[row] for row in rows.tolist()], examples.take(rows), rule)
        for row, outlook, table in zip(rows, part.outlooks, part.tables, strict=True):
            outlooks[row], tables[row] = outlook, table
    return Beliefs([each for each in outlooks if each is not None], tables)


def by_model(model: SuccessModel, seen: Sequence[Features], asked: Examples, rule: Rule) -> Beliefs:
    """Judge questions by one model, as the gateway does.

    Args:
        asked: the questions, with embeddings by the embedder that the model knows or none.
    """
    expected = ExpectedCosts.learnt(rule.rates, model)
    learnt, dealt = prices(model, rule.costs, expected), mixture.prices(rule.costs, NEVER)
    outlooks, embedded = [], asked.embedded
    for row, each in enumerate(seen):
        prediction = model.predict(each)
        if prediction.probabilities is not None and embedded[row]:
            prediction = model.predict(each, asked.embeddings[row])
        costs = None
        if expected is not None and asked.inputs is not None:
            costs = expected.of(asked.inputs[row].tolist())
        outlooks.append(rule.outlook(each, prediction, costs))
    return Beliefs(outlooks, [dealt if each.source is ValueSource.MIXTURE else learnt for each in outlooks])


def by_none(seen: Sequence[Features], rule: Rule) -> Beliefs:
    """Judge questions without a model: as a mixture, or by complexity if the rule says so."""
    return Beliefs([rule.outlook(each, None) for each in seen], [mixture.prices(rule.costs, NEVER)] * len(seen))


def vectors(seen: Sequence[Features]) -> Array:
    """Return the features as a model's input, by rows."""
    return np.stack([vector(each) for each in seen])
