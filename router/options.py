"""What each tier came to when a tier was chosen, with the terms of the sum: for clients, people, and stored answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
from msgspec import Struct

from router.tier import TIERS, TierChoice, charges


class TierOption(Struct, frozen=True, array_like=True):
    """One tier as the choice saw it."""

    tier: str
    value: float
    """Value of the tier's answer, in probability of a good one."""
    cost: float
    """Price of cost, times the tier's expected cost."""
    queue: float
    """Price of delay, times the tokens that wait there."""
    total: float
    """Value less cost and queue: the highest total is chosen, of the tiers that are open."""
    chosen: bool
    """Whether the tier was chosen; another one may have stood in for it."""
    unavailable: str | None = None
    """What kept the tier from answering, as the end of a sentence about it; None if nothing did."""


Options = tuple[TierOption, ...]


def options(choice: TierChoice | None, unavailable: Mapping[str, str] = {}) -> Options:
    """Return what a choice compared; nothing if the request named its tier, as nothing was compared then.

    Args:
        unavailable: what kept tiers from answering that were open to the request.
    """
    if choice is None:
        return ()
    terms = choice.terms
    charged = charges(choice.outlook, terms)
    compared = zip(TIERS, choice.values, charged, choice.delays, choice.utilities, strict=True)
    return tuple(
        TierOption(
            tier=tier,
            value=value,
            cost=cost,
            queue=terms.delay_price * delay,
            total=total,
            chosen=tier == choice.tier,
            unavailable=_closed(choice, tier) or unavailable.get(tier),
        )
        for tier, value, cost, delay, total in compared
    )


def write_options(found: Sequence[TierOption]) -> str:
    """Return options as text, for a stored answer; empty if there are none."""
    return msgspec.json.encode(found).decode() if found else ""


def read_options(text: str) -> Options:
    """Return the options of a stored answer; none if another release has written them otherwise."""
    try:
        return msgspec.json.decode(text, type=Options) if text else ()
    except msgspec.MsgspecError:
        return ()


def _closed(choice: TierChoice, tier: str) -> str | None:
    """Return why a tier might not be chosen, whatever it came to."""
    if tier not in choice.offered:
        return "is not open to this request"
    if choice.floor is not None and TIERS.index(tier) < TIERS.index(choice.floor) and tier != choice.tier:
        return f"is below the {choice.floor} tier, which the conversation has used"
    return None
