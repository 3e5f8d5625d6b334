"""What the log says another model would have gained, beside what it does gain; and tiers that change."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray

from router.off_policy import NEWEST, JudgedAnswer, drift, gain
from router.success import Basis, Prediction
from router.tier import NOMINAL, TIERS, Outlook, Terms, ValueSource, choose, relative
from tests.amounts import examples, some_of

TERMS = Terms(0.2, 0.2, relative(NOMINAL), explore=0.2)
Shares = NDArray[np.float64]


def routed(believed: Shares, true: Shares, terms: Terms = TERMS, seed: int = 0) -> list[JudgedAnswer]:
    """Requests that were routed by what was believed, and answered well as often as is true."""
    generator = np.random.default_rng(seed)
    found = []
    for said, chances in zip(believed.tolist(), true, strict=True):
        outlook = Outlook(ValueSource.LEARNT, 0.5, Prediction(tuple(said), Basis.FEATURES, 0.5))
        choice = choose(outlook, terms, draw=generator.random())
        good = bool(generator.random() < chances[TIERS.index(choice.tier)])
        found.append(JudgedAnswer(choice, tuple(said), good))
    return found


def beliefs(number: int, seed: int = 1) -> Shares:
    """Probabilities that rise with the tier, as those of a model do."""
    return np.sort(np.random.default_rng(seed).random((number, 3)), axis=1)


def utility(believed: Shares, true: Shares) -> Shares:
    """What choosing by beliefs is worth for each request, in truth."""
    costs = TERMS.price * np.array(TERMS.costs)
    return np.asarray((true - costs)[np.arange(len(true)), np.argmax(believed - costs, axis=1)])


@pytest.mark.parametrize("seed", some_of([(seed,) for seed in range(3)], 3))
def test_the_estimate_is_what_the_other_model_gains(seed: int) -> None:
    """Also where all that it believes is wrong."""
    old, true = beliefs(6000, 1), beliefs(6000, 2)
    answers = routed(old, true, seed=seed)
    for other in (true, beliefs(6000, 3), 1 - true):
        found, exact = gain(answers, other), float((utility(other, true) - utility(old, true)).mean())
        assert found is not None
        half = (found.high - found.low) / 2
        assert abs(found.value - exact) < 1.5 * half  # three standard errors
        assert half < 0.08
    found = gain(answers, true)
    assert found is not None and found.low > 0.0


def test_a_model_that_chooses_alike_gains_nothing() -> None:
    old = beliefs(50)
    found = gain(routed(old, old), np.minimum(old + 0.001, 1.0))
    assert found is not None and (found.value, found.low, found.high) == (0.0, 0.0, 0.0)


def test_nothing_follows_where_nothing_was_drawn() -> None:
    old = beliefs(50)
    assert gain(routed(old, old, msgspec.structs.replace(TERMS, explore=0.0)), 1 - old) is None


def test_tiers_that_stay_the_same_have_not_changed() -> None:
    """However kind those who judge are: they were so before."""
    false = 0
    for seed in range(examples(15)):
        old = beliefs(3000, seed)
        false += len(drift(routed(old, np.minimum(old + 0.2, 1.0), seed=seed)))
    assert false <= examples(15) // 40


def test_a_tier_that_gets_worse_is_noticed() -> None:
    old = beliefs(4000)
    true = old.copy()
    true[-1200:, 2] -= np.minimum(true[-1200:, 2], 0.4)
    found = drift(routed(old, true))
    assert [change.tier for change in found] == ["large"]
    assert found[0].now < found[0].before - 0.2


def test_few_answers_say_nothing() -> None:
    assert drift(routed(beliefs(NEWEST), 1 - beliefs(NEWEST))) == []
