"""Learns how long answers of a tenant and model usually are, for the mode `expected`.

Lengths are counted in buckets that grow by a fifth, in Redis, where all gateways add to them; today's and yesterday's
count. Nothing of this waits in a turn's way: what is learnt is written, and read again, in the background.
"""

from __future__ import annotations

import math
import time
from bisect import bisect_left
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping

from redis.asyncio import Redis

KEY = "rh1:limit-output:{{{tenant}}}:{day}"
ENOUGH = 100
"""Least number of answers from which a length is derived."""
EDGES = [math.ceil(2 ** (step / 4)) for step in range(81)]
"""Upper ends of the buckets, up to a million tokens."""
MAX_PAIRS = 10_000
"""Pairs of tenant and model that one process knows."""
_LIFETIME = 2 * 86_400


def bucket(tokens: int) -> int:
    """Return the bucket of a length."""
    return min(bisect_left(EDGES, tokens), len(EDGES) - 1)


def quantile(counts: Mapping[int, int], part: float) -> int | None:
    """Return a length that at least `part` of the answers do not exceed, from counts by bucket; None if too few are
    known."""
    total = sum(counts.values())
    if total < ENOUGH:
        return None
    seen = 0
    for index in sorted(counts):
        seen += counts[index]
        if seen >= part * total:
            return EDGES[index]
    raise AssertionError("a part is at most 1")


class Expectations:
    """Lengths of answers that this gateway knows."""

    def __init__(self, redis: Redis, *, clock: Callable[[], float] = time.time) -> None:
        """Args: clock: seconds since 1970."""
        self._redis = redis
        self._clock = clock
        self._known: OrderedDict[tuple[str, str], Counter[int]] = OrderedDict()
        self._news: dict[tuple[str, str], Counter[int]] = {}
        self._asked: set[str] = set()
        """Tenants for which the lengths learnt by other gateways must be read."""

    @property
    def waiting(self) -> bool:
        """Whether `exchange` has something to do."""
        return bool(self._news or self._asked)

    def observe(self, tenant: str, model: str, tokens: int) -> None:
        """Record an answer of so many tokens."""
        if (tenant, model) in self._news or len(self._news) < MAX_PAIRS:
            self._news.setdefault((tenant, model), Counter())[bucket(tokens)] += 1

    def expected(self, tenant: str, model: str, part: float) -> int | None:
        """Return the tokens that `part` of the answers do not exceed; None if little is known."""
        self._asked.add(tenant)
        pair = (tenant, model)
        return quantile(self._known.get(pair, Counter()) + self._news.get(pair, Counter()), part)

    async def exchange(self) -> None:
        """Write what was learnt here to Redis, and read what was learnt anywhere.

        Raises:
            RedisError, OSError: Redis does not answer; nothing is forgotten.
        """
        now = self._clock()
        days = [time.strftime("%Y%m%d", time.gmtime(at)) for at in (now, now - 86_400)]
        news, tenants = self._news, self._asked | {tenant for tenant, _ in self._news}
        self._news, self._asked = {}, set()
        order = sorted(tenants)
        try:
            async with self._redis.pipeline(transaction=False) as pipeline:
                for (tenant, model), counts in news.items():
                    key = KEY.format(tenant=tenant, day=days[0])
                    for index, count in counts.items():
                        pipeline.hincrby(key, f"{index}:{model}", count)
                    pipeline.expire(key, _LIFETIME)
                for tenant in order:
                    for day in days:
                        pipeline.hgetall(KEY.format(tenant=tenant, day=day))
                replies = await pipeline.execute()
        except BaseException:
            for pair, counts in news.items():
                self._news.setdefault(pair, Counter()).update(counts)
            self._asked |= tenants
            raise
        found = replies[len(replies) - 2 * len(order) :]
        for index, tenant in enumerate(order):
            learnt: dict[str, Counter[int]] = {}
            for reply in found[2 * index : 2 * index + 2]:
                for field, count in reply.items():
                    position, _, model = field.decode().partition(":")
                    learnt.setdefault(model, Counter())[int(position)] += int(count)
            for model, counts in learnt.items():
                self._known[tenant, model] = counts
                self._known.move_to_end((tenant, model))
        while len(self._known) > MAX_PAIRS:
            self._known.popitem(last=False)
