"""How likely each tier is to answer well, learnt from requests whose outcomes are known.

Three estimates are averaged: a linear model of what the request shows (`router.features`), a linear model of that and
of its sentence embedding, and the outcomes of the requests most like it. Without an embedding there is the first alone.
A sigmoid for each tier, fitted on questions that the estimates had not seen, turns the average into a probability; a
larger tier is never believed to be worse than a smaller one.

A prompt unlike those that were learnt from has no probability here, only a reason why not. The model is one safetensors
file, made by `make router-model`; nothing but numpy is needed to apply it.
"""

from __future__ import annotations

import enum
import hashlib
import math
from collections.abc import Mapping
from functools import cache
from operator import attrgetter
from pathlib import Path

import msgspec
import numpy as np
from msgspec import Struct
from numpy.typing import NDArray
from safetensors.numpy import load, save

from router.features import Features

FORMAT = "roundhouse-router-1"
_METADATA = "roundhouse"
MODEL = Path(__file__).parent / "success.safetensors"

COUNTS = (
    *("words", "lines", "questions", "asks", "reasons", "procedure", "produces", "constraints", "parts", "numbers"),
    *("operators", "code", "terms", "characters", "first_line", "middle_line"),
)
SHARES = ("digits", "symbols", "signs", "capitals", "numeric_lines", "distinct", "word_length")
"""Fields of `Features` that are read as they are; counts are read as logarithms. The learning set has no history."""

_READ = attrgetter(*COUNTS, *SHARES)
_ODDS = math.log((1 - 1e-6) / 1e-6)
"""Bound on log-odds, either way."""

Array = NDArray[np.float32]


class Basis(enum.StrEnum):
    """The inputs that probabilities are based on."""

    EMBEDDING = "embedding"
    """The features, the embedding and the outcomes of similar requests."""
    FEATURES = "features"
    """The features alone, because there is no embedding."""


class Prediction(Struct, frozen=True):
    """Probability that each tier answers well, small to large, or why there is none."""

    probabilities: tuple[float, float, float] | None
    basis: Basis
    strangeness: float
    """Distance from the learning set; up to 1 is familiar."""
    similarity: float | None = None
    """Mean cosine with the most similar requests of the learning set, after projection; None without an embedding."""


class Metadata(Struct, frozen=True):
    """What a model file says about itself."""

    format: str
    trained_on: str
    requests: int
    embedding: str
    """Name of the model that made the embeddings; empty if the model knows features only."""
    digests: tuple[str, ...] = ()
    """Digests of the requests, if it is known of which."""
    models: tuple[str, ...] = ()
    """Models whose answers it was learnt from, small to large, as `PoolSettings.weights` names them."""
    corrected_by: int = 0
    """Number of opinions by which the last refit has corrected it."""


class SuccessModel:
    """Applies the arrays of one model file. See `router.fit` for how they are made."""

    def __init__(self, arrays: Mapping[str, NDArray[np.generic]], metadata: Metadata, version: str) -> None:
        self.version = version
        """Digest of the file."""
        self.metadata = metadata
        self.types = {name: value.dtype for name, value in arrays.items()}
        """Types of the arrays in the file."""
        self.arrays = {name: np.asarray(value, dtype=np.float32) for name, value in arrays.items()}
        self._points = unit(self.arrays["points"])
        self._by_features = FeatureModel(self.arrays)

    @classmethod
    def read(cls, content: bytes) -> SuccessModel:
        """Read a model from a file's content.

        Raises:
            ValueError: it is no such file, or of another format.
        """
        try:
            size = int.from_bytes(content[:8], "little")
            header = msgspec.json.decode(content[8 : 8 + size])
            metadata = msgspec.json.decode(header["__metadata__"][_METADATA], type=Metadata)
            arrays = load(content)
        except Exception as error:
            raise ValueError(f"no router model: {error}") from error
        if metadata.format != FORMAT:
            raise ValueError(f"a router model of the format {metadata.format!r}; this release reads {FORMAT!r}")
        return cls(arrays, metadata, hashlib.blake2b(content, digest_size=6).hexdigest())

    @property
    def basis(self) -> str:
        """Digest of the projection of embeddings."""
        digest = hashlib.blake2b(digest_size=6)
        for name in ("center", "components"):
            digest.update(np.ascontiguousarray(self.arrays[name]).tobytes())
        return digest.hexdigest()

    @property
    def calibration(self) -> NDArray[np.float64]:
        """Probabilities of requests that no estimate had seen, (requests, tiers), as a sample of typical traffic."""
        return self.arrays["calibration"].astype(np.float64)

    @property
    def tokens(self) -> tuple[Array, Array] | None:
        """Tokens of the prompts of `calibration` at each tier, and the mean tokens of an answer; None in a file without
        them."""
        if "inputs" not in self.arrays:
            return None
        return self.arrays["inputs"], self.arrays["answers"]

    def predict(self, features: Features, embedding: Array | None = None) -> Prediction:
        """Args: embedding: of the newest user message, of length 1, by the model that `metadata` names."""
        if embedding is not None:
            return self.predict_all(vector(features)[None], embedding[None])[0]
        probabilities, strangeness = self._by_features.judge(features)
        return Prediction(probabilities if strangeness <= 1.0 else None, Basis.FEATURES, strangeness)

    def predict_all(self, vectors: Array, embeddings: Array | None) -> list[Prediction]:
        """Predictions for rows of features and, if there are any, of embeddings."""
        probabilities, strangeness, similarity = self.estimate(vectors, self.project(embeddings))
        basis = Basis.FEATURES if embeddings is None else Basis.EMBEDDING
        return [
            Prediction(
                probabilities=(float(row[0]), float(row[1]), float(row[2])) if strange <= 1.0 else None,
                basis=basis,
                strangeness=float(strange),
                similarity=None if similarity is None else float(similarity[number]),
            )
            for number, (row, strange) in enumerate(zip(probabilities, strangeness, strict=True))
        ]

    def project(self, embeddings: Array | None) -> Array | None:
        """Project embeddings to the few directions in which those of the learning set differ most."""
        arrays = self.arrays
        return None if embeddings is None else np.asarray((embeddings - arrays["center"]) @ arrays["components"].T)

    def estimate(self, vectors: Array, projected: Array | None) -> tuple[Array, Array, Array | None]:
        """Return probabilities whether familiar or not, strangeness, and similarity; all by rows."""
        arrays = self.arrays
        seen = standard(vectors, arrays)
        shape = np.maximum(
            np.einsum("ij,jk,ik->i", seen, arrays["precision"], seen) / arrays["shape_limit"],
            # Outside what was seen of a single feature: such as one line, where all had several.
            np.max(np.maximum(arrays["lowest"] - seen, seen - arrays["highest"]), axis=1) / MARGIN,
        )
        estimates = [sigmoid(seen @ arrays["feature_weights"].T + arrays["feature_bias"])]
        if projected is None:
            return calibrated(estimates[0], arrays["feature_calibration"]), shape, None
        both = np.hstack([seen, projected / arrays["projected_scale"]])
        estimates.append(sigmoid(both @ arrays["weights"].T + arrays["bias"]))
        similar, near = neighbours(self._points, arrays["outcomes"], unit(projected))
        estimates.append(similar)
        strangeness = np.maximum(shape, (1.0 - near) / arrays["topic_limit"])
        mean = np.mean(estimates, axis=0)
        return calibrated(mean, arrays["embedding_calibration"]), strangeness, near


class FeatureModel:
    """The part of a model that needs no embedding, for one request: the same as `estimate`, in a quarter of its time.

    Every turn that leaves the tier open is judged by it, so it is made of few operations on whole arrays.
    """

    def __init__(self, arrays: Mapping[str, Array]) -> None:
        def exact(name: str) -> NDArray[np.float64]:
            return arrays[name].astype(np.float64)

        self._mean, self._scale = exact("feature_mean"), exact("feature_scale")
        self._lowest, self._highest = exact("lowest"), exact("highest")
        # One product for both the distance from the middle of what was learnt from and the log-odds.
        self._rows = np.vstack([exact("precision") / exact("shape_limit"), exact("feature_weights")])
        self._tiers = [
            (bias, slope, offset)
            for bias, (slope, offset) in zip(
                exact("feature_bias").tolist(), exact("feature_calibration").tolist(), strict=True
            )
        ]

    def judge(self, features: Features) -> tuple[tuple[float, float, float], float]:
        """Return probabilities whether familiar or not, and strangeness."""
        read = np.array(_READ(features), dtype=np.float64)
        np.log1p(read[: len(COUNTS)], out=read[: len(COUNTS)])
        read -= self._mean
        read /= self._scale
        np.minimum(read, FAR, out=read)
        np.maximum(read, -FAR, out=read)
        product = self._rows @ read
        beyond = np.maximum(self._lowest - read, read - self._highest).max() / MARGIN
        strangeness = max(float(product[: len(read)] @ read), float(beyond))
        believed, least = [], 0.0
        for odds, (bias, slope, offset) in zip(product[len(read) :].tolist(), self._tiers, strict=True):
            inner = min(max(odds + bias, -_ODDS), _ODDS)
            least = max(least, 1.0 / (1.0 + math.exp(-min(max(slope * inner + offset, -30.0), 30.0))))
            believed.append(least)
        small, medium, large = believed
        return (small, medium, large), strangeness


@cache
def shipped() -> SuccessModel:
    """The model that comes with this release."""
    return SuccessModel.read(MODEL.read_bytes())


def write(arrays: Mapping[str, NDArray[np.generic]], metadata: Metadata) -> bytes:
    """Write a model file; the same model always gives the same bytes."""
    # safetensors writes the bytes as they lie.
    rows = {name: np.ascontiguousarray(value) for name, value in arrays.items()}
    # Of several texts it would keep no order, and the file would not always be the same.
    return bytes(save(rows, {_METADATA: msgspec.json.encode(metadata).decode()}))


def vector(features: Features) -> Array:
    """Return the features of a request as the model's input."""
    read = np.array(_READ(features), dtype=np.float32)
    read[: len(COUNTS)] = np.log1p(read[: len(COUNTS)])
    return read


def standard(vectors: Array, arrays: Mapping[str, Array]) -> Array:
    """Scale vectors by their spread; beyond a bound they are cut off."""
    scaled = (vectors - arrays["feature_mean"]) / arrays["feature_scale"]
    return np.asarray(np.clip(scaled, -FAR, FAR))


FAR = 8.0
MARGIN = 0.25
"""Standard deviations that a feature may lie outside what was seen of it."""
NEIGHBOURS = 100
TEMPERATURE = 0.2
"""Differences of cosine over which a neighbour's weight falls to 1/e."""
CLOSEST = 10
"""Neighbours whose mean cosine is the similarity."""


def neighbours(points: Array, outcomes: Array, queries: Array) -> tuple[Array, Array]:
    """Return mean outcomes of the requests most like each query, weighted by similarity, and the similarity of the
    nearest.

    Args:
        points, queries: of length 1, by rows.
    """
    cosine = queries @ points.T
    count = min(NEIGHBOURS, len(points))
    nearest = np.argpartition(-cosine, count - 1, axis=1)[:, :count]
    near = -np.sort(-np.take_along_axis(cosine, nearest, 1), axis=1)
    found = np.take_along_axis(cosine, nearest, 1)
    weight = np.exp((found - near[:, :1]) / TEMPERATURE)
    mean = (weight[:, :, None] * outcomes[nearest]).sum(axis=1) / weight.sum(axis=1, keepdims=True)
    return mean, near[:, :CLOSEST].mean(axis=1)


def calibrated(probabilities: Array, lines: Array) -> Array:
    """Apply each tier's sigmoid to the log-odds, (slope, offset) by rows of `lines`; then make the result monotone over
    tiers."""
    odds = np.log(np.clip(probabilities, 1e-6, 1 - 1e-6) / np.clip(1 - probabilities, 1e-6, 1))
    return np.maximum.accumulate(sigmoid(odds * lines[:, 0] + lines[:, 1]), axis=1)


def sigmoid(x: Array) -> Array:
    return np.asarray(1.0 / (1.0 + np.exp(-np.clip(x, -30, 30))), dtype=np.float32)


def unit(rows: Array) -> Array:
    return np.asarray(rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-9), dtype=np.float32)
