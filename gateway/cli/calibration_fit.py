"""Judges the answers of `roundhouse route calibrate`, and fits a model of success to them. Needs scikit-learn."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from gateway.config.pools import TIERS, PoolSettings
from gateway.config.settings import Settings
from gateway.pipeline.routing.calibration import calibration, rates
from router.assessment import GradedAnswers, TierEvaluation, assess
from router.crossfit import FEWEST, Beliefs, Rule, by_model, by_none, features, folds, held_out, vectors
from router.evaluation import Values
from router.features import Features
from router.fit import Examples, fit
from router.knob import RoutedQuestions, draw, turn
from router.pairwise import JudgeFigures
from router.questions import Question
from router.success import Array
from router.tier import relative

KEPT = 5
"""One question of so many is kept apart for the model's frozen suite."""


def evaluate(
    settings: Settings,
    pools: Sequence[PoolSettings],
    questions: Sequence[Question],
    graded: GradedAnswers,
    embedded: tuple[str, Array],
    judge: JudgeFigures | None = None,
) -> tuple[TierEvaluation, bytes | None]:
    """Compute all figures, and the model if it is better than a mixture of the tiers and than what is in use.

    Questions without graders are left out if the judge that compared their answers is not to be believed.

    Args:
        pools: those that were asked, from small to large.
        embedded: name of the embedding model, and the questions' embeddings.
        judge: what it is worth; None if all questions have graders.
    """
    if judge is not None and not judge.established:
        rows = np.array([row for row, each in enumerate(questions) if each.grade is not None])
        questions, graded = [questions[row] for row in rows], graded.take(rows)
        embedded = embedded[0], embedded[1][rows]
    rule, notes = _rule(settings, pools)
    spent, drawn = _spent(graded, rule), draw(len(questions))
    seen = features([each.prompt for each in questions])
    examples = Examples(
        vectors(seen),
        embedded[1],
        graded.right.astype(np.float32),
        graded.input_tokens.astype(np.float32),
        graded.tokens.astype(np.float32),
        tuple(each.digest for each in questions),
    )
    fold = folds([each.kind for each in questions], examples.digests)

    def auto(name: str, beliefs: Beliefs) -> tuple[str, float, RoutedQuestions]:
        return name, beliefs.familiar, turn(beliefs.outlooks, beliefs.tables, rule.costs, graded.right, spent)

    name, beliefs = _in_use(settings, examples, seen, embedded[0], rule)
    in_use, fitted = auto(name, beliefs), None
    if len(questions) < FEWEST or min(graded.right.sum(), (1 - graded.right).sum()) < FEWEST / 4:
        notes.append(f"Too little to learn from: it takes {FEWEST} questions, and answers right and wrong.")
    else:
        apart = held_out(examples, seen, fold, rule)
        fitted = auto("Every question judged by a model that had not seen it", apart)
    found = assess(questions, graded, rule.costs, spent, in_use, fitted, drawn)
    content = None
    if found.comparison is not None:
        if found.comparison.better and found.comparison.beats_coin:
            content = _fitted(examples, fold % KEPT == 0, graded, pools, embedded[0])
        else:
            notes.append(
                "On questions apart the fitted model is not better than any mixture of the tiers and what is in use"
                " beyond chance: nothing was written."
            )
    return msgspec.structs.replace(found, judge=judge, notes=tuple(notes)), content


def _rule(settings: Settings, pools: Sequence[PoolSettings]) -> tuple[Rule, list[str]]:
    """Return the rule that tiers are chosen by, with costs from small to large, and what is to be said of it."""
    router = settings.router
    tiers = [msgspec.structs.replace(pool, tier=tier) for pool, tier in zip(pools, TIERS, strict=True)]
    found, costs = rates(msgspec.structs.replace(settings, pools=tiers))
    notes = [] if costs != relative(()) else ["The pools' costs do not rise: 7, 13 and 70 stand for them."]
    return Rule(costs, found, router.by_complexity, router.medium_from, router.large_from), notes


def _spent(graded: GradedAnswers, rule: Rule) -> Values:
    """Return what each answer cost, (questions, tiers)."""
    columns = [
        rate.input * graded.input_tokens[:, tier] + rate.output * graded.output_tokens[:, tier]
        for tier, rate in enumerate(rule.rates)
    ]
    return np.stack(columns, axis=1)


def _in_use(
    settings: Settings, examples: Examples, seen: Sequence[Features], embedding: str, rule: Rule
) -> tuple[str, Beliefs]:
    """Return what `auto` believes now, and a name for it."""
    none = "Complexity" if rule.by_complexity else "A mixture of the tiers, whatever is asked"
    found = calibration(settings)
    if found.model is None:
        return f"{none} ({found.why})", by_none(seen, rule)
    known = len(set(found.model.metadata.digests).intersection(examples.digests))
    if known:
        return f"{none} (in place of the model in use, which knows {known} of these questions)", by_none(seen, rule)
    metadata = found.model.metadata
    if metadata.embedding != embedding:
        without = np.zeros((len(examples), 0), np.float32)
        examples = msgspec.structs.replace(examples, embeddings=without)
    return f"The model of {metadata.trained_on}", by_model(found.model, seen, examples, rule)


def _fitted(
    examples: Examples, kept: NDArray[np.bool_], graded: GradedAnswers, pools: Sequence[PoolSettings], embedding: str
) -> bytes:
    """Fit the model that is installed. Args: kept: questions that go to its frozen suite."""
    return fit(
        examples.take(np.flatnonzero(~kept)),
        trained_on=f"answers of {', '.join(graded.models)}",
        embedding=embedding,
        models=tuple(pool.weights for pool in pools),
        kept=examples.take(np.flatnonzero(kept)),
    )
