"""Learns `router.success` from requests whose outcome at every tier is known. Only this needs scikit-learn.

Tiers share what they have learnt: the weights of a tier are common weights plus a difference that costs more to move
(a hierarchical prior, as in the multi-task learning of Evgeniou and Pontil, KDD 2004). What a larger tier gains is the
small difference of two noisy estimates, and this keeps it from being noise.
"""

from __future__ import annotations

from typing import Any

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
    """Of length 1; NaN in rows without one, such as those of texts too long for the embedder."""
    outcomes: Array
    """1 where a tier's answer was right; shape (requests, tiers)."""
    inputs: Array | None = None
    """Tokens of the prompt at each tier."""
    tokens: Array | None = None
    """Tokens of prompt and answer at each tier."""
    digests: tuple[str, ...] = ()
    """Digests of the requests, by which an evaluation knows what a model has seen."""

    def __len__(self) -> int:
        return len(self.vectors)

    @property
    def embedded(self) -> NDArray[np.bool_]:
        """Whether a row has an embedding."""
        if self.embeddings.shape[1] == 0:
            return np.zeros(len(self), np.bool_)
        return np.asarray(np.isfinite(self.embeddings).all(axis=1), np.bool_)

    def take(self, rows: NDArray[np.intp]) -> Examples:
        return Examples(
            self.vectors[rows],
            self.embeddings[rows],
            self.outcomes[rows],
            None if self.inputs is None else self.inputs[rows],
            None if self.tokens is None else self.tokens[rows],
            tuple(self.digests[row] for row in rows) if self.digests else (),
        )


def fit(
    examples: Examples, *, trained_on: str, embedding: str, models: tuple[str, ...] = (), kept: Examples | None = None
) -> bytes:
    """Fit a model and return its file.

    Args:
        trained_on: name of the requests, for people.
        embedding: name of the model that made their embeddings; empty if there are none.
        models: whose answers the outcomes are, see `Metadata`.
        kept: requests that nothing is learnt from, with tokens: the frozen suite that the model carries.
    """
    arrays = _models(examples)
    size, tiers = examples.outcomes.shape
    by_features, by_all = np.zeros((size, tiers), np.float32), np.zeros((size, tiers), np.float32)
    near = np.zeros(size, np.float32)
    for rest, fold in KFold(FOLDS, shuffle=True, random_state=0).split(np.arange(size)):
        by_features[fold], by_all[fold], near[fold] = _raw(_models(examples.take(rest)), examples.take(fold))
    arrays["feature_calibration"] = arrays["embedding_calibration"] = _lines(by_features, examples.outcomes)
    believed = calibrated(by_features, arrays["feature_calibration"])
    arrays["topic_limit"] = np.ones(1, np.float32)
    embedded = examples.embedded
    if embedded.any():
        arrays["embedding_calibration"] = _lines(by_all[embedded], examples.outcomes[embedded])
        believed[embedded] = calibrated(by_all[embedded], arrays["embedding_calibration"])
        arrays["topic_limit"] = np.array([1.0 - np.quantile(near[embedded], 1.0 - FAMILIAR)], np.float32)
    arrays["calibration"] = believed.astype(np.float16)
    arrays["shape_limit"] = np.array([np.quantile(_shape(arrays, examples.vectors), FAMILIAR)], np.float32)
    if examples.inputs is not None and examples.tokens is not None:
        arrays |= {
            "inputs": examples.inputs,
            "answers": np.asarray((examples.tokens - examples.inputs).mean(axis=0), np.float32),
        }
    if kept is not None:
        arrays |= _suite(arrays, kept)
    metadata = Metadata(
        format=FORMAT,
        trained_on=trained_on,
        requests=size,
        embedding=embedding,
        digests=examples.digests + (kept.digests if kept is not None else ()),
        models=models,
    )
    compact = {
        name: value.astype(np.uint8 if name.endswith("outcomes") else value.dtype) for name, value in arrays.items()
    }
    return write(compact, metadata)


def _suite(arrays: dict[str, Array], kept: Examples) -> dict[str, Array]:
    """Return what `router.refit` judges a corrected model by."""
    if kept.tokens is None:
        raise ValueError("the frozen suite needs tokens")
    center, components = (np.asarray(arrays[name], np.float32) for name in ("center", "components"))
    return {
        "suite_vectors": kept.vectors,
        "suite_projected": np.asarray((kept.embeddings - center) @ components.T, np.float32),
        "suite_outcomes": kept.outcomes.astype(np.float32),
        "suite_tokens": kept.tokens,
    }


def _models(examples: Examples) -> dict[str, Array]:
    arrays: dict[str, Array] = {
        "feature_mean": examples.vectors.mean(axis=0),
        "feature_scale": examples.vectors.std(axis=0) + 1e-3,
    }
    seen = standard(examples.vectors, arrays)
    arrays["lowest"], arrays["highest"] = np.quantile(seen, [RARE, 1 - RARE], axis=0)
    arrays["precision"] = LedoitWolf().fit(seen).precision_.astype(np.float32)
    arrays["feature_weights"], arrays["feature_bias"] = _linear(seen, examples.outcomes, FEATURE_STRENGTH)
    embedded = examples.embedded
    arrays["center"], arrays["components"] = _directions(examples.embeddings[embedded])
    center, components = (np.asarray(arrays[name], np.float32) for name in ("center", "components"))
    projected = (examples.embeddings[embedded] - center) @ components.T
    scale = projected.std(axis=0) + 1e-6 if len(projected) else np.ones(projected.shape[1])
    arrays["projected_scale"] = scale.astype(np.float32)
    both = np.hstack([seen[embedded], projected / arrays["projected_scale"]])
    if embedded.any():
        arrays["weights"], arrays["bias"] = _linear(both, examples.outcomes[embedded], EMBEDDING_STRENGTH)
    else:
        arrays["weights"], arrays["bias"] = arrays["feature_weights"], arrays["feature_bias"]
    # Lengths do not count for neighbours: a byte for each direction is enough.
    arrays["points"] = np.round(127 * unit(projected.astype(np.float32))).astype(np.int8)
    arrays["outcomes"] = examples.outcomes[embedded].astype(np.float32)
    return arrays


def _directions(embeddings: Array) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the middle of embeddings, and the directions in which they differ most, by rows.

    In half precision, as the file holds them, so that what is learnt from them fits.
    """
    count = min(COMPONENTS, len(embeddings) // 2, embeddings.shape[1])
    if count == 0:
        width = embeddings.shape[1]
        return np.zeros(width, np.float16), np.zeros((0, width), np.float16)
    pca = PCA(count, svd_solver="covariance_eigh").fit(embeddings)
    return pca.mean_.astype(np.float16), pca.components_.astype(np.float16)


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
    by_all, near = by_features.copy(), np.zeros(len(examples), np.float32)
    rows = np.flatnonzero(examples.embedded)
    if len(rows) and len(full["points"]):
        projected = np.asarray((examples.embeddings[rows] - full["center"]) @ full["components"].T, np.float32)
        both = np.hstack([seen[rows], projected / full["projected_scale"]])
        linear = sigmoid(both @ full["weights"].T + full["bias"])
        similar, near[rows] = neighbours(unit(full["points"]), full["outcomes"], unit(projected))
        by_all[rows] = np.mean([by_features[rows], linear, similar], axis=0)
    return by_features, by_all, near


def _lines(probabilities: Array, outcomes: Array) -> Array:
    """Slope and offset of each tier's sigmoid on the log-odds (Platt's scaling)."""
    odds = np.log(np.clip(probabilities, 1e-6, 1) / np.clip(1 - probabilities, 1e-6, 1))
    lines = []
    for tier in range(outcomes.shape[1]):
        right = outcomes[:, tier].sum()
        if right in (0, len(outcomes)):  # nothing to tell apart; half a question keeps the odds finite
            lines.append([0.0, np.log((right + 0.5) / (len(outcomes) - right + 0.5))])
            continue
        model = LogisticRegression(C=1e4).fit(odds[:, tier : tier + 1], outcomes[:, tier])
        lines.append([model.coef_[0, 0], model.intercept_[0]])
    return np.array(lines, np.float32)


def _shape(arrays: dict[str, Array], vectors: Array) -> Array:
    seen = standard(vectors, arrays)
    return np.asarray(np.einsum("ij,jk,ik->i", seen, arrays["precision"], seen))


def trained(examples: Examples) -> SuccessModel:
    """Fit a model for an evaluation."""
    return SuccessModel.read(fit(examples, trained_on="an evaluation", embedding="that of the examples"))
