"""Estimates how likely an entry's answer fits a question: one calibrated logistic model, and an offset for each entry.

The pooled weights come from labelled pairs (`make cache-model`) and are shipped as JSON. What an entry's own checks say
enters as an offset u ~ N(0, sigma^2), found by Laplace's approximation, so that a new entry is judged by what holds for
all and an old one also by its own record. Pure learning per entry (vCache, arXiv 2502.03771) needs many observations of
each before it serves anything; most entries never see so many.
"""

from __future__ import annotations

import hashlib
import math
from bisect import bisect_right
from collections.abc import Sequence
from importlib import resources

import msgspec
from msgspec import Struct

from cache.semantic.entry import Observation
from cache.semantic.profile import Profile

VERSION = 2
"""Of the features below; an artefact of another version is refused."""

FEATURES = (
    "similarity",
    "support",
    "overlap",
    "same_words",
)


class InvalidModel(ValueError):
    """A model file cannot be used."""


class Offset(Struct, frozen=True, array_like=True):
    """What an answer's own checks add to the pooled logit; kept with the answer and renewed with each check."""

    mean: float
    variance: float


class Judgement(Struct, frozen=True):
    """The model's judgement of a question and an entry."""

    logit: float
    """Logit of the pooled model alone; kept with the observation if the pair is checked."""
    probability: float
    """Probability that the entry's answer fits, with the entry's offset."""
    lower: float
    """Lower credible bound of the probability."""


class CorrectnessModel(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A fitted model, as its JSON file holds it."""

    version: int
    embedder: str
    """Name of the embedding model whose similarities the model was fitted on."""
    features: tuple[str, ...]
    means: tuple[float, ...]
    scales: tuple[float, ...]
    bias: float
    weights: tuple[float, ...]
    """Weights of the standardised features."""
    covariance: tuple[tuple[float, ...], ...]
    """Covariance of bias and weights."""
    sigma: float
    """Standard deviation of an entry's offset, in logits."""
    z: float
    """Standard deviations below the mean at which the lower credible bound lies."""
    floor: float
    """Least similarity of a candidate."""
    served_from: float
    """Least similarity of a candidate whose answer may be served."""
    bands: tuple[float, ...]
    """Lower credible bounds, rising, from which on answers may be served: classes whose share of wrong ones is measured
    apart."""
    pairs: int
    """Number of labelled pairs that the model was fitted on."""
    data: str
    """SHA-256 of the file with the labelled pairs."""

    @property
    def digest(self) -> str:
        """Digest of everything in it: comparisons by the bands of one model say nothing of another's."""
        return hashlib.blake2b(msgspec.json.encode(self), digest_size=6).hexdigest()

    def band(self, lower: float, similarity: float) -> int | None:
        """Return the number of the band of an answer with this lower credible bound and similarity; None if it may not
        be served."""
        place = bisect_right(self.bands, lower)
        return place - 1 if place and similarity >= self.served_from else None

    def judge(self, features: Sequence[float], offset: Offset | None = None) -> Judgement:
        """Judge a candidate with these features (`features_of`) and this offset of its answer."""
        x = [1.0]
        x += ((value - mean) / scale for value, mean, scale in zip(features, self.means, self.scales, strict=True))
        logit = self.bias + sum(value * weight for value, weight in zip(x[1:], self.weights, strict=True))
        mean, variance = (offset.mean, offset.variance) if offset is not None else (0.0, self.sigma**2)
        for left, row in zip(x, self.covariance, strict=True):
            variance += left * sum(right * value for right, value in zip(x, row, strict=True))
        mean += logit
        return Judgement(logit, _sigmoid(mean), _sigmoid(mean - self.z * math.sqrt(variance)))


def features_of(question: Profile, entry: Profile, *, similarity: float, support: int) -> tuple[float, ...]:
    """Return the features of a pair, in the order of `FEATURES`.

    Args:
        similarity: cosine of the two embeddings.
        support: how many checks found that answer right.
    """
    ours, theirs = set(question.words), set(entry.words)
    return (
        similarity,
        math.log1p(min(64, support)),
        len(ours & theirs) / max(1, len(ours | theirs)),
        ours == theirs,
    )


def offset_of(observations: Sequence[Observation], sigma: float) -> Offset:
    """Return an answer's offset after these checks: Newton's method on a concave posterior, from the prior N(0,
    sigma^2)."""
    precision = 1 / sigma**2
    offset = 0.0
    curvature = precision
    for _ in range(20 if observations else 0):
        gradient, curvature = -offset * precision, precision
        for observation in observations:
            probability = _sigmoid(observation.logit + offset)
            gradient += observation.correct - probability
            curvature += probability * (1 - probability)
        # A bounded step: far out the curvature is that of the prior alone and a full one overshoots.
        step = max(-1.0, min(1.0, gradient / curvature))
        offset += step
        if abs(step) < 1e-6:
            break
    return Offset(offset, 1 / curvature)


def decode(artefact: bytes) -> CorrectnessModel:
    """A model from its JSON.

    Raises:
        InvalidModel: it is no model, or one of another version.
    """
    try:
        model = msgspec.json.decode(artefact, type=CorrectnessModel)
    except msgspec.DecodeError as error:
        raise InvalidModel(
            f"the semantic cache's model cannot be read: {error}; make it anew with `make cache-model`"
        ) from error
    size = len(FEATURES)
    shapes = (len(model.means), len(model.scales), len(model.weights), len(model.covariance) - 1)
    if model.version != VERSION or model.features != FEATURES or set(shapes) != {size}:
        raise InvalidModel(
            f"the semantic cache's model is of another version than {VERSION}; make it anew with `make cache-model`"
        )
    possible = model.bands and model.bands == tuple(sorted(model.bands)) and min(model.scales) > 0 and model.sigma > 0
    if any(len(row) != size + 1 for row in model.covariance) or not possible:
        raise InvalidModel("the semantic cache's model has impossible values; make it anew with `make cache-model`")
    return model


def shipped() -> CorrectnessModel:
    """The model that comes with the package.

    Raises:
        InvalidModel: it is damaged.
    """
    return decode(resources.files("cache.semantic").joinpath("model.json").read_bytes())


def _sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x)) if x >= 0 else math.exp(x) / (1 + math.exp(x))
