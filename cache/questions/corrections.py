"""Corrections by people of answers that were given to similar questions: an operator revokes one, a user dislikes it.

An answer is named by its digest in the exact cache, or by a response that it was given in: which that was is kept for
a day.
"""

from __future__ import annotations

import logging
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import RedisError

from cache.semantic.entry import EntryState
from cache.semantic.keys import answer_key, given_key
from cache.statistics import CacheCounter

log = logging.getLogger("roundhouse.cache")

GIVEN_LIFE = 24 * 3600
"""Seconds for which the answer that a response was given is remembered."""
_CORRECT = """
local state = redis.call('HGET', KEYS[1], 'state')
if not state or state == ARGV[1] or state == 'revoked' then
    return state and 0 or -1
end
redis.call('HSET', KEYS[1], 'state', ARGV[1])
-- What spoke for it counts no more: it has to be found right anew.
redis.call('HDEL', KEYS[1], 'observations', 'offset', 'support')
redis.call('HINCRBY', KEYS[1], 'version', 1)
return 1
"""


class Corrections:
    """Revokes and doubts answers of all tenants.

    Args:
        redis: a client with `decode_responses=False`.
    """

    def __init__(self, redis: Redis) -> None:
        self._redis = redis
        self._correct = redis.register_script(_CORRECT)

    async def note(self, tenant: str, response: str, answer: str) -> None:
        """Remember that a response was answered with this answer. Never raises: at worst nobody can name it by its
        response."""
        try:
            await self._redis.set(given_key(tenant, response), answer, ex=GIVEN_LIFE)
        except (RedisError, OSError) as error:
            log.warning("a similar answer was given unnoted", extra={"error": type(error).__name__})

    async def revoke(self, tenant: str, named: str) -> bool:
        """Stop giving this answer to other questions, on every gateway, from now on; return whether it was known.

        Args:
            named: the answer's digest, or a response's id.

        Raises:
            RedisError: it could not be done.
        """
        return await self._change(tenant, named, EntryState.REVOKED)

    async def doubt(self, tenant: str, response: str) -> bool:
        """Record that a user dislikes a response: if a similar question's answer was given, no other question gets it
        until fresh checks have found it right. Return whether one was.

        Raises:
            RedisError: it could not be done.
        """
        return await self._change(tenant, response, EntryState.QUARANTINED)

    async def _change(self, tenant: str, named: str, state: EntryState) -> bool:
        answer = named
        if named.startswith("resp_"):
            given: Any = await self._redis.get(given_key(tenant, named))
            if given is None:
                return False
            answer = given.decode()
        changed = int(await self._correct(keys=[answer_key(tenant, answer)], args=[str(state)]))
        if changed > 0:
            statistics = CacheCounter(self._redis)
            statistics.add(tenant, f"semantic_{state}")
            await statistics.flush()
        return changed >= 0
