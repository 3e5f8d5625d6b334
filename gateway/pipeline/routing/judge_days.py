"""What all gateways together had a judge do on each day of UTC, and what they may spend on it."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import cast

from msgspec import Struct
from redis.asyncio import Redis

SPENT = "rh1:judge-spent:{day}"
PAIRS = "rh1:judged-pairs:{day}"
DAYS = 7
"""Days that can be read."""
LIFETIME = (DAYS + 1) * 86_400
OPINIONS = ("preferred", "tie", "contradicted")
"""Outcomes of pairs that were judged; the others say why a pair was not."""


class JudgeDay(Struct, frozen=True, kw_only=True):
    """What a judge did on a day."""

    day: str
    """Such as 2026-11-26."""
    spent: int
    """Picodollars, with what is reserved for what it is asked at present."""
    pairs: dict[str, int]
    """Pairs of answers that were to be judged, by outcome."""


class JudgeDays:
    """Counts pairs in Redis, and picodollars: the most that work may cost before it begins, what it did cost later."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis

    async def reserve(self, most: int, limit: int) -> str | None:
        """Reserve the most that work may cost; return the day whose budget it is, or None if that has not enough left.

        Raises:
            RedisError, OSError: Redis does not answer.
        """
        day = _day()
        if await self._spend(day, most) > limit:
            await self._spend(day, -most)
            return None
        return day

    async def settle(self, day: str, most: int, spent: int) -> None:
        """Count what the work has cost in the place of what was reserved for it. Raises as `reserve`."""
        await self._spend(day, spent - most)

    async def count(self, pairs: Mapping[str, int]) -> None:
        """Count pairs of today. Raises as `reserve`. Args: pairs: their number by outcome."""
        key = PAIRS.format(day=_day())
        async with self._redis.pipeline(transaction=False) as pipeline:
            for outcome, number in pairs.items():
                pipeline.hincrby(key, outcome, number)
            pipeline.expire(key, LIFETIME)
            await pipeline.execute()

    async def _spend(self, day: str, amount: int) -> int:
        key = SPENT.format(day=day)
        async with self._redis.pipeline(transaction=False) as pipeline:
            pipeline.incrby(key, amount)
            pipeline.expire(key, LIFETIME)
            return cast("int", (await pipeline.execute())[0])


async def read_days(redis: Redis) -> list[JudgeDay]:
    """Return the last days, newest first.

    Raises:
        RedisError: Redis does not answer.
    """
    days = [_day(back) for back in range(DAYS)]
    async with redis.pipeline(transaction=False) as pipeline:
        for day in days:
            pipeline.get(SPENT.format(day=day))
            pipeline.hgetall(PAIRS.format(day=day))
        found = await pipeline.execute()
    return [
        JudgeDay(
            day=f"{day[:4]}-{day[4:6]}-{day[6:]}",
            spent=int(spent or 0),
            pairs={outcome.decode(): int(number) for outcome, number in pairs.items()},
        )
        for day, spent, pairs in zip(days, found[::2], found[1::2], strict=True)
    ]


def _day(back: int = 0) -> str:
    return (datetime.now(UTC) - timedelta(days=back)).strftime("%Y%m%d")
