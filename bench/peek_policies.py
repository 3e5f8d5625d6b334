"""Ways to route questions of which a tier has begun to answer some, and what they come to by known outcomes.

For `bench.peek`. A peek asks a tier for the first tokens of its answer: if that tier is then chosen, they are part of
its answer and cost nothing more; if not, they are thrown away and paid beside the answer of the other tier. All arrays
have questions in rows; costs are relative to the mean answer of the large tier.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from router.evaluation import Values
from router.knob import RoutedQuestions

PRICES = np.append(np.geomspace(50.0, 0.02, 100), 0.0)
"""Prices of cost at which questions are routed, in right answers per mean cost of the large tier."""
SMALL, MEDIUM, LARGE = range(3)
Tiers = NDArray[np.intp]


class PeekCosts(Struct, frozen=True):
    """Costs of questions; arrays of shape (questions, tiers)."""

    whole: Values
    """Whole answers."""
    peek: Values
    """Prompts and first tokens."""
    expected_whole: Values
    """The same with mean lengths of answers, by which tiers are chosen."""
    expected_peek: Values


class PeekBeliefs(Struct, frozen=True):
    """Probabilities that each tier's answer is right; arrays of shape (questions, tiers)."""

    before: Values
    """By the prompt alone."""
    small: Values
    """After the small tier's first tokens as well."""
    medium: Values
    """After the medium tier's first tokens as well."""
    both: Values

    @classmethod
    def empty(cls, size: int) -> PeekBeliefs:
        return cls(*(np.zeros((size, 3)) for _ in range(4)))

    def fill(self, rows: Tiers, other: PeekBeliefs) -> None:
        """Take the probabilities of some questions from others."""
        for name in self.__struct_fields__:
            getattr(self, name)[rows] = getattr(other, name)


Policy = Callable[[PeekBeliefs, PeekCosts, float], tuple[Tiers, Values]]
"""Returns the tier whose answer is shown, and the cost of everything that was asked for."""


def straight(believed: PeekBeliefs, costs: PeekCosts, price: float) -> tuple[Tiers, Values]:
    """Choose by the prompt alone."""
    return _charged(_best(believed.before, costs.expected_whole, price), costs, ())


def peek_small(believed: PeekBeliefs, costs: PeekCosts, price: float) -> tuple[Tiers, Values]:
    """Let the small tier begin every answer."""
    left = costs.expected_whole - _only(costs.expected_peek, SMALL)
    return _charged(_best(believed.small, left, price), costs, (SMALL,))


def peek_medium(believed: PeekBeliefs, costs: PeekCosts, price: float) -> tuple[Tiers, Values]:
    """Let the medium tier begin every answer that is not the small tier's by the prompt."""
    taken, cost = straight(believed, costs, price)
    then, paid = _from_medium(believed.medium, costs, price)
    return np.where(taken == SMALL, taken, then), np.where(taken == SMALL, cost, paid)


def peek_if_small(believed: PeekBeliefs, costs: PeekCosts, price: float) -> tuple[Tiers, Values]:
    """Let the small tier begin the answers that are its own by the prompt."""
    taken, cost = straight(believed, costs, price)
    then, paid = peek_small(believed, costs, price)
    return np.where(taken == SMALL, then, taken), np.where(taken == SMALL, paid, cost)


def peek_chosen(believed: PeekBeliefs, costs: PeekCosts, price: float) -> tuple[Tiers, Values]:
    """Let the tier that the prompt asks for begin, unless that is the large one."""
    taken, _ = straight(believed, costs, price)
    then, paid = peek_if_small(believed, costs, price)
    medium, paid_medium = _from_medium(believed.medium, costs, price)
    return np.where(taken == MEDIUM, medium, then), np.where(taken == MEDIUM, paid_medium, paid)


def peek_up(believed: PeekBeliefs, costs: PeekCosts, price: float) -> tuple[Tiers, Values]:
    """Let the small tier begin every answer, and the medium one where it is chosen then."""
    taken, cost = peek_small(believed, costs, price)
    then, paid = _from_medium(believed.both, costs, price)
    sunk = costs.peek[:, SMALL]
    return np.where(taken == MEDIUM, then, taken), np.where(taken == MEDIUM, paid + sunk, cost)


OF_SMALL: dict[str, Policy] = {"small begins": peek_small, "small begins if chosen": peek_if_small}
OF_BOTH: dict[str, Policy] = {
    "medium begins": peek_medium,
    "the chosen begins": peek_chosen,
    "small, then medium": peek_up,
}
"""Policies that need evidence of the medium tier."""


def route(policy: Policy, believed: PeekBeliefs, costs: PeekCosts, right: Values) -> RoutedQuestions:
    """Route all questions at all prices; the last point is the large tier alone, which needs no router."""
    rows = np.arange(len(right))
    found = [policy(believed, costs, price) for price in PRICES]
    found.append((np.full(len(right), LARGE), costs.whole[:, LARGE]))
    tiers = np.stack([tier for tier, _ in found])
    shares = np.stack([(tiers == tier).mean(axis=1) for tier in range(right.shape[1])], axis=1)
    return RoutedQuestions(shares, right[rows, tiers], np.stack([cost for _, cost in found]))


def doubtful(bound: float, doubts: Sequence[Values]) -> Policy:
    """Return the policy that gives a whole answer up for the next tier's where its tokens were unlikely.

    Args:
        doubts: negative mean log-probabilities of the small and the medium tier's whole answers.
    """

    def policy(believed: PeekBeliefs, costs: PeekCosts, price: float) -> tuple[Tiers, Values]:
        taken, cost = straight(believed, costs, price)
        rows = np.arange(len(taken))
        again = (taken < LARGE) & (np.choose(np.minimum(taken, MEDIUM), doubts) > bound)
        above = np.where(again, taken + 1, taken)
        gain = believed.before[rows, above] - 0.5 * believed.before[rows, taken]
        again &= gain > price * costs.expected_whole[rows, above]
        return np.where(again, above, taken), cost + np.where(again, costs.whole[rows, above], 0.0)

    return policy


def _from_medium(believed: Values, costs: PeekCosts, price: float) -> tuple[Tiers, Values]:
    left = (costs.expected_whole - _only(costs.expected_peek, MEDIUM))[:, MEDIUM:]
    return _charged(MEDIUM + _best(believed[:, MEDIUM:], left, price), costs, (MEDIUM,))


def _best(believed: Values, costs: Values, price: float) -> Tiers:
    return np.asarray(np.argmax(believed - price * costs, axis=1))


def _charged(taken: Tiers, costs: PeekCosts, begun: Sequence[int]) -> tuple[Tiers, Values]:
    """Return the tiers with what was paid: their answers, and what other tiers have begun."""
    paid = costs.whole[np.arange(len(taken)), taken]
    return taken, paid + sum(np.where(taken == tier, 0.0, costs.peek[:, tier]) for tier in begun)


def _only(costs: Values, tier: int) -> Values:
    """Return the costs of one tier, and nothing for the others."""
    found = np.zeros_like(costs)
    found[:, tier] = costs[:, tier]
    return found
