"""The exact response cache: the same request from the same tenant gets the same answer without a model.

Redis is the truth and readable with redis-cli: every answer is a HASH with plain fields and a time to live. A Redis
that is down or slow is a miss, never an error.
"""

from __future__ import annotations

import logging
from importlib import resources

import msgspec
from msgspec import Struct
from redis.asyncio import Redis
from redis.exceptions import RedisError

from cache.keys import epoch_key, index_key, response_key

log = logging.getLogger("roundhouse.cache")

FORMAT = "1"
"""Of an entry's fields; entries of another format are misses."""


class Entry(Struct, frozen=True, kw_only=True):
    """A stored answer."""

    text: str
    model: str
    """Public name of the model that answered."""
    tier: str
    input_tokens: int
    output_tokens: int
    created: float
    """Seconds since the epoch."""


class Lookup(Struct, frozen=True):
    """What a look-up found. `epoch` goes back into `put`, so that an invalidation in between wins."""

    entry: Entry | None
    epoch: str = "0"


class ResponseCache:
    """Stored answers of all tenants, each in keys of its own.

    Args:
        redis: a client with `decode_responses=False`, whose timeouts bound what a look-up may cost.
        ttl: seconds an answer lives.
        max_entries: answers kept per tenant.
    """

    def __init__(self, redis: Redis, *, ttl: float, max_entries: int) -> None:
        self._redis = redis
        self._ttl = ttl
        self._max_entries = max_entries
        scripts = resources.files("cache")
        self._look_up = redis.register_script(scripts.joinpath("look_up.lua").read_text("utf-8"))
        self._store = redis.register_script(scripts.joinpath("store.lua").read_text("utf-8"))

    def configure(self, *, ttl: float, max_entries: int) -> None:
        """Store by other bounds from now on."""
        self._ttl = ttl
        self._max_entries = max_entries

    async def get(self, tenant: str, digest: str) -> Lookup:
        """The stored answer for a request, if there is one that can be read."""
        try:
            epoch, flat = await self._look_up(keys=[epoch_key(tenant), response_key(tenant, digest)])
        except (RedisError, OSError) as error:
            log.warning("response cache look-up failed", extra={"error": type(error).__name__})
            return Lookup(None)
        current = (epoch or b"0").decode()
        return Lookup(_decode(dict(zip(flat[::2], flat[1::2], strict=True)), current), current)

    async def put(self, tenant: str, digest: str, entry: Entry, *, epoch: str) -> int:
        """Store an answer; returns how many old ones it pushed out. Nothing is stored if `epoch` is past."""
        fields = {"format": FORMAT, "epoch": epoch, **msgspec.to_builtins(entry)}
        arguments = [part for name, value in fields.items() for part in (name, str(value))]
        prefix = response_key(tenant, "")
        try:
            evicted = await self._store(
                keys=[response_key(tenant, digest), index_key(tenant), epoch_key(tenant)],
                args=[digest, int(self._ttl * 1000), self._max_entries, prefix, epoch, *arguments],
            )
        except (RedisError, OSError) as error:
            log.warning("response cache store failed", extra={"error": type(error).__name__})
            return 0
        return max(int(evicted), 0)

    async def invalidate(self, tenant: str) -> None:
        """Forget all answers of a tenant, at once and on every gateway.

        Raises:
            RedisError: it could not be done; unlike a look-up, the caller must know.
        """
        async with self._redis.pipeline(transaction=True) as pipeline:
            pipeline.incr(epoch_key(tenant))
            # It may go once every answer stored before it has expired.
            pipeline.pexpire(epoch_key(tenant), int(self._ttl * 2000))
            await pipeline.execute()


def _decode(fields: dict[bytes, bytes], epoch: str) -> Entry | None:
    try:
        text = {name.decode(): value.decode() for name, value in fields.items()}
        if text.pop("format", None) != FORMAT or text.pop("epoch", None) != epoch:
            return None
        return msgspec.convert(text, Entry, strict=False)
    except (UnicodeDecodeError, msgspec.ValidationError):
        # Written by something else: as good as absent.
        return None
