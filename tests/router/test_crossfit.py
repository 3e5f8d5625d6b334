"""Folds, and beliefs by models that had not seen the questions."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.crossfit import Rule, by_model, by_none, features, folds, held_out, vectors
from router.evaluation import brier
from router.expense import flat
from router.fit import Examples, fit
from router.refit import judge, read_suite, refit
from router.success import SuccessModel, unit
from router.tier import ValueSource

COSTS = (0.1, 0.4, 1.0)
RULE = Rule(COSTS, flat(COSTS))
TEXTS = [f"What is {number} plus {number + 1}?" for number in range(60)] + [
    f"Explain step by step why the proof of lemma {number} holds, and compare both methods." for number in range(60)
]


def examples(embedded: bool = True) -> Examples:
    """Sums, which every tier answers right, and proofs, which mostly the large one does."""
    generator = np.random.default_rng(0)
    hard = np.array([text.startswith("Explain") for text in TEXTS])
    chance = np.where(hard[:, None], [0.05, 0.1, 0.9], [0.9, 0.95, 0.95])
    outcomes = (generator.random(chance.shape) < chance).astype(np.float32)
    embeddings = unit((generator.normal(size=(len(TEXTS), 8)) + 3 * hard[:, None]).astype(np.float32))
    embeddings[::7] = np.nan
    return Examples(
        vectors(features(TEXTS)),
        embeddings if embedded else np.zeros((len(TEXTS), 0), np.float32),
        outcomes,
        np.full(outcomes.shape, 20, np.float32),
        np.full(outcomes.shape, 100, np.float32),
        tuple(map(str, range(len(TEXTS)))),
    )


@given(st.lists(st.sampled_from("abc"), max_size=80), st.integers(2, 10), st.randoms())
def test_folds_are_balanced_by_kind_and_do_not_depend_on_the_order(
    kinds: list[str], count: int, random: object
) -> None:
    digests = [f"{number:04}" for number in range(len(kinds))]
    found = folds(kinds, digests, count)
    for kind in {*kinds}:
        sizes = np.bincount(found[[each == kind for each in kinds]], minlength=count)
        assert sizes.max() - sizes.min() <= 1
    sizes = np.bincount(found, minlength=count)
    assert sizes.max() - sizes.min() <= 1
    order = list(range(len(kinds)))
    random.shuffle(order)
    again = folds([kinds[row] for row in order], [digests[row] for row in order], count)
    assert (again == found[order]).all()


@pytest.mark.parametrize("embedded", [True, False])
def test_what_a_model_has_not_seen_it_judges_well(embedded: bool) -> None:
    """With embeddings of most questions, and with none; better than the shares of right answers alone."""
    known = examples(embedded)
    seen = features(TEXTS)
    found = held_out(known, seen, folds(["all"] * len(TEXTS), known.digests, 4), RULE)
    assert found.familiar > 0.8
    predictions = [each.prediction.probabilities if each.prediction else None for each in found.outlooks]
    believed = np.array([each or (0.5, 0.5, 0.5) for each in predictions])
    outcomes = known.outcomes.astype(float)
    assert brier(believed, outcomes)[0] < 0.7 * brier(np.tile(outcomes.mean(axis=0), (len(outcomes), 1)), outcomes)[0]


def test_no_question_is_judged_by_a_model_that_has_seen_it() -> None:
    """Outcomes that are turned round in one fold change nothing of what is believed of that fold."""
    known, seen = examples(), features(TEXTS)
    fold = folds(["all"] * len(TEXTS), known.digests, 4)
    outcomes = known.outcomes.copy()
    outcomes[fold == 3] = 1 - outcomes[fold == 3]
    before, after = (
        held_out(each, seen, fold, RULE) for each in (known, msgspec.structs.replace(known, outcomes=outcomes))
    )
    same = [one == other for one, other in zip(before.outlooks, after.outlooks, strict=True)]
    assert all(same[row] for row in np.flatnonzero(fold == 3)) and not all(same)


def test_a_model_without_embeddings_has_none_and_is_a_file_like_others() -> None:
    content = fit(examples(embedded=False), trained_on="made up", embedding="")
    model = SuccessModel.read(content)
    assert model.metadata.embedding == "" and model.arrays["components"].shape == (0, 0)
    found = by_model(model, features(TEXTS), examples(embedded=False), RULE)
    # Of what it has learnt from, the strangest one in a hundred or so is not familiar: which one, rounding decides.
    learnt = [each for each in found.outlooks if each.source is ValueSource.LEARNT]
    assert len(learnt) > 0.9 * len(found.outlooks)
    # All prompts and answers are equally long.
    assert learnt[0].costs == pytest.approx(COSTS)
    assert content == fit(examples(embedded=False), trained_on="made up", embedding="")


def test_a_tier_that_is_always_right_can_be_fitted() -> None:
    known = examples()
    outcomes = known.outcomes.copy()
    outcomes[:, 0], outcomes[:, 2] = 0, 1
    model = SuccessModel.read(
        fit(msgspec.structs.replace(known, outcomes=outcomes), trained_on="made up", embedding="x")
    )
    small, _, large = model.calibration.mean(axis=0)
    assert small < 0.02 and large > 0.98


@pytest.mark.parametrize("by_complexity", [False, True])
def test_without_a_model_a_mixture_or_complexity_decides(by_complexity: bool) -> None:
    found = by_none(features(TEXTS), msgspec.structs.replace(RULE, by_complexity=by_complexity))
    assert {each.source for each in found.outlooks} == {
        ValueSource.COMPLEXITY if by_complexity else ValueSource.MIXTURE
    }
    assert found.familiar == 0


@pytest.mark.parametrize("embedded", [True, False])
def test_a_refit_is_judged_on_questions_that_were_kept_apart(embedded: bool) -> None:
    known = examples(embedded)
    kept = np.arange(len(TEXTS)) % 3 == 0
    rest, apart = known.take(np.flatnonzero(~kept)), known.take(np.flatnonzero(kept))
    model = SuccessModel.read(fit(rest, trained_on="made up", embedding="x", models=("a", "b", "c"), kept=apart))
    suite = read_suite(model)
    assert (suite.outcomes == apart.outcomes).all() and (suite.tokens == 100).all()
    assert model.metadata.models == ("a", "b", "c") and {*model.metadata.digests} == {*known.digests}
    outcomes = suite.outcomes
    believed = suite.believed(model)
    assert brier(believed, outcomes)[0] < 0.7 * brier(np.tile(outcomes.mean(axis=0), (len(outcomes), 1)), outcomes)[0]
    same = SuccessModel.read(refit(model, []))
    assert not judge(same, model, suite, (0.1, 0.2, 1.0)).worse
    arrays = dict(model.arrays)
    for name in ("feature_calibration", "embedding_calibration"):
        arrays[name] = -arrays[name]
    assert judge(SuccessModel(arrays, model.metadata, "worse"), model, suite, (0.1, 0.2, 1.0)).worse
