"""Stores findings in Redis: per tenant a capped stream of rules, actions and digests, never of texts.

They are written in the background. While Redis is down, findings are lost and counted; turns do not wait.
"""

from __future__ import annotations

import logging
from collections import deque

from msgspec import Struct
from redis.asyncio import Redis
from redis.exceptions import RedisError

from gateway.safety.hook import Finding

log = logging.getLogger("roundhouse.safety")

KEY = "rh1:safety:{{{tenant}}}"
"""STREAM: a tenant's findings."""
MAX_FINDINGS = 10_000
"""Number of findings kept per tenant, approximately; the oldest go first."""
LIFE = 30 * 24 * 3600
"""Seconds after the newest finding at which all of a tenant's are forgotten."""
MAX_WAITING = 5_000
_BATCH = 200


class Violation(Struct, frozen=True):
    """A finding, and the turn in which it was made."""

    finding: Finding
    tenant: str
    key: str
    response_id: str


class Violations:
    """Writes findings to Redis."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis
        self._waiting: deque[Violation] = deque()
        self.lost = 0
        """Number of findings that could not be written."""

    def add(self, violation: Violation) -> None:
        """Queue a finding for the next `flush`."""
        if len(self._waiting) >= MAX_WAITING:
            self.lost += 1
            return
        self._waiting.append(violation)

    async def flush(self) -> None:
        """Write queued findings. Never raises."""
        while self._waiting:
            await self._write([self._waiting.popleft() for _ in range(min(_BATCH, len(self._waiting)))])

    async def _write(self, batch: list[Violation]) -> None:
        try:
            async with self._redis.pipeline(transaction=False) as pipeline:
                for violation in batch:
                    key = KEY.format(tenant=violation.tenant)
                    fields: dict[str | bytes, str | bytes] = {
                        "rule": violation.finding.rule,
                        "action": violation.finding.action,
                        "direction": violation.finding.direction,
                        "digest": violation.finding.digest,
                        "key": violation.key,
                        "response": violation.response_id,
                    }
                    pipeline.xadd(key, fields, maxlen=MAX_FINDINGS, approximate=True)  # type: ignore[arg-type]
                for tenant in {violation.tenant for violation in batch}:
                    pipeline.expire(KEY.format(tenant=tenant), LIFE)
                await pipeline.execute()
        except (RedisError, OSError) as error:
            self.lost += len(batch)
            log.warning("findings could not be written", extra={"error": type(error).__name__, "lost": self.lost})
