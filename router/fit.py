"""Learns `router.success` from requests whose outcome at every tier is known. Only this needs scikit-learn.

Tiers share what they have learnt: the weights of a tier are common weights plus a difference that costs more to move
(a hierarchical prior, as in the multi-task learning of Evgeniou and Pontil, KDD 2004). What a larger tier gains is the
small difference of two noisy estimates, and this keeps it from being noise.
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray
from sklearn.covariance import LedoitWolf
from sklearn.decomposition import PCA
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import KFold

from router.success import (
    FORMAT,
    Array,
    Metadata,
    SuccessModel,
    calibrated,
    neighbours,
    sigmoid,
    standard,
    unit,
    write,
)

COMPONENTS = 64
DIFFERENCE = 0.3
"""How far a tier's weights may leave the common ones: 0 not at all, 1 as far as these move."""
FEATURE_STRENGTH, EMBEDDING_STRENGTH = 0.1, 0.003
"""Inverse regularisation of the linear model without and with the embedding."""
FOLDS = 4
RARE = 0.001
"""Share of the learning set that may lie beyond either bound of a feature."""
FAMILIAR = 0.99
"""Share of the learning set that counts as familiar, by shape and by topic."""


class Examples(Struct, frozen=True):
    """Requests with known outcomes, one per row."""

    vectors: Array
    """Feature vectors, as `router.success.vector` makes them."""
    embeddings: Array
    outcomes: Array
    """1 where a tier's answer was right; shape (requests, tiers)."""

    def __len__(self) -> int:
        return len(self.vectors)

    def take(self, rows: NDArray[np.intp]) -> Examples:
        return Examples(self.vectors[rows], self.embeddings[rows], self.outcomes[rows])


def fit(examples: Examples, *, trained_on: str, embedding: str) -> bytes:
    """Fit a model and return its file.

    Args:
        trained_on: name of the requests, for people.
        embedding: name of the model that made their embeddings.
    """
    arrays = _models(examples)
    size, tiers = examples.outcomes.shape
    by_features, by_all = np.zeros((size, tiers), np.float32), np.zeros((size, tiers), np.float32)
    near = np.zeros(size, np.float32)
    for rest, fold in KFold(FOLDS, shuffle=True, random_state=0).split(np.arange(size)):
        by_features[fold], by_all[fold], near[fold] = _raw(_models(examples.take(rest)), examples.take(fold))
    arrays["feature_calibration"] = _lines(by_features, examples.outcomes)
    arrays["embedding_calibration"] = _lines(by_all, examples.outcomes)
    arrays["calibration"] = calibrated(by_all, arrays["embedding_calibration"]).astype(np.float16)
    arrays["shape_limit"] = np.array([np.quantile(_shape(arrays, examples.vectors), FAMILIAR)], np.float32)
    arrays["topic_limit"] = np.array([1.0 - np.quantile(near, 1.0 - FAMILIAR)], np.float32)
    metadata = Metadata(format=FORMAT, trained_on=trained_on, requests=size, embedding=embedding)
    compact = {name: value.astype(np.uint8 if name == "outcomes" else value.dtype) for name, value in arrays.items()}
    return write(compact, metadata)


def _models(examples: Examples) -> dict[str, Array]:
    arrays: dict[str, Array] = {
        "feature_mean": examples.vectors.mean(axis=0),
        "feature_scale": examples.vectors.std(axis=0) + 1e-3,
    }
    seen = standard(examples.vectors, arrays)
    arrays["lowest"], arrays["highest"] = np.quantile(seen, [RARE, 1 - RARE], axis=0)
    arrays["precision"] = LedoitWolf().fit(seen).precision_.astype(np.float32)
    arrays["feature_weights"], arrays["feature_bias"] = _linear(seen, examples.outcomes, FEATURE_STRENGTH)
    count = min(COMPONENTS, len(examples) // 2, examples.embeddings.shape[1])
    pca = PCA(count, svd_solver="covariance_eigh").fit(examples.embeddings)
    # In half precision from here on, so that what is learnt fits what the file holds.
    center, components = pca.mean_.astype(np.float16), pca.components_.astype(np.float16)
    projected = (examples.embeddings - center.astype(np.float32)) @ components.T.astype(np.float32)
    arrays |= {"center": center, "components": components, "projected_scale": projected.std(axis=0) + 1e-6}
    both = np.hstack([seen, projected / arrays["projected_scale"]])
    arrays["weights"], arrays["bias"] = _linear(both, examples.outcomes, EMBEDDING_STRENGTH)
    # Lengths do not count for neighbours: a byte for each direction is enough.
    arrays["points"] = np.round(127 * unit(projected.astype(np.float32))).astype(np.int8)
    arrays["outcomes"] = examples.outcomes.astype(np.float32)
    return arrays


def _linear(inputs: Array, outcomes: Array, strength: float) -> tuple[Array, Array]:
    """Weights and offsets by tier."""
    size, tiers = outcomes.shape
    width = inputs.shape[1]
    design = np.zeros((tiers * size, width + tiers + tiers * width), np.float32)
    for tier in range(tiers):
        rows = slice(tier * size, (tier + 1) * size)
        design[rows, :width] = inputs
        design[rows, width + tier] = 3.0  # an offset costs little
        start = width + tiers + tier * width
        design[rows, start : start + width] = DIFFERENCE * inputs
    model = LogisticRegression(C=strength, solver="newton-cholesky", max_iter=100)
    model.fit(design, outcomes.T.reshape(-1))
    learnt = model.coef_[0]
    differences = learnt[width + tiers :].reshape(tiers, width)
    weights = learnt[:width] + DIFFERENCE * differences
    bias = 3.0 * learnt[width : width + tiers] + model.intercept_[0]
    return weights.astype(np.float32), bias.astype(np.float32)


def _raw(arrays: dict[str, Array], examples: Examples) -> tuple[Array, Array, Array]:
    """What `SuccessModel.estimate` averages, before calibration: by features alone, by everything; and similarity."""
    full = {name: np.asarray(value, np.float32) for name, value in arrays.items()}
    seen = standard(examples.vectors, full)
    by_features = sigmoid(seen @ full["feature_weights"].T + full["feature_bias"])
    projected = np.asarray((examples.embeddings - full["center"]) @ full["components"].T, np.float32)
    both = np.hstack([seen, projected / full["projected_scale"]])
    linear = sigmoid(both @ full["weights"].T + full["bias"])
    similar, near = neighbours(unit(full["points"]), full["outcomes"], unit(projected))
    return by_features, np.mean([by_features, linear, similar], axis=0), near


def _lines(probabilities: Array, outcomes: Array) -> Array:
    """Slope and offset of each tier's sigmoid on the log-odds (Platt's scaling)."""
    odds = np.log(np.clip(probabilities, 1e-6, 1) / np.clip(1 - probabilities, 1e-6, 1))
    lines = []
    for tier in range(outcomes.shape[1]):
        model = LogisticRegression(C=1e4).fit(odds[:, tier : tier + 1], outcomes[:, tier])
        lines.append([model.coef_[0, 0], model.intercept_[0]])
    return np.array(lines, np.float32)


def _shape(arrays: dict[str, Array], vectors: Array) -> Array:
    seen = standard(vectors, arrays)
    return np.asarray(np.einsum("ij,jk,ik->i", seen, arrays["precision"], seen))


def trained(examples: Examples) -> SuccessModel:
    """Fit a model for an evaluation."""
    return SuccessModel.read(fit(examples, trained_on="an evaluation", embedding="that of the examples"))
