"""Two weeks of turns as if they had been asked, for the pictures of what the console makes of them."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Iterator

from redis.asyncio import Redis

from gateway.billing.entry import LedgerEntry
from gateway.billing.store import LedgerStore, Numbered
from gateway.config.billing import PriceSettings, UsageSettings
from tests.e2e.conftest import NAMES

HOUR = 3_600_000
HOURS = 14 * 24
TIERS = {"small": 0.7, "large": 0.3}
TENANTS = {"demo": 0.35, "acme": 0.65}


def past_turns(now: int, prices: dict[str, PriceSettings]) -> Iterator[LedgerEntry]:
    """Turns of the hours before, by day more than by night, the oldest first; the same ones at each run.

    Args:
        now: in milliseconds since 1970.
        prices: by model.
    """
    dice = random.Random(14)
    for back in range(HOURS, 0, -1):
        busy = 9 + 7 * math.sin(math.tau * (back - 14) / 24)
        for number in range(round(busy * dice.uniform(0.7, 1.3))):
            yield past_turn(dice, f"resp_{back:03}{number:02}", now - back * HOUR + number * 60_000, prices)


def past_turn(dice: random.Random, turn: str, at: int, prices: dict[str, PriceSettings]) -> LedgerEntry:
    [tier] = dice.choices(list(TIERS), list(TIERS.values()))
    [tenant] = dice.choices(list(TENANTS), list(TENANTS.values()))
    price = prices[NAMES[tier]]
    hit = dice.random() < 0.2
    input, output = dice.randint(40, 600), dice.randint(20, 300)
    first = 1 if hit else round(dice.lognormvariate(4.8 if tier == "small" else 5.6, 0.4))
    return LedgerEntry(
        turn=turn,
        at=at,
        tenant=tenant,
        key="intranet",
        model=NAMES[tier],
        tier=tier,
        outcome="failed" if dice.random() < 0.005 else "completed",
        cache="hit" if hit else "miss",
        input=input,
        cached=0 if hit else round(input * dice.choice((0, 0, 0.3, 0.8))),
        output=output,
        # Micro-dollars per million tokens are picodollars per token.
        picodollars=0 if hit else input * price.input + output * price.output,
        milliseconds=first + (1 if hit else 8 * output),
        first_token_ms=first,
        queue_ms=None if hit else dice.randint(0, 20),
    )


async def write(address: str, prices: list[PriceSettings]) -> None:
    """Write these turns into the ledger. Args: address: of Redis."""
    turns = past_turns(time.time_ns() // 1_000_000, {price.name: price for price in prices})
    numbered = [Numbered(number, turn) for number, turn in enumerate(turns, 1)]
    async with Redis.from_url(address) as redis:
        await LedgerStore(redis, UsageSettings()).write("past", numbered)
