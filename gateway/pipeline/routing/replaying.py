"""Sums logged decisions by tier and reason, and makes them again at another position of the quality knob. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from msgspec import Struct

from gateway.billing.cost import TokenPrices, microdollars, picodollars
from gateway.pipeline.routing.decisions import LoggedDecision
from router.tier import TIERS, TierChoice, reasons

AtQuality = Callable[[TierChoice], str]
"""Makes a choice again at another position of the quality knob, and returns the tier."""


class TierShare(Struct, frozen=True, kw_only=True):
    """Decisions for one tier."""

    tier: str
    decisions: int
    share: float
    input_tokens: int
    output_tokens: int
    cost_microdollars: int | None
    """Present price of these tokens, with nothing found in prefix caches; null if the tier's model has none."""


class Replay(Struct, frozen=True, kw_only=True):
    """Logged decisions together, and the same at another position of the knob."""

    decisions: int
    since: int | None
    """Time of the oldest, in milliseconds since 1970; null if there are none."""
    until: int | None
    reasons: dict[str, int]
    """Decisions by kind of reason; one may have several."""
    answered: list[TierShare]
    """By the tier that answered."""
    otherwise: list[TierShare] | None
    """By the tier that the other position would have chosen, for the same tokens; null unless one was given."""
    changed: int | None
    """Decisions for which that is another tier than the one that answered; null unless one was given."""


def replay(
    decisions: Sequence[LoggedDecision], otherwise: AtQuality | None, prices: Mapping[str, TokenPrices]
) -> Replay:
    """Sum decisions, newest first, and make them again.

    Args:
        otherwise: how they are made again; None: they are not.
        prices: of tokens, by tier.
    """
    answered = [each.tier for each in decisions]
    changed = [otherwise(each.choice) for each in decisions] if otherwise else None
    return Replay(
        decisions=len(decisions),
        since=decisions[-1].at if decisions else None,
        until=decisions[0].at if decisions else None,
        reasons=dict(Counter(kind for each in decisions for kind in reasons(each.choice))),
        answered=_shares(decisions, answered, prices),
        otherwise=None if changed is None else _shares(decisions, changed, prices),
        changed=None if changed is None else sum(map(str.__ne__, answered, changed)),
    )


def _shares(
    decisions: Sequence[LoggedDecision], tiers: Sequence[str], prices: Mapping[str, TokenPrices]
) -> list[TierShare]:
    """Sum decisions by tier. Args: tiers: one for each decision."""
    found = []
    for tier in TIERS:
        own = [each for each, chosen in zip(decisions, tiers, strict=True) if chosen == tier]
        if not own:
            continue
        read, written = sum(each.input_tokens for each in own), sum(each.output_tokens for each in own)
        price = prices.get(tier)
        found.append(
            TierShare(
                tier=tier,
                decisions=len(own),
                share=len(own) / len(decisions),
                input_tokens=read,
                output_tokens=written,
                cost_microdollars=None if price is None else microdollars(picodollars(price, read, 0, written)),
            )
        )
    return found
