"""Learners on made-up traffic: what they find, and what their regret is."""

from __future__ import annotations

import numpy as np
import pytest

from bench import learning
from bench.learning import (
    EXPLORE,
    LEARNERS,
    JudgedRows,
    RecordedTraffic,
    gains,
    linucb,
    regrets,
    run,
    sigmoids,
    weights,
)
from router.tier import NOMINAL, relative

COSTS = relative(NOMINAL)
CHARGED = 0.3 * np.array(COSTS)
NUMBER = 2000


@pytest.fixture(scope="module")
def traffic() -> RecordedTraffic:
    """Questions where one feature, of which the model knows nothing, says whether only the large tier is right."""
    generator = np.random.default_rng(0)
    inputs = generator.standard_normal((NUMBER, 5))
    odds = np.array([1.0, 1.0, 3.0]) - np.array([3.0, 3.0, 0.0]) * inputs[:, :1]
    right = (generator.random((NUMBER, 3)) < 1 / (1 + np.exp(-odds))).astype(float)
    return RecordedTraffic(inputs, np.tile([0.3, 0.4, 0.6], (NUMBER, 1)), right)


def everything(traffic: RecordedTraffic) -> JudgedRows:
    rows = np.repeat(np.arange(NUMBER), 3)
    tiers = np.tile(np.arange(3), NUMBER)
    return JudgedRows(rows, tiers, traffic.right[rows, tiers], np.full(len(rows), 1 / 3))


def test_weights_and_the_bandit_find_the_feature(traffic: RecordedTraffic) -> None:
    feedback = everything(traffic)
    for learner in (weights, linucb):
        found = learner(traffic, feedback)
        assert np.corrcoef(found[:, 2] - found[:, 0], traffic.inputs[:, 0])[0, 1] > 0.9
        assert found.mean(axis=0) == pytest.approx(traffic.right.mean(axis=0), abs=0.05)
    assert np.ptp(sigmoids(traffic, feedback), axis=0) == pytest.approx([0, 0, 0], abs=1e-6)


def test_without_feedback_every_learner_but_the_bandit_is_the_model(traffic: RecordedTraffic) -> None:
    none = JudgedRows(*(np.zeros(0, kind) for kind in (np.intp, np.intp, float, float)))
    for learner in (sigmoids, weights):
        assert learner(traffic, none) == pytest.approx(traffic.shipped, abs=1e-5)


def test_sigmoids_are_those_of_the_refit(traffic: RecordedTraffic) -> None:
    """They move beliefs towards what was seen."""
    before = np.abs(traffic.shipped - traffic.right.mean(axis=0)).max()
    after = np.abs(sigmoids(traffic, everything(traffic)) - traffic.right.mean(axis=0)).max()
    assert after < before / 2


def test_regret_is_beside_the_best_choice_of_each_request(traffic: RecordedTraffic) -> None:
    """A learner that knows all has some only where a tier is drawn."""
    regret = run(traffic, lambda traffic, feedback: traffic.right, CHARGED, 1.0, 0)
    assert (regret > -1e-9).all() and (regret > 1e-9).mean() < EXPLORE
    assert run(traffic, lambda traffic, feedback: traffic.shipped, CHARGED, 1.0, 0).mean() > 0.15


def test_the_table_has_every_learner(traffic: RecordedTraffic, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learning, "RUNS", 1)
    lines = regrets("made up", traffic, CHARGED)
    assert {line.learner for line in lines} > set(LEARNERS)
    by_name = {(line.learner, line.judged): line.regret[-1][0] for line in lines}
    assert by_name["weights", 1.0] < by_name["slopes and offsets, as `route refit`", 1.0]
    assert by_name["all outcomes of other questions, nothing drawn", 0.0] < by_name["weights", 1.0]


def test_the_estimate_of_the_gain_is_near_the_truth(traffic: RecordedTraffic) -> None:
    for line in gains("made up", traffic, 0.3, COSTS):
        assert line.estimate.low - 0.05 < line.truth < line.estimate.high + 0.05
