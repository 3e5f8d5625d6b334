"""Corrects a model of success by what people thought of answers, and refuses a model that got worse.

Feedback is scarce. So a refit moves two numbers per tier: slope and offset of its sigmoid on the log-odds, with a prior
that keeps them where they were. An opinion is about the tier that answered; a preference is about two tiers that have
answered the same question (Bradley and Terry, 1952). Each counts by the inverse of the probability with which the
question's tier was chosen (self-normalised inverse propensity scoring), up to `HEAVIEST`.

A frozen suite decides whether the result may be used: that of this release's model, of questions that no model has
learnt from; or the one that a model of `roundhouse route calibrate` carries, of questions that were kept apart when it
was fitted. The result may not be used if its area between all-small and all-large is worse beyond chance (the 95 %
interval of the paired difference is below zero) or by more than `AREA_TOLERANCE`, or its Brier score by more than
`BRIER_TOLERANCE`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
from msgspec import Struct
from safetensors.numpy import load

from router.evaluation import Interval, Values, area, brier, interval, resamples, route_all
from router.expense import Three
from router.success import MODEL, Array, SuccessModel, calibrated, write
from router.tier import TIERS

SUITE = MODEL.with_name("suite.safetensors")
SLOPE_SPREAD, OFFSET_SPREAD = 0.25, 0.5
"""Standard deviations of the prior on how far a sigmoid moves."""
HEAVIEST = 20.0
AREA_TOLERANCE, BRIER_TOLERANCE = 0.02, 0.005
RESAMPLES = 1000


class Opinion(Struct, frozen=True):
    """Feedback of a person on one answer of a tier."""

    tier: str
    probability: float
    """Probability that the tier answers well, as the model said at the time."""
    propensity: float
    good: bool


class Preference(Struct, frozen=True, kw_only=True):
    """The answer of one tier preferred over that of another one to the same question."""

    better: str
    worse: str
    probabilities: tuple[float, float]
    """Probabilities that each of the two answers well, as the model said at the time."""
    propensity: float
    """Of the tier that the question was routed to."""
    weight: float = 1.0
    """What it counts beside an opinion of a person."""


class Suite(Struct, frozen=True, kw_only=True):
    """A frozen suite, a question per row."""

    vectors: Array
    projected: Array
    """Projected embeddings; NaN in rows without one."""
    outcomes: Values
    tokens: Values
    """Tokens of prompt and answer at each tier."""

    def believed(self, model: SuccessModel) -> Values:
        """Return the probabilities that a model gives these questions."""
        believed = model.estimate(self.vectors, None)[0]
        if self.projected.shape[1]:
            embedded = np.isfinite(self.projected).all(axis=1)
            believed[embedded] = model.estimate(self.vectors[embedded], self.projected[embedded])[0]
        return believed.astype(np.float64)

    @classmethod
    def read(cls, content: bytes, model: SuccessModel) -> Suite:
        """
        Raises:
            ValueError: its embeddings are projected as another model does.
        """
        size = int.from_bytes(content[:8], "little")
        basis = msgspec.json.decode(content[8 : 8 + size])["__metadata__"]["basis"]
        if basis != model.basis:
            raise ValueError("the frozen suite belongs to a model of another basis; make both with `make router-model`")
        arrays = load(content)
        return cls(
            vectors=arrays["vectors"].astype(np.float32),
            projected=arrays["projected"].astype(np.float32),
            outcomes=arrays["outcomes"].astype(np.float64),
            tokens=arrays["tokens"].astype(np.float64),
        )


class RefitVerdict(Struct, frozen=True):
    """A comparison of a new model with the one in use, on the frozen suite."""

    area: Interval
    """Difference in area, new less old: more is better."""
    brier: Interval
    """Difference in Brier score, new less old: less is better."""

    @property
    def worse(self) -> bool:
        below = self.area.high < 0 or self.area.value < -AREA_TOLERANCE
        return below or self.brier.value > BRIER_TOLERANCE


def refit(model: SuccessModel, opinions: Sequence[Opinion], preferences: Sequence[Preference] = ()) -> bytes:
    """Return the file of a model whose sigmoids fit the opinions and preferences better."""
    arrays = dict(model.arrays)
    moved = moves(opinions, preferences)
    for name in ("feature_calibration", "embedding_calibration"):
        lines = arrays[name]
        arrays[name] = np.array(
            [[slope * line[0], slope * line[1] + offset] for line, (slope, offset) in zip(lines, moved, strict=True)],
            np.float32,
        )
    arrays["calibration"] = calibrated(arrays["calibration"], moved.astype(np.float32))
    # The types of the file: bytes where nothing more is in them.
    kept = {name: array.astype(model.types[name]) for name, array in arrays.items()}
    return write(kept, msgspec.structs.replace(model.metadata, corrected_by=len(opinions) + len(preferences)))


def moves(opinions: Sequence[Opinion], preferences: Sequence[Preference] = (), steps: int = 50) -> Values:
    """Return slope and offset by which the log-odds of each tier most likely move after these: Newton's method on a
    penalised logistic."""
    center = np.tile([1.0, 0.0], len(TIERS))
    design, good, weight = _evidence(opinions, preferences)
    prior, at = np.diag(np.tile([SLOPE_SPREAD**-2, OFFSET_SPREAD**-2], len(TIERS))), center
    for _ in range(steps):
        now = 1.0 / (1.0 + np.exp(-np.clip(design @ at, -30, 30)))
        gradient = design.T @ (weight * (now - good)) + prior @ (at - center)
        hessian = design.T @ (design * (weight * now * (1 - now))[:, None]) + prior
        step = np.linalg.solve(hessian, gradient)
        at = at - step / max(1.0, float(np.abs(step).max()))  # far from the end the parabola is a poor guide
        if np.abs(step).max() < 1e-10:
            break
    return at.reshape(len(TIERS), 2)


def _evidence(opinions: Sequence[Opinion], preferences: Sequence[Preference]) -> tuple[Values, Values, Values]:
    """Return a row of the design for each opinion and preference, what it says, and its weight.

    Whoever prefers one answer says that it is good and the other is not. If only one of the two is good, the odds that
    it is this one are its odds divided by the other's: a preference is a row too, the difference of log-odds.
    """
    design = np.zeros((len(opinions) + len(preferences), 2 * len(TIERS)))
    kinds = np.full(len(design), len(TIERS))
    for row, opinion in enumerate(opinions):
        kinds[row] = TIERS.index(opinion.tier)
        _add(design[row], opinion.tier, opinion.probability, 1.0)
    for row, preference in enumerate(preferences, len(opinions)):
        _add(design[row], preference.better, preference.probabilities[0], 1.0)
        _add(design[row], preference.worse, preference.probabilities[1], -1.0)
    good = np.array([*(each.good for each in opinions), *(True for _ in preferences)], np.float64)
    propensities = [*(each.propensity for each in opinions), *(each.propensity for each in preferences)]
    weight = np.minimum(HEAVIEST, 1.0 / np.array(propensities, np.float64))
    for kind in np.unique(kinds):
        weight[kinds == kind] /= weight[kinds == kind].mean()
    weight[len(opinions) :] *= [each.weight for each in preferences]
    return design, good, weight


def _add(row: Values, tier: str, probability: float, sign: float) -> None:
    """Add a tier's log-odds to a row, as factors of its slope and offset."""
    said = min(max(probability, 1e-6), 1 - 1e-6)
    at = 2 * TIERS.index(tier)
    row[at : at + 2] += sign * np.log(said / (1 - said)), sign


def judge(new: SuccessModel, old: SuccessModel, suite: Suite, prices: Three) -> RefitVerdict:
    """Compare both models on the same resamples of the suite. Args: prices: of a token at each tier, relative to the
    dearest's."""
    costs = suite.tokens * np.array(prices)
    drawn = resamples(len(suite.outcomes), RESAMPLES)
    areas, errors = [], []
    for model in (new, old):
        believed = suite.believed(model)
        curve = route_all(believed, suite.outcomes, costs, costs)
        areas.append((area(curve), area(curve, drawn)))
        errors.append((brier(believed, suite.outcomes), brier(believed, suite.outcomes, drawn)))
    return RefitVerdict(*(interval(a[0] - b[0], a[1] - b[1]) for a, b in (areas, errors)))


def read_suite(model: SuccessModel, path: Path = SUITE) -> Suite:
    """Return the suite that a model carries, or that of this release.

    Raises:
        ValueError: it carries none, and is not of this release's kind.
    """
    if "suite_vectors" in model.arrays:
        names = ("vectors", "projected", "outcomes", "tokens")
        vectors, projected, outcomes, tokens = (model.arrays[f"suite_{name}"] for name in names)
        return Suite(
            vectors=vectors,
            projected=projected,
            outcomes=outcomes.astype(np.float64),
            tokens=tokens.astype(np.float64),
        )
    return Suite.read(path.read_bytes(), model)
