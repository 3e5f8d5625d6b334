"""Correcting a model by opinions, and the gate that it has to pass."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import msgspec
import numpy as np
import pytest

from router.refit import Opinion, Preference, judge, moves, read_suite, refit
from router.success import SuccessModel, shipped
from router.tier import NOMINAL, TIERS, relative

Truth = Callable[[np.ndarray], np.ndarray]
PRICES = relative(NOMINAL)


def opinions(truth: Truth, number: int = 1500, seed: int = 0) -> list[Opinion]:
    """About answers of the suite's questions, each of which is good as often as `truth` of its probability says."""
    generator = np.random.default_rng(seed)
    suite = read_suite(shipped())
    believed = shipped().estimate(suite.vectors, suite.projected)[0]
    rows, tiers = generator.integers(0, len(believed), number), generator.integers(0, 3, number)
    said = believed[rows, tiers].astype(float)
    good = generator.random(number) < truth(said)
    return [Opinion(TIERS[t], p, 1 / 3, bool(g)) for t, p, g in zip(tiers, said, good, strict=True)]


@cache
def corrected(truth: Truth) -> SuccessModel:
    return SuccessModel.read(refit(shipped(), opinions(truth)))


def test_opinions_that_agree_with_the_model_pass_and_change_little() -> None:
    model = corrected(lambda said: said)
    verdict = judge(model, shipped(), read_suite(model), PRICES)
    assert not verdict.worse
    assert model.arrays["embedding_calibration"] == pytest.approx(shipped().arrays["embedding_calibration"], abs=0.3)
    assert model.version != shipped().version and model.metadata.corrected_by == 1500


def wrong(said: np.ndarray) -> np.ndarray:
    return np.asarray(1 - said)


@pytest.mark.parametrize("truth", [wrong, lambda said: np.full_like(said, 0.95)])
def test_opinions_that_contradict_the_frozen_suite_are_refused(truth: Truth) -> None:
    model = corrected(truth)
    assert judge(model, shipped(), read_suite(model), PRICES).worse


def test_the_correction_finds_what_is_true() -> None:
    """Where answers are better than the model says, it says so afterwards, nearly enough."""
    before = np.array([0.1, 0.3, 0.5])

    def truth(said: np.ndarray) -> np.ndarray:
        odds = np.log(said / (1 - said)) + 0.7
        return 1 / (1 + np.exp(-odds))

    model = SuccessModel.read(refit(shipped(), opinions(truth, 6000)))
    old, new = (each.arrays["embedding_calibration"] for each in (shipped(), model))
    assert new[:, 1] - old[:, 1] == pytest.approx(np.full(3, 0.7), abs=0.25)
    assert (truth(before) > before).all()


@cache
def preferences(gain: float, number: int = 3000) -> list[Preference]:
    """Of questions of the suite, where only one of two tiers answers well: which it is. The large tier's odds are those
    that the model gives, times e to the power of `gain`."""
    generator = np.random.default_rng(1)
    suite = read_suite(shipped())
    believed = shipped().estimate(suite.vectors, suite.projected)[0].astype(float)
    odds = believed / (1 - believed) * np.exp([0.0, 0.0, gain])
    true = odds / (1 + odds)
    found = []
    while len(found) < number:
        row, (first, second) = generator.integers(len(true)), generator.choice(3, 2, replace=False)
        good = generator.random(3) < true[row]
        if good[first] and not good[second]:
            sides = (float(believed[row, first]), float(believed[row, second]))
            found.append(
                Preference(better=TIERS[first], worse=TIERS[second], probabilities=sides, propensity=float(1 / 3))
            )
    return found


def test_preferences_move_both_sides() -> None:
    """The large tier is better than the model says beside the others, so that it rises and they fall."""
    model = SuccessModel.read(refit(shipped(), [], preferences(0.7)))
    moved = model.arrays["embedding_calibration"][:, 1] - shipped().arrays["embedding_calibration"][:, 1]
    assert moved[2] - moved[:2] == pytest.approx([0.7, 0.7], abs=0.25)
    assert moved[2] > 0 > moved[:2].max()
    assert model.metadata.corrected_by == 3000


def test_a_preference_of_less_weight_moves_less() -> None:
    """A tenth of the weight is as much as a tenth of the preferences; none is as if nobody had said anything."""

    def offsets(weight: float, number: int = 3000) -> np.ndarray:
        said = [msgspec.structs.replace(each, weight=weight) for each in preferences(0.7)[:number]]
        return moves([], said)[:, 1]

    assert np.abs(offsets(0.1)).max() < np.abs(offsets(1.0)).max()
    assert offsets(0.1) == pytest.approx(offsets(1.0, 300), abs=0.15)
    assert offsets(0.0) == pytest.approx(np.zeros(3), abs=1e-9)


def test_models_are_compared_at_the_prices_of_the_pools() -> None:
    """Where the large tier costs hardly more, it matters less which questions go there."""
    model = corrected(wrong)
    dear, cheap = (judge(model, shipped(), read_suite(model), prices) for prices in (PRICES, (0.9, 0.95, 1.0)))
    assert dear.brier == cheap.brier
    assert dear.area != cheap.area


def test_preferences_that_agree_with_the_model_change_little() -> None:
    model = SuccessModel.read(refit(shipped(), [], preferences(0.0)))
    assert model.arrays["embedding_calibration"] == pytest.approx(shipped().arrays["embedding_calibration"], abs=0.3)
    assert not judge(model, shipped(), read_suite(model), PRICES).worse


def test_without_opinions_nothing_changes() -> None:
    model = SuccessModel.read(refit(shipped(), []))
    for name, array in shipped().arrays.items():
        np.testing.assert_allclose(model.arrays[name], array, rtol=0, atol=1e-3, err_msg=name)


def test_a_suite_of_another_model_is_refused() -> None:
    arrays = dict(shipped().arrays)
    arrays["center"] = arrays["center"] + 1
    other = SuccessModel(arrays, shipped().metadata, "other")
    with pytest.raises(ValueError, match="another basis"):
        read_suite(other)
