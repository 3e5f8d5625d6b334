"""Which tier answers a request that leaves it open: `argmax value(tier) - price * cost - delay_price * delay`.

The value of a tier is the probability that it answers well, where `router.success` knows one. Where it does not,
nothing that a prompt shows has been found to tell which one needs a larger tier, so requests are dealt to the tiers in
fixed shares (`router.mixture`) without a look at the prompt. If so configured, the complexity says instead what a
larger tier is judged to gain, in units of what that costs at the knob's middle; where the complexity says nothing
either, medium is judged to be worth it and large not, unless the price is far from the middle.

The price of cost is what the quality knob or a budget (`router.budget`) sets. Costs are relative to the dearest tier's.
Pure, and made again from what it returns: `TierChoice` holds everything it was made from.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence

import numpy as np
from msgspec import Struct, structs
from numpy.typing import NDArray

from router import mixture
from router.evaluation import choices, prices
from router.features import HEAD, TAIL
from router.success import Prediction

TIERS = ("small", "medium", "large")

CERTAIN = 4.0
"""Multiple of the middle price up to which medium is worth its cost for an unknown request; large is worth it only
below the price divided by a multiple as large."""


class ValueSource(enum.StrEnum):
    """The source of the values of tiers."""

    LEARNT = "learnt"
    """Probabilities of `router.success`."""
    MIXTURE = "mixture"
    """Nothing is known: tiers get fixed shares of such requests."""
    COMPLEXITY = "complexity"
    """The complexity score: the request is unlike the learning set, and a chat message, for which the score was
    made."""
    UNCERTAIN = "uncertain"
    """The complexity score was not made for such requests."""


class Outlook(Struct, frozen=True):
    """The belief about a request before a price is known."""

    source: ValueSource
    complexity: float
    prediction: Prediction | None = None
    medium_from: float = 0.2
    large_from: float = 0.45
    """Complexity at which, at the middle price, a larger tier is worth its cost."""
    lot: float = 0.0
    """Place of the request in the order in which a mixture deals requests to tiers: 0 is the first to get a larger
    tier, and below 1."""
    costs: tuple[float, float, float] | None = None
    """Expected cost of an answer at each tier, relative to that of an average request at the dearest; None: nothing is
    expected, and `Terms.costs` count."""


class Terms(Struct, frozen=True):
    """Prices of cost and delay."""

    price: float
    """Price of cost, in probability of a good answer."""
    middle: float
    """The price at the middle of the knob."""
    costs: tuple[float, float, float]
    """Cost of a token at each tier, relative to the dearest tier's."""
    delay_price: float = 0.0
    """Price of a thousand tokens that others are still waiting for, in probability of a good answer."""
    explore: float = 0.0
    """Share of requests whose tier is drawn at random, so that outcomes of other choices are seen."""


class TierChoice(Struct, frozen=True, kw_only=True):
    """A tier, and all values that it was chosen by."""

    tier: str
    outlook: Outlook
    terms: Terms
    delays: tuple[float, float, float] = (0.0, 0.0, 0.0)
    """Thousands of tokens that each tier has to compute for others first."""
    offered: tuple[str, ...] = TIERS
    """Tiers that may be chosen."""
    floor: str | None = None
    """The tier below which this conversation must not fall."""
    draw: float = 1.0
    """The random number used, from 0 to below 1; 1 where none was drawn."""
    values: tuple[float, float, float]
    utilities: tuple[float, float, float]
    propensity: float
    """Probability that this tier was chosen for this request."""

    @property
    def price(self) -> float:
        """Price of cost for this request: that of `terms`; in a mixture higher, the later its lot is."""
        return _price(self.outlook, self.terms)

    @property
    def costs(self) -> tuple[float, float, float]:
        """Cost of each tier that `price` is of: expected of this request, else that of a token."""
        return self.outlook.costs or self.terms.costs


def source(prediction: Prediction | None, characters: int, *, by_complexity: bool = False) -> ValueSource:
    """Return the source of the values for a request.

    Args:
        characters: of its newest message.
        by_complexity: whether the complexity counts for requests of which nothing is learnt.
    """
    if prediction is not None and prediction.probabilities is not None:
        return ValueSource.LEARNT
    if not by_complexity:
        return ValueSource.MIXTURE
    # The complexity score was made for messages as people write them in a chat, and read as a whole.
    return ValueSource.COMPLEXITY if characters <= HEAD + TAIL else ValueSource.UNCERTAIN


def choose(
    outlook: Outlook,
    terms: Terms,
    *,
    delays: tuple[float, float, float] = (0.0, 0.0, 0.0),
    offered: tuple[str, ...] = TIERS,
    floor: str | None = None,
    draw: float = 1.0,
) -> TierChoice:
    """Choose a tier; of equally useful ones the cheaper, or the dearer where cost has no price: the knob's upper end is
    all-large. For the arguments see `TierChoice`.

    Where no tier that is offered is as high as the floor, the highest is taken.
    """
    utilities = _utilities(outlook, terms, delays)
    there = [number for number, tier in enumerate(TIERS) if tier in offered]
    open_tiers = [tier for tier in there if floor is None or tier >= TIERS.index(floor)] or there[-1:]
    best = TIERS.index(_best([TIERS[tier] for tier in open_tiers], utilities, terms.price))
    drawn = terms.explore / len(open_tiers)
    share = shares(outlook, terms, delays, open_tiers)
    explored = draw < terms.explore
    # The part of the draw below `explore` is uniform again.
    taken = open_tiers[int(draw / terms.explore * len(open_tiers))] if explored else best
    return TierChoice(
        tier=TIERS[taken],
        outlook=outlook,
        terms=terms,
        delays=delays,
        offered=offered,
        floor=floor,
        draw=draw,
        values=values(outlook, terms),
        utilities=(utilities[0], utilities[1], utilities[2]),
        propensity=drawn + (1.0 - terms.explore) * share[taken],
    )


def again(choice: TierChoice) -> TierChoice:
    """Make the same choice again from the values that it holds."""
    return choose(
        choice.outlook,
        choice.terms,
        delays=choice.delays,
        offered=choice.offered,
        floor=choice.floor,
        draw=choice.draw,
    )


def at_price(choice: TierChoice, price: float) -> str:
    """Return the tier that another price of cost would have chosen, with nothing drawn at random."""
    terms = structs.replace(choice.terms, price=price, explore=0.0)
    return choose(choice.outlook, terms, delays=choice.delays, offered=choice.offered, floor=choice.floor).tier


def sentences(choice: TierChoice) -> tuple[str, ...]:
    """Say for people why a tier was chosen."""
    return tuple(reasons(choice).values())


def reasons(choice: TierChoice) -> dict[str, str]:
    """Return why a tier was chosen, by kind of reason: what its worth asks for, then what has changed that.

    The first kind is the source of the values, or `explored`; others are `unfamiliar`, `closed` (a tier was not
    offered), `queue` and `conversation` (which keeps to a tier).
    """
    outlook, terms, prediction = choice.outlook, choice.terms, choice.outlook.prediction
    worth = [value - charge for value, charge in zip(choice.values, charges(outlook, terms), strict=True)]
    wanted, possible = _best(TIERS, worth, terms.price), _best(choice.offered, worth, terms.price)
    soonest = _best(choice.offered, choice.utilities, terms.price)
    explored = choice.draw < terms.explore
    if explored:
        first = f"the {choice.tier} tier was drawn, to see how it does"
    elif outlook.source is ValueSource.LEARNT:
        shown = ", ".join(f"{tier} {value:.0%}" for tier, value in zip(TIERS, choice.values, strict=True))
        first = f"expected to be answered well: {shown}; at this price of quality that asks for {wanted}"
    elif outlook.source is ValueSource.MIXTURE:
        unknown = "not calibrated for these models: " if prediction is None else ""
        first = f"{unknown}tiers get fixed shares of requests, whatever they ask, and this one goes to {wanted}"
    elif outlook.source is ValueSource.COMPLEXITY:
        price = "" if terms.price == terms.middle else "at this price of quality "
        first = f"complexity {outlook.complexity:.2f} {price}asks for the {wanted} tier"
    else:
        first = f"little is known of requests like this one: the {wanted} tier"
    grounds = {"explored" if explored else outlook.source.value: first}
    if prediction is not None and prediction.probabilities is None:
        grounds["unfamiliar"] = "it is unlike the questions that success was learnt from"
    if not explored and possible != wanted:
        grounds["closed"] = f"the {wanted} tier is not open to this request, the {possible} tier is next"
    if not explored and soonest != possible:
        grounds["queue"] = f"the {possible} tier has a queue, the {soonest} tier answers sooner"
    if not explored and choice.tier != soonest:
        grounds["conversation"] = f"the conversation has used the {choice.floor} tier and does not go below it"
    return grounds


def _best(tiers: Sequence[str], utilities: Sequence[float], price: float) -> str:
    """Return the most useful tier, of equals the one that `choose` takes."""
    order = -1 if price > 0 else 1
    return max(tiers, key=lambda tier: (utilities[TIERS.index(tier)], order * TIERS.index(tier)))


def values(outlook: Outlook, terms: Terms) -> tuple[float, float, float]:
    """Return the value of each tier, in probability of a good answer; only differences count."""
    prediction = outlook.prediction
    if outlook.source is ValueSource.LEARNT and prediction is not None and prediction.probabilities is not None:
        return prediction.probabilities
    if outlook.source is ValueSource.MIXTURE:
        return mixture.values(terms.costs)
    small, medium, large = terms.costs
    first, second = terms.middle * (medium - small), terms.middle * (large - medium)
    if outlook.source is ValueSource.UNCERTAIN:
        gains = first * CERTAIN, second / CERTAIN
    else:
        gains = (
            first * outlook.complexity / max(outlook.medium_from, 1e-6),
            second * outlook.complexity / max(outlook.large_from, 1e-6),
        )
    return 0.0, gains[0], gains[0] + gains[1]


def charges(outlook: Outlook, terms: Terms) -> tuple[float, float, float]:
    """Return what the cost of each tier counts, in probability of a good answer."""
    price = _price(outlook, terms)
    small, medium, large = outlook.costs or terms.costs
    return price * small, price * medium, price * large


def _price(outlook: Outlook, terms: Terms) -> float:
    later = outlook.lot * mixture.step(terms.costs) if outlook.source is ValueSource.MIXTURE else 0.0
    return terms.price + later


def shares(
    outlook: Outlook,
    terms: Terms,
    delays: tuple[float, float, float] = (0.0, 0.0, 0.0),
    open_tiers: Sequence[int] = range(len(TIERS)),
) -> dict[int, float]:
    """Return the probability with which each open tier is the best: over all lots, where the choice depends on one."""
    first = _utilities(structs.replace(outlook, lot=0.0), terms, delays)
    if outlook.source is ValueSource.MIXTURE:
        last = _utilities(structs.replace(outlook, lot=1.0), terms, delays)
        return mixture.shares(first, last, open_tiers)
    best = _best([TIERS[tier] for tier in open_tiers], first, terms.price)
    return {tier: float(TIERS[tier] == best) for tier in open_tiers}


def _utilities(outlook: Outlook, terms: Terms, delays: tuple[float, float, float]) -> list[float]:
    """Return the value of each tier less what its cost and its queue count."""
    summed = zip(values(outlook, terms), charges(outlook, terms), delays, strict=True)
    return [value - charge - terms.delay_price * delay for value, charge, delay in summed]


def price_table(
    calibration: NDArray[np.float64], costs: tuple[float, float, float] | NDArray[np.float64]
) -> tuple[float, ...]:
    """Return the price at each position of the quality knob, 0 to 100.

    At position q the requests of the calibration set cost all-small plus q % of what all-large costs more: the knob is
    linear in money. 0 is all-small, 100 all-large. Below 100 cost has a price, so that a larger tier that gains nothing
    is not taken: where that is so for many requests, positions near 100 spend less than they may.

    Args:
        calibration: probabilities by rows, see `SuccessModel.calibration`.
        costs: the same for all requests, or expected of each, by rows.
    """
    spread, rows = np.broadcast_to(np.array(costs), calibration.shape), np.arange(len(calibration))
    small, _, large = spread.mean(axis=0)
    tried = np.concatenate([prices(calibration, spread), [0.0]])
    spent = np.array([spread[rows, choices(calibration, spread, price)].mean() for price in tried])
    tried[0] = max(tried[0], tried[1]) + 1.0
    spent[0], spent[-1] = small, large
    wanted = small + np.linspace(0, 1, 101) * (large - small)
    table = np.interp(wanted, np.maximum.accumulate(spent), tried)
    table[0], table[-1] = NEVER, 0.0
    return tuple(float(price) for price in table)


NEVER = 1e9
"""A price at which only the cheapest tier is taken."""


def relative(costs: Sequence[float]) -> tuple[float, float, float]:
    """Return the costs of three tiers relative to the dearest; those of 7B, 13B and 70B models unless they rise with
    the tier."""
    small, medium, large = costs if list(costs) == sorted(set(costs)) and len(costs) == 3 else NOMINAL
    return small / large, medium / large, 1.0


NOMINAL = (7.0, 13.0, 70.0)
"""Billions of parameters of models of three sizes; the work for a token is about proportional to them."""
