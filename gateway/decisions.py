"""The log of tier decisions: a capped stream per tenant in Redis, written once a second beside the turns.

An entry holds what a decision was made from and what came of it, so that it can be made again offline and learnt from:
features (counts and shares), probabilities, prices, the propensity, the model's version. Nothing a client has written.
What Redis does not take is tried again; beyond `MAX_WAITING` entries the oldest are dropped.
"""

from __future__ import annotations

import logging
from collections import deque
from typing import cast

import msgspec
from msgspec import Struct
from redis.asyncio import Redis
from redis.exceptions import RedisError

from router.tier import Choice, again

log = logging.getLogger("roundhouse.decisions")

KEY = "rh1:route-log:{{{tenant}}}"
RETENTION = 35 * 24 * 3600
"""Seconds after the last entry."""
MAX_WAITING = 10_000


class LoggedDecision(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One decision, and who answered in the end."""

    response: str
    """Id of the response."""
    at: int
    """Unix time of its end in ms."""
    choice: Choice
    features: dict[str, float]
    """Of `router.features.Features`, those that are not 0."""
    model: str
    """Version of the model of success; empty: it was off."""
    tier: str
    """That answered: another one than was chosen if that was down or too small."""
    input_tokens: int
    output_tokens: int
    outcome: str
    """How the turn ended."""

    @property
    def reproducible(self) -> bool:
        """Whether the same is decided again."""
        return again(self.choice) == self.choice


class DecisionLog:
    """Collects entries and writes them."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis
        self._waiting: deque[tuple[str, int, bytes]] = deque(maxlen=MAX_WAITING)

    def add(self, tenant: str, entry: LoggedDecision, *, keep: int) -> None:
        """Write it with the next flush. Args: keep: entries of the tenant that are kept (about)."""
        self._waiting.append((tenant, keep, msgspec.json.encode(entry)))

    async def flush(self) -> None:
        """Write what was added since the last flush."""
        waiting, self._waiting = self._waiting, deque(maxlen=MAX_WAITING)
        if not waiting:
            return
        try:
            async with self._redis.pipeline(transaction=False) as pipeline:
                for tenant, keep, entry in waiting:
                    pipeline.xadd(KEY.format(tenant=tenant), {"decision": entry}, maxlen=keep, approximate=True)
                for tenant in {tenant for tenant, _, _ in waiting}:
                    pipeline.expire(KEY.format(tenant=tenant), RETENTION)
                await pipeline.execute()
        except (RedisError, OSError) as error:
            log.warning("decisions not written", extra={"error": type(error).__name__})
            waiting.extend(self._waiting)
            self._waiting = waiting


async def read(redis: Redis, tenant: str, count: int) -> list[LoggedDecision]:
    """The newest entries of a tenant, newest first.

    Raises:
        RedisError: Redis does not answer.
        ValueError: somebody has written something else there.
    """
    found = cast(
        "list[tuple[bytes, dict[bytes, bytes]]]", await redis.xrevrange(KEY.format(tenant=tenant), count=count)
    )
    return [msgspec.json.decode(fields[b"decision"], type=LoggedDecision) for _, fields in found]
