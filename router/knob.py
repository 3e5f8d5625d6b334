"""What `auto` costs and answers at each position of the quality knob, beside fixed tiers and a coin, by known outcomes.

A coin sends a request to one of two tiers with a fixed probability, whatever the request is. The best mixture of fixed
tiers for a cost is what routing has to beat at that cost: knowing nothing of the requests gives as much. `gain` is how
much better routing is, on average over the costs between the cheapest and the dearest tier; it compares two ways of
routing even where their knobs spend differently.

Arrays have the shape (questions, tiers), tiers from small to large; outcomes are 1 where an answer was right.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import Struct

from router.evaluation import Interval, Values, interval, resamples
from router.tier import Outlook, Terms, shares

POSITIONS = tuple(range(101))
SHOWN = tuple(range(0, 101, 10))
RESAMPLES = 2000


class RoutedQuestions(Struct, frozen=True):
    """What each question gets at each position of the knob, on average over the lots of a mixture."""

    shares: Values
    """Share of the questions that each tier gets, (positions, tiers)."""
    right: Values
    """Of shape (positions, questions), as `cost`."""
    cost: Values


class KnobPosition(Struct, frozen=True):
    """Figures of one position of the knob."""

    quality: int
    spent: Interval
    """Share of what the dearest tier would have cost."""
    right: Interval
    coin: Interval
    """Share of right answers of the best mixture of fixed tiers that costs as much."""
    above: Interval
    """`right` less `coin`."""
    shares: tuple[float, float, float]
    """Share of the questions that each tier gets."""


def turn(
    outlooks: Sequence[Outlook],
    tables: Sequence[Sequence[float]],
    relative: tuple[float, float, float],
    outcomes: Values,
    costs: Values,
) -> RoutedQuestions:
    """Route every question at every position of the knob, by the rule of the product.

    Args:
        outlooks: what is believed of each question.
        tables: prices by position of the knob, for each question those of the model that judged it.
        relative: costs of a token at each tier, relative to the dearest.
        costs: what each answer did cost.
    """
    chances = np.array(
        [
            [
                list(shares(outlook, Terms(table[quality], table[50], relative)).values())
                for outlook, table in zip(outlooks, tables, strict=True)
            ]
            for quality in POSITIONS
        ]
    )
    return RoutedQuestions(chances.mean(axis=1), (chances * outcomes).sum(axis=2), (chances * costs).sum(axis=2))


def coin(cost: Values, tier_costs: Values, tier_right: Values) -> Values:
    """Return the share of right answers of the best mixture of fixed tiers that costs no more.

    Args:
        cost: (samples, points).
        tier_costs, tier_right: means of each tier, (samples, tiers).
    """
    best = np.full(cost.shape, -np.inf)
    tiers = range(tier_costs.shape[1])
    for one in tiers:
        low, quality = tier_costs[:, one : one + 1], tier_right[:, one : one + 1]
        affordable = cost >= low - 1e-12 * np.abs(low)
        best = np.where(affordable, np.maximum(best, quality), best)
        for other in tiers:
            high, top = tier_costs[:, other : other + 1], tier_right[:, other : other + 1]
            width = high - low
            with np.errstate(invalid="ignore", divide="ignore"):
                mixed = quality + np.clip((cost - low) / width, 0.0, 1.0) * (top - quality)
            best = np.where(affordable & (width > 0), np.maximum(best, mixed), best)
    # A cost below that of every tier, which rounding makes of the cheapest one's.
    cheapest = np.take_along_axis(tier_right, np.argmin(tier_costs, axis=1)[:, None], 1)
    return np.asarray(np.where(np.isfinite(best), best, cheapest))


class Means(Struct, frozen=True):
    """Means over the questions, or over resamples of them; arrays of shape (samples, positions or tiers)."""

    right: Values
    cost: Values
    tier_right: Values
    tier_cost: Values

    @property
    def coin(self) -> Values:
        return coin(self.cost, self.tier_cost, self.tier_right)

    @property
    def gain(self) -> Values:
        """Mean of `right` less `coin` over the costs from the cheapest to the dearest tier."""
        order = np.argsort(self.cost, axis=1, kind="stable")
        cost = np.take_along_axis(self.cost, order, 1)
        above = np.take_along_axis(self.right - self.coin, order, 1)
        area = np.sum((above[:, 1:] + above[:, :-1]) / 2 * np.diff(cost, axis=1), axis=1)
        width = self.tier_cost.max(axis=1) - self.tier_cost.min(axis=1)
        return np.asarray(area / np.maximum(width, 1e-12))


def means(routed: RoutedQuestions, outcomes: Values, costs: Values, drawn: Values | None = None) -> Means:
    """Args: drawn: resamples, see `router.evaluation.resamples`; without them the questions count once each."""
    weights = np.ones((1, len(outcomes))) if drawn is None else drawn
    weights = weights / weights.sum(axis=1, keepdims=True)
    return Means(weights @ routed.right.T, weights @ routed.cost.T, weights @ outcomes, weights @ costs)


def positions(routed: RoutedQuestions, outcomes: Values, costs: Values, drawn: Values) -> list[KnobPosition]:
    """Return the figures of the positions `SHOWN`."""
    exact, sampled = means(routed, outcomes, costs), means(routed, outcomes, costs, drawn)
    dearest, dearest_sampled = exact.tier_cost[:, -1:], sampled.tier_cost[:, -1:]
    found = []
    for quality in SHOWN:

        def figure(of: Values, samples: Values, column: int = quality) -> Interval:
            return interval(of[:, column], samples[:, column])

        small, medium, large = routed.shares[quality].tolist()
        found.append(
            KnobPosition(
                quality=quality,
                spent=figure(exact.cost / dearest, sampled.cost / dearest_sampled),
                right=figure(exact.right, sampled.right),
                coin=figure(exact.coin, sampled.coin),
                above=figure(exact.right - exact.coin, sampled.right - sampled.coin),
                shares=(small, medium, large),
            )
        )
    return found


class RouterComparison(Struct, frozen=True):
    """How much better than a coin a fitted model routes, and the model in use."""

    fitted: Interval
    in_use: Interval
    difference: Interval
    """The fitted model less the one in use, on the same resamples."""

    @property
    def better(self) -> bool:
        """Whether the fitted model is better than the one in use beyond chance."""
        return self.difference.low > 0

    @property
    def beats_coin(self) -> bool:
        return self.fitted.low > 0


def compare(
    fitted: RoutedQuestions, in_use: RoutedQuestions, outcomes: Values, costs: Values, drawn: Values
) -> RouterComparison:
    """Compare two ways of routing the same questions."""
    gains = [(means(each, outcomes, costs).gain, means(each, outcomes, costs, drawn).gain) for each in (fitted, in_use)]
    (new, new_sampled), (old, old_sampled) = gains
    return RouterComparison(
        interval(new, new_sampled), interval(old, old_sampled), interval(new - old, new_sampled - old_sampled)
    )


def draw(questions: int) -> Values:
    """Draw the resamples that all figures of an evaluation share."""
    return resamples(questions, RESAMPLES)
