"""The probability that an entry's answer fits."""

from __future__ import annotations

import math

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar

from cache.semantic.entry import Observation
from cache.semantic.model import (
    FEATURES,
    CorrectnessModel,
    InvalidModel,
    Offset,
    decode,
    features_of,
    offset_of,
    shipped,
)
from cache.semantic.profile import profile

MODEL = shipped()
observations = st.lists(st.builds(Observation, st.floats(-6, 6), st.booleans()), max_size=64)


@given(observations, st.floats(0.2, 2))
def test_an_offset_is_the_mode_of_its_posterior(seen: list[Observation], sigma: float) -> None:
    def loss(offset: float) -> float:
        logits = (item.logit + offset if item.correct else -item.logit - offset for item in seen)
        return offset**2 / (2 * sigma**2) + sum(float(np.logaddexp(0, -logit)) for logit in logits)

    found = offset_of(seen, sigma)
    best = minimize_scalar(loss, bounds=(-25, 25), method="bounded", options={"xatol": 1e-7})
    assert found.mean == pytest.approx(best.x, abs=1e-4)
    # The variance is the inverse curvature there, by finite differences.
    step = 1e-3
    curvature = (loss(best.x + step) - 2 * loss(best.x) + loss(best.x - step)) / step**2
    assert found.variance == pytest.approx(1 / curvature, rel=1e-2)


def test_without_checks_an_offset_is_the_prior() -> None:
    assert offset_of([], 0.5) == Offset(0.0, 0.25)


def features(similarity: float, support: int = 0) -> tuple[float, ...]:
    same = profile("How do I learn the guitar?")
    return features_of(same, same, similarity=similarity, support=support)


def test_judgement_is_the_logistic_of_the_standardised_features() -> None:
    x = (np.array(features(0.93)) - MODEL.means) / MODEL.scales
    judged = MODEL.judge(features(0.93))
    assert judged.logit == pytest.approx(MODEL.bias + x @ np.array(MODEL.weights))
    assert judged.probability == pytest.approx(1 / (1 + math.exp(-judged.logit)))
    extended = np.array([1.0, *x])
    deviation = math.sqrt(MODEL.sigma**2 + extended @ np.array(MODEL.covariance) @ extended)
    assert judged.lower == pytest.approx(1 / (1 + math.exp(-(judged.logit - MODEL.z * deviation))))


@given(st.floats(0.6, 1), st.floats(0.6, 1))
def test_more_similar_is_more_likely_right(one: float, other: float) -> None:
    low, high = sorted((one, other))
    assert MODEL.judge(features(low)).lower <= MODEL.judge(features(high)).lower


def test_right_checks_raise_the_bound_and_wrong_ones_lower_it() -> None:
    right = offset_of([Observation(1.0, True)] * 5, MODEL.sigma)
    wrong = offset_of([Observation(1.0, False)] * 5, MODEL.sigma)
    plain = MODEL.judge(features(0.9))
    assert MODEL.judge(features(0.9), wrong).lower < plain.lower < MODEL.judge(features(0.9), right).lower


@pytest.mark.parametrize(("lower", "band"), [(0.0, None), (0.49, None), (0.5, 0), (0.89, 0), (0.9, 1), (1.0, 1)])
def test_bands_are_classes_of_the_lower_bound(lower: float, band: int | None) -> None:
    model = msgspec.structs.replace(MODEL, bands=(0.5, 0.9), served_from=0.9)
    assert model.band(lower, 0.9) == band
    assert model.band(lower, 0.89) is None


def test_the_artefact_holds_numbers_only() -> None:
    """No text of the pairs: besides numbers the names of features and embedder and a digest."""
    fields = msgspec.to_builtins(MODEL)
    assert set(fields["features"]) == set(FEATURES)
    texts = [value for value in fields.values() if isinstance(value, str)]
    assert sorted(texts) == sorted([MODEL.embedder, MODEL.data])
    assert len(MODEL.data) == 64
    assert int(MODEL.data, 16) > 0


def changed(**change: object) -> bytes:
    return msgspec.json.encode(msgspec.to_builtins(MODEL) | change)


@pytest.mark.parametrize(
    ("artefact", "message"),
    [
        (b"", "cannot be read"),
        (b"[]", "cannot be read"),
        (changed(surprise=1), "cannot be read"),
        (changed(version=99), "another version"),
        (changed(features=["similarity"]), "another version"),
        (changed(weights=[1.0]), "another version"),
        (changed(scales=[0.0] * len(FEATURES)), "impossible"),
        (changed(sigma=0), "impossible"),
        (changed(bands=[]), "impossible"),
        (changed(bands=[0.9, 0.5]), "impossible"),
        (changed(covariance=[[1.0]] * (len(FEATURES) + 1)), "impossible"),
    ],
)
def test_a_bad_artefact_is_refused(artefact: bytes, message: str) -> None:
    with pytest.raises(InvalidModel, match=message):
        decode(artefact)


def test_a_model_survives_its_encoding() -> None:
    assert decode(msgspec.json.encode(MODEL)) == MODEL
    assert isinstance(MODEL, CorrectnessModel)
