"""Counters of the caches, in Redis hashes that an operator can read with redis-cli or `roundhouse cache stats`.

Counting is a local addition; whoever owns the counters flushes the sums once a second, so that the hot path never waits
for Redis. What cannot be written is kept for the next time.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections import Counter
from importlib import resources
from typing import cast

from redis.asyncio import Redis
from redis.exceptions import RedisError

from cache.keys import TENANTS_KEY, statistics_batch_key, statistics_key

log = logging.getLogger("roundhouse.cache")

RETENTION = 35 * 24 * 3600
"""Seconds the statistics of an hour are kept."""

COUNTERS = {
    "exact_hit": "answers served from the response cache",
    "exact_join": "answers served from another turn that was making the same one",
    "exact_miss": "look-ups that found nothing",
    "exact_takeover": "turns that waited for another one's answer and then had to make it themselves",
    "exact_store": "answers stored",
    "exact_evict": "answers pushed out by the caps on number and bytes",
    "semantic_hit": "answers to similar questions served",
    "semantic_miss": "look-ups that knew nothing similar",
    "semantic_store": "questions stored",
    "semantic_evict": "questions pushed out by the caps on their number",
    "semantic_quarantined": "checks after which an answer was in quarantine",
    "semantic_revoked": "answers that nobody is given for a similar question any more",
    "semantic_lost": "ended turns that were not learnt from, because too many ended at once",
    "tokens_saved": "output tokens that did not have to be generated",
    "prompt_tokens_saved": "prompt tokens that did not have to be computed because the whole answer was there",
    "microdollars_saved": "what those tokens would have cost, rounded down for each answer",
    "prefix_tokens_hit": "prompt tokens whose KV came from an engine's prefix cache",
    "prompt_tokens": "prompt tokens sent to engines",
}
"""Counter -> meaning."""

REASONS = {
    "exact_miss": "look-ups that found something that would not do",
    "exact_bypass": "requests that were not looked up",
    "exact_reject": "answers that were not stored",
    "semantic_bypass": "turns that did not look for similar questions",
    "semantic_reject": "look-ups whose similar questions differ in what matters",
    "semantic_explore": "look-ups whose stored answer is checked against a fresh one",
    "semantic_check": "fresh answers that said the same as the stored one, or not",
}
"""Counter -> meaning, followed by a point and a reason: see `cache.policy` and `cache.response.Lookup`."""


def meaning(counter: str) -> str:
    """Explain a counter for people."""
    kind, point, _ = counter.partition(".")
    return (REASONS.get(kind) if point else COUNTERS.get(counter)) or "not known to this version"


class CacheCounter:
    """Counts per tenant and hour in memory, until `flush` writes them."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis
        self._pending: dict[tuple[str, int], Counter[str]] = {}
        """Sums by tenant and hour since 1970."""
        self._writing: dict[tuple[str, int], Counter[str]] = {}
        """A batch that was sent and perhaps written: it is sent again under its number, which Redis takes once."""
        self._writer = secrets.token_hex(8)
        self._batch = 0
        self._flushing = asyncio.Lock()
        self._count = redis.register_script(resources.files("cache").joinpath("count.lua").read_text("utf-8"))

    def add(self, tenant: str, counter: str, amount: int = 1) -> None:
        """Add to a counter. Never waits, never fails."""
        place = tenant, int(time.time()) // 3600
        counters = self._pending.get(place)
        if counters is None:
            counters = self._pending[place] = Counter()
        counters[counter] += amount

    async def flush(self) -> None:
        """Write what was counted since the last flush. Never raises; what cannot be written waits for the next one."""
        async with self._flushing:  # two at once would drop a batch that only one of them has sent
            while self._writing or self._pending:
                if not self._writing:
                    self._writing, self._pending = self._pending, {}
                    self._batch += 1
                try:
                    await self._write()
                except (RedisError, OSError) as error:
                    log.warning("cache statistics not written", extra={"error": type(error).__name__})
                    # Only the newest hours are kept, so that a long outage does not fill the memory.
                    for place in sorted(self._pending, key=lambda place: place[1])[:-1000]:
                        del self._pending[place]
                    return
                self._writing = {}

    async def _write(self) -> None:
        by_tenant: dict[str, list[tuple[str, Counter[str]]]] = {}
        for (tenant, hour), counters in self._writing.items():
            by_tenant.setdefault(tenant, []).append((statistics_key(tenant, _named(3600 * hour)), counters))
        async with self._redis.pipeline(transaction=False) as pipeline:
            for tenant, hours in by_tenant.items():
                words: list[str | int] = [self._batch, RETENTION]
                for _, counters in hours:
                    words += [len(counters), *(word for pair in counters.items() for word in pair)]
                keys = [statistics_batch_key(tenant, self._writer), *(key for key, _ in hours)]
                await self._count(keys=keys, args=words, client=pipeline)
            pipeline.zadd(TENANTS_KEY, dict.fromkeys(by_tenant, int(time.time())))
            pipeline.expire(TENANTS_KEY, RETENTION)
            await pipeline.execute()


async def read(redis: Redis, *, hours: int = 24, tenant: str | None = None) -> dict[str, Counter[str]]:
    """Read the sums per tenant over the last hours (this one included).

    Raises:
        RedisError: the statistics cannot be read.
    """
    sums = {}
    for name in [tenant] if tenant else await _tenants(redis):
        sums[name] = Counter[str]()
        for counters in (await _read_hours(redis, name, hours)).values():
            sums[name].update(counters)
    return sums


async def read_by_hour(redis: Redis, *, hours: int = 24, tenant: str | None = None) -> dict[str, Counter[str]]:
    """Read the sums of each of the last hours (this one included) in which something was counted, the oldest first, by
    names such as `2026112214`: those of one tenant, or of all together.

    Raises:
        RedisError: the statistics cannot be read.
    """
    sums: dict[str, Counter[str]] = {}
    for name in [tenant] if tenant else await _tenants(redis):
        for hour, counters in (await _read_hours(redis, name, hours)).items():
            sums.setdefault(hour, Counter()).update(counters)
    return dict(sorted(sums.items()))


async def _tenants(redis: Redis) -> list[str]:
    return [name.decode() for name in cast("list[bytes]", await redis.zrange(TENANTS_KEY, 0, -1))]


async def _read_hours(redis: Redis, tenant: str, hours: int) -> dict[str, Counter[str]]:
    """Read the counters of those of the last hours that have any."""
    now = time.time()
    names = [_named(now - 3600 * hour) for hour in range(hours)]
    async with redis.pipeline(transaction=False) as pipeline:
        for name in names:
            pipeline.hgetall(statistics_key(tenant, name))
        found = await pipeline.execute()
    return {
        name: Counter({counter.decode(): int(amount) for counter, amount in fields.items()})
        for name, fields in zip(names, found, strict=True)
        if fields
    }


def _named(seconds: float) -> str:
    """Return the hour of a Unix time as keys name it."""
    return time.strftime("%Y%m%d%H", time.gmtime(seconds))
