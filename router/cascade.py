"""Whether an answer that looks bad is worth asking the next larger tier for another one.

What looks bad is cheap to see: no text, text that is not in the wanted format, a refusal, tokens that the model itself
found unlikely. Each leaves a part of the probability that the answer is good after all. Against it stands the
probability that the larger tier does better. That is less than its usual one: where a smaller tier fails, a larger one
fails more often, too. How much more is measured (`DEPENDENCE`). The larger tier is asked if what it is expected to gain
is more than what its whole answer costs at the price of the choice (`router.tier`); the first answer is paid already.

An answer in no wanted form says nothing of how hard the question was, so there the larger tier has its usual
probability. Pure, and made again from what it returns.
"""

from __future__ import annotations

import enum

from msgspec import Struct

from router.tier import TIERS, TierChoice, ValueSource

DEPENDENCE = 0.4
"""Where a tier fails, the share of cases in which the next one has its lead only; else its chances are the usual ones.
On the frozen suite 0.38 [0.26, 0.50] from small to medium, 0.37 [0.25, 0.50] from medium to large, as
`tests/router/test_cascade.py` measures it."""


class CascadeSignal(enum.StrEnum):
    """A sign that an answer is bad."""

    EMPTY = "empty"
    """The answer has neither text nor a call."""
    SCHEMA = "schema"
    """The answer is not in the requested format, or a call is cut off."""
    REFUSAL = "refusal"
    """The answer begins like a refusal."""
    DOUBT = "doubt"
    """The mean log-probability of the answer's tokens is low."""


LEFT = {CascadeSignal.EMPTY: 0.0, CascadeSignal.SCHEMA: 0.0, CascadeSignal.REFUSAL: 0.25, CascadeSignal.DOUBT: 0.5}
"""Share of the probability of a good answer that each signal leaves. Chosen by judgement: no data with such signals is
at hand."""
OF_FORM = (CascadeSignal.EMPTY, CascadeSignal.SCHEMA)


class AnswerEvidence(Struct, frozen=True, kw_only=True):
    """What was observed of a whole answer."""

    empty: bool
    valid: bool
    """Whether the answer is in the requested format; true if none was requested."""
    refusal: bool
    logprob: float | None
    """Mean log-probability of the answer's tokens; None if it is not known."""


class Escalation(Struct, frozen=True, kw_only=True):
    """The decision whether to ask the next tier, and everything it was made from."""

    signal: CascadeSignal
    tier: str
    """The tier that has answered."""
    next: str
    success: tuple[float, float]
    """Probability that each of the two tiers answers well, before the signal was seen."""
    price: float
    """Price of cost, as in `router.tier.Terms`; `cost` and `delay_price` are as there too."""
    cost: float
    delay_price: float
    delay: float
    gain: float
    """Gain in probability of a good answer."""
    paid: float
    """What the gain costs, in the same unit."""

    @property
    def pays(self) -> bool:
        return self.gain > self.paid


def signal(seen: AnswerEvidence, doubt_below: float | None) -> CascadeSignal | None:
    """Return the strongest signal of an answer, if it has any."""
    if seen.empty:
        return CascadeSignal.EMPTY
    if not seen.valid:
        return CascadeSignal.SCHEMA
    if seen.refusal:
        return CascadeSignal.REFUSAL
    if doubt_below is not None and seen.logprob is not None and seen.logprob < doubt_below:
        return CascadeSignal.DOUBT
    return None


def next_tier(choice: TierChoice) -> str | None:
    """Return the tier above the chosen one; None if there is none, or if the choice was drawn to see how its tier
    does."""
    if choice.draw < choice.terms.explore:
        return None
    above = [tier for tier in TIERS[TIERS.index(choice.tier) + 1 :] if tier in choice.offered]
    return above[0] if above else None


def escalate(choice: TierChoice, next: str, found: CascadeSignal, typical: tuple[float, float, float]) -> Escalation:
    """Decide whether to ask the tier `next` too.

    Args:
        typical: probability that each tier answers well, of requests of which nothing is known.
    """
    prediction = choice.outlook.prediction
    known = prediction.probabilities if prediction and choice.outlook.source is ValueSource.LEARNT else None
    success = known or typical
    this, that = TIERS.index(choice.tier), TIERS.index(next)
    return decide(
        found,
        (choice.tier, next),
        (success[this], success[that]),
        price=choice.terms.price,
        cost=choice.terms.costs[that],
        delay_price=choice.terms.delay_price,
        delay=choice.delays[that],
    )


def decide(
    found: CascadeSignal,
    tiers: tuple[str, str],
    success: tuple[float, float],
    *,
    price: float,
    cost: float,
    delay_price: float = 0.0,
    delay: float = 0.0,
) -> Escalation:
    """Make the decision; for the arguments see `Escalation`."""
    left = success[0] * LEFT[found]
    return Escalation(
        signal=found,
        tier=tiers[0],
        next=tiers[1],
        success=success,
        price=price,
        cost=cost,
        delay_price=delay_price,
        delay=delay,
        gain=_after(success, left, 0.0 if found in OF_FORM else DEPENDENCE) - left,
        paid=price * cost + delay_price * delay,
    )


def again(escalation: Escalation) -> Escalation:
    """Make the same decision again from the values that it holds."""
    return decide(
        escalation.signal,
        (escalation.tier, escalation.next),
        escalation.success,
        price=escalation.price,
        cost=escalation.cost,
        delay_price=escalation.delay_price,
        delay=escalation.delay,
    )


def sentence(escalation: Escalation) -> str:
    """Say for people why the larger tier was asked."""
    return (
        f"the {escalation.tier} tier's answer {_SAID[escalation.signal]}: the {escalation.next} tier is expected to do "
        f"better by {escalation.gain:.0%}, and {escalation.paid:.0%} would have been enough at this price of quality"
    )


_SAID = {
    CascadeSignal.EMPTY: "was empty",
    CascadeSignal.SCHEMA: "was not in the format that was asked for",
    CascadeSignal.REFUSAL: "was a refusal",
    CascadeSignal.DOUBT: "was of tokens that it found unlikely itself",
}


def _after(success: tuple[float, float], left: float, dependence: float) -> float:
    """Probability that the larger tier answers well, if the smaller one has done so with probability `left`.

    A mixture: with `dependence` the larger tier answers well whatever the smaller one does, and more; else what the
    smaller one did says nothing.
    """
    this, that = success
    beyond = max(0.0, that - this) / (1.0 - this) if this < 1.0 else 1.0
    nested = left + (1.0 - left) * beyond
    return dependence * nested + (1.0 - dependence) * that
