"""Reads where the limits of tenants stand, without counting anything: for people who look at them."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import cast

from msgspec import Struct
from redis.asyncio import Redis

from gateway.limits.counters import Counters, Gauge, bounds_of
from gateway.limits.script import STATE_KEY
from gateway.records.quota import LimitSubject

_HELD = {
    "input_tokens_per_minute": "held_input",
    "output_tokens_per_minute": "held_output",
    "spend_per_day": "held_spend",
    "spend_per_month": "held_spend",
}
"""Limits of which running turns hold a part until they end -> field of `Counters`."""


class LimitStanding(Struct, frozen=True, kw_only=True):
    """One limit of one subject, in tokens, requests, turns, sockets or micro-dollars."""

    subject: str
    """`tenant`, or a kind and a name, such as `key:ci` or `model:llama-7b`."""
    limit: str
    """Name of the quota's field."""
    most: int
    """What may be used; of a rate, at once."""
    used: int
    held: int
    """What running turns have reserved beside it."""
    left: int
    reset_seconds: float | None
    """Seconds until nothing is used any more; null where only the end of a turn or socket helps."""
    warning: bool
    """Whether so much is used that clients are warned."""


async def standings(
    redis: Redis, subjects: Mapping[str, Sequence[LimitSubject]], soft: float
) -> dict[str, list[LimitStanding]]:
    """Return the limits of tenants' subjects as they are now.

    Args:
        subjects: by tenant.
        soft: share of a limit from which clients are warned.

    Raises:
        RedisError: the counters cannot be read.
    """
    asked = {tenant: those for tenant, those in subjects.items() if those}
    async with redis.pipeline(transaction=False) as pipeline:
        for tenant, those in asked.items():
            pipeline.hmget(STATE_KEY.format(tenant=tenant), [subject.name for subject in those])
        found = cast("list[list[bytes | None]]", await pipeline.execute())
    now = int(1000 * time.time())
    return {
        tenant: [
            each for subject, text in zip(those, texts, strict=True) for each in _of_subject(subject, text, now, soft)
        ]
        for (tenant, those), texts in zip(asked.items(), found, strict=True)
    }


def _of_subject(subject: LimitSubject, text: bytes | None, now: int, soft: float) -> Iterator[LimitStanding]:
    bounds = bounds_of(subject.quota)
    counters = Counters() if text is None else Counters.decode(text)
    counters.advance(bounds, now)
    for gauge in counters.gauges(bounds):
        yield _standing(subject.name, gauge, counters, soft)


def _standing(subject: str, gauge: Gauge, counters: Counters, soft: float) -> LimitStanding:
    held = getattr(counters, _HELD[gauge.name]) if gauge.name in _HELD else 0
    return LimitStanding(
        subject=subject,
        limit=gauge.name,
        most=gauge.limit,
        used=gauge.used - held,
        held=held,
        left=gauge.remaining,
        reset_seconds=None if gauge.name in ("concurrent_turns", "open_sockets") else gauge.milliseconds / 1000,
        warning=gauge.used >= soft * gauge.limit,
    )
