"""How good a router is on requests whose outcome at every tier is known: curves, areas, calibration, intervals.

Everything takes arrays over the same requests, `probabilities`, `outcomes` and `costs` of shape (requests, tiers) with
tiers in the order small, medium, large. An outcome is 1 where that tier's answer is right, and a cost is in any unit.
Intervals are paired bootstraps: every method is measured on the same resamples, given as how often each request was
drawn, of shape (resamples, requests).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

Values = NDArray[np.float64]

LOWEST = 1e-12
"""A price that decides nothing but which of equally good tiers is taken: the cheaper."""
STEPS = 201
"""Prices at which a quality-cost curve is taken."""


class Interval(Struct, frozen=True):
    """A figure with its 95 % interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.3f} [{self.low:.3f}, {self.high:.3f}]"


class RoutingCurve(Struct, frozen=True):
    """Quality and cost of each request at each price, cheapest routing first; arrays of shape (prices, requests)."""

    quality: Values
    cost: Values


def resamples(requests: int, number: int, seed: int = 0) -> Values:
    """Draw `number` bootstrap samples: how often each request is in each."""
    generator = np.random.default_rng(seed)
    drawn = generator.integers(0, requests, (number, requests))
    return np.stack([np.bincount(row, minlength=requests) for row in drawn]).astype(np.float64)


def choices(probabilities: Values, costs: Values, price: float) -> NDArray[np.intp]:
    """Choose the tier of each request: the largest `probability - price * cost`, of equals the cheaper one, or the
    dearer one where cost has no price."""
    utility = probabilities - price * costs
    if price > 0:
        return np.asarray(np.argmax(utility, axis=1))
    return np.asarray(utility.shape[1] - 1 - np.argmax(utility[:, ::-1], axis=1))


def prices(probabilities: Values, costs: Values, steps: int = STEPS) -> Values:
    """Return prices, from dear to next to nothing, at which about equally many of these requests change their tier.

    A request's tier changes only at `(p_b - p_a) / (c_b - c_a)` of two tiers, so quantiles of these cover the curve.
    """
    pairs = [(0, 1), (0, 2), (1, 2)]
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = np.concatenate(
            [(probabilities[:, b] - probabilities[:, a]) / (costs[:, b] - costs[:, a]) for a, b in pairs]
        )
    # Tiers that cost the same change at no price.
    inner = np.quantile(ratios[np.isfinite(ratios)], np.linspace(1, 0, steps))
    return np.asarray(np.maximum(inner, LOWEST))


def route_all(probabilities: Values, outcomes: Values, expected: Values, costs: Values) -> RoutingCurve:
    """Quality and cost of every request along the curve, from all-small to all-large.

    Args:
        expected: what the router believes tiers to cost; `costs` is what they did.
    """
    rows = np.arange(len(outcomes))
    taken = [np.zeros(len(rows), dtype=np.intp)]
    taken += [choices(probabilities, expected, price) for price in prices(probabilities, expected)]
    taken.append(np.full(len(rows), outcomes.shape[1] - 1))
    quality = np.stack([outcomes[rows, tier] for tier in taken])
    return RoutingCurve(quality, np.stack([costs[rows, tier] for tier in taken]))


def random_mixture(outcomes: Values, costs: Values) -> RoutingCurve:
    """Send each request to small or large by the toss of a coin; the expectation is the straight line between both."""
    ends = [0, outcomes.shape[1] - 1]
    return RoutingCurve(outcomes.T[ends], costs.T[ends])


def area(routed: RoutingCurve, drawn: Values | None = None) -> Values:
    """Area between all-small quality and the quality-cost curve, as a share of the box up to all-large.

    0.5 is a straight line between both, 1 all-large quality at all-small cost; an oracle may pass 1, because a small
    model is sometimes right where a large one is not. After the AIQ of RouterBench (arXiv 2403.12031), normalised.

    Args:
        drawn: resamples; the result has one value for each, or one for the requests as they are.
    """
    weights = np.ones((1, routed.cost.shape[1])) if drawn is None else drawn
    total = weights.sum(axis=1, keepdims=True)
    cost, quality = weights @ routed.cost.T / total, weights @ routed.quality.T / total
    order = np.argsort(cost, axis=1, kind="stable")
    cost, quality = np.take_along_axis(cost, order, 1), np.take_along_axis(quality, order, 1)
    # Beside the ends a tier may cost less than small did or more than large: only what lies between them counts.
    low, high = weights @ routed.cost[0] / total[:, 0], weights @ routed.cost[-1] / total[:, 0]
    base, top = weights @ routed.quality[0] / total[:, 0], weights @ routed.quality[-1] / total[:, 0]
    clipped = np.clip(cost, low[:, None], high[:, None])
    gained = quality - base[:, None]
    boxes = np.sum((gained[:, 1:] + gained[:, :-1]) / 2 * np.diff(clipped, axis=1), axis=1)
    return np.asarray(boxes / ((high - low) * (top - base)))


def apgr(scores: Values, weak: Values, strong: Values, drawn: Values | None = None) -> Values:
    """Average performance gap recovered when requests go to the strong model in the order of a score, highest first.

    The area between the weak model's accuracy and that of the mixture over the share sent on, as a share of the gap
    (RouteLLM, arXiv 2406.18665); 0.5 is random. Equal scores are one step, whose chord is the average over all orders.
    """
    order = np.argsort(-scores, kind="stable")
    ranked = scores[order]
    last = np.append(ranked[1:] != ranked[:-1], True)
    weights = np.ones((1, len(scores))) if drawn is None else drawn[:, order]
    total = weights.sum(axis=1, keepdims=True)
    gain = (strong - weak)[order]
    zero = np.zeros((len(weights), 1))
    share = np.hstack([zero, (np.cumsum(weights, axis=1) / total)[:, last]])
    gained = np.hstack([zero, (np.cumsum(weights * gain, axis=1) / total)[:, last]])
    whole = np.sum((gained[:, 1:] + gained[:, :-1]) / 2 * np.diff(share, axis=1), axis=1)
    return np.asarray(whole / gained[:, -1])


def cost_of_quality(routed: RoutingCurve, share: float, drawn: Values | None = None) -> Values:
    """The least cost, as a share of all-large cost, at which the curve reaches `share` of the gap from all-small to
    all-large quality; 1 where only all-large does."""
    weights = np.ones((1, routed.cost.shape[1])) if drawn is None else drawn
    total = weights.sum(axis=1, keepdims=True)
    cost, quality = weights @ routed.cost.T / total, weights @ routed.quality.T / total
    wanted = quality[:, :1] + share * (quality[:, -1:] - quality[:, :1])
    reached = np.where(quality >= wanted - 1e-12, cost, np.inf).min(axis=1)
    return np.asarray(np.minimum(1.0, reached / cost[:, -1]))


def brier(probabilities: Values, outcomes: Values, drawn: Values | None = None) -> Values:
    """Mean squared error of probabilities, over all tiers."""
    errors = ((probabilities - outcomes) ** 2).reshape(len(outcomes), -1).mean(axis=1)
    weights = np.ones((1, len(errors))) if drawn is None else drawn
    return np.asarray(weights @ errors / weights.sum(axis=1))


class Bin(Struct, frozen=True):
    """One bin of a reliability diagram."""

    expected: float
    """Mean probability of the bin's requests."""
    observed: float
    """Share of the bin's requests that were answered right."""
    requests: int


def reliability(probabilities: Values, outcomes: Values, bins: int = 10) -> list[Bin]:
    """Bins of about equally many requests, least probable first, of one tier."""
    order = np.argsort(probabilities, kind="stable")
    return [
        Bin(float(probabilities[part].mean()), float(outcomes[part].mean()), len(part))
        for part in np.array_split(order, bins)
        if len(part)
    ]


def calibration_error(bins: Sequence[Bin]) -> float:
    """Expected calibration error: how far bins are from what they claim, weighted by their requests."""
    total = sum(each.requests for each in bins)
    return sum(abs(each.expected - each.observed) * each.requests for each in bins) / total


def interval(values: Values, samples: Values) -> Interval:
    """Return a figure with the interval that its resamples give."""
    low, high = np.quantile(samples, [0.025, 0.975])
    return Interval(float(values[0]), float(low), float(high))
