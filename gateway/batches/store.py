"""Keeps batches in Redis, with their results and the queue of those that have not ended.

A batch is changed by comparing and swapping its document. Results are fields of the hashes that become its files, so
that the end of a batch copies nothing, and each line is written once (`result.lua`). Methods raise RedisError and
OSError where Redis does not answer.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from importlib import resources
from typing import Any, cast

import msgspec
from redis.asyncio import Redis

from gateway.batches.files import DESCRIPTION, FILE_BYTES_KEY, FileStore, StoredFile, file_key
from gateway.batches.state import BatchDocument, BatchProgress, BatchStatus
from gateway.config.batches import BatchSettings
from gateway.errors import ApiError, RateLimited
from gateway.protocol.stream import TokenUsage
from gateway.storage.seal import BrokenSeal, Seal
from gateway.turns.creations import Creations

log = logging.getLogger("roundhouse.batches")

BATCH_KEY = "rh1:batch:{{{tenant}}}:{id}"
BATCH_INDEX_KEY = "rh1:batch-index:{{{tenant}}}"
BATCH_ONCE_KEY = "rh1:batch-once:{{{tenant}}}:{digest}"
QUEUE_KEY = "rh1:{batches}:queue"
MOST = 1000
"""Most batches of a tenant that are listed; the oldest go first."""
LEASE = 15.0
"""Seconds after which another gateway takes up the batches of one that does not renew its leases."""

_COUNTS = ("completed", "failed", "input_tokens", "cached_tokens", "output_tokens")
_decode = msgspec.msgpack.Decoder(BatchDocument).decode

_SWAP = """
if redis.call('HGET', KEYS[1], 'doc') ~= ARGV[1] then return 0 end
redis.call('HSET', KEYS[1], 'doc', ARGV[2])
return 1
"""
_ADD = """
if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 1 then return 1 end
local count = 0
for _, name in ipairs(redis.call('HKEYS', KEYS[1])) do
  if string.sub(name, 1, #ARGV[2]) == ARGV[2] then count = count + 1 end
end
if count >= tonumber(ARGV[3]) then return 0 end
return redis.call('HSETNX', KEYS[1], ARGV[1], '0 ')
"""
_RELEASE = """
local queue = redis.call('HGETALL', KEYS[1])
for i = 1, #queue, 2 do
  if string.match(queue[i + 1], ' (.*)$') == ARGV[1] then redis.call('HSET', KEYS[1], queue[i], '0 ') end
end
"""


def _script(name: str) -> str:
    return resources.files("gateway.batches").joinpath(name).read_text("utf-8")


class BatchQueue:
    """The batches that have not ended, by tenant and id, each with the gateway that runs it."""

    def __init__(self, redis: Redis, *, max_per_tenant: int) -> None:
        self._redis = redis
        self._max_per_tenant = max_per_tenant
        self._add = redis.register_script(_ADD)
        self._claim = redis.register_script(_script("claim.lua"))
        self._release = redis.register_script(_RELEASE)

    async def add(self, tenant: str, id: str) -> None:
        """Queue a batch.

        Raises:
            RateLimited: the tenant has too many.
        """
        if not await self._add(keys=[QUEUE_KEY], args=[f"{tenant}/{id}", f"{tenant}/", self._max_per_tenant]):
            raise RateLimited(
                f"{self._max_per_tenant} batches of this tenant have not ended; wait for one, or cancel it",
                retry_after=60,
                code="too_many_batches",
            )

    async def claim(self, gateway: str, most: int) -> set[tuple[str, str]]:
        """Claim batches for a gateway, and renew its leases; return tenant and id of those that are its own."""
        args: list[str | int] = [gateway, int(1000 * LEASE), most]
        names = cast("list[bytes]", await self._claim(keys=[QUEUE_KEY], args=args))
        pairs = (name.decode().split("/") for name in names)
        return {(tenant, id) for tenant, id in pairs}

    async def release(self, gateway: str) -> None:
        """End all leases of a gateway."""
        await self._release(keys=[QUEUE_KEY], args=[gateway])

    async def remove(self, tenant: str, id: str) -> None:
        """Remove a batch that has ended."""
        await cast(Any, self._redis.hdel(QUEUE_KEY, f"{tenant}/{id}"))


class BatchStore:
    """All batches, with their queue and files."""

    def __init__(self, redis: Redis, secret: bytes, settings: BatchSettings) -> None:
        """Args: redis: a client with time enough for pieces of files."""
        self._redis = redis
        self._seal = seal = Seal(secret)
        self._creations = Creations(redis, secret, settings.ttl, BATCH_ONCE_KEY)
        self._ttl = settings.ttl
        self._swap = redis.register_script(_SWAP)
        self._record = redis.register_script(_script("result.lua"))
        self.files = FileStore(redis, seal, settings)
        self.queue = BatchQueue(redis, max_per_tenant=settings.max_unfinished_per_tenant)

    async def create(self, batch: BatchDocument, once: str | None = None) -> BatchDocument:
        """Queue and store a new batch; return it, or the one that this idempotency key has made.

        Args:
            once: the key.

        Raises:
            RateLimited: the tenant has too many that have not ended.
            Conflict: it has too many files, or bytes in files, for the results; or the key was used for another batch.
            InvalidRequest: the key cannot be one.
        """
        if once is None:
            await self._create(batch)
            return batch
        asked = (batch.endpoint, batch.input_file_id, batch.metadata, batch.output_seconds)
        claim = self._creations.claim(batch.principal, once, asked)
        existing = await self._creations.take(claim, batch.id)
        if existing is None:
            try:
                await self._create(batch)
            except ApiError:
                await self._creations.release(claim, batch.id)
                raise
            return batch
        if (found := await self.get(batch.principal.tenant, existing)) is not None:
            return found
        # Whoever was to make it is not done with it, or never will be.
        await self._create(msgspec.structs.replace(batch, id=existing))
        return await self.get(batch.principal.tenant, existing) or batch

    async def _create(self, batch: BatchDocument) -> None:
        """Queue a batch, then store it, so that none is stored that no gateway takes up; they wait for its document."""
        tenant = batch.principal.tenant
        await self.files.check_room(tenant)
        await self.queue.add(tenant, batch.id)
        key, index = BATCH_KEY.format(tenant=tenant, id=batch.id), BATCH_INDEX_KEY.format(tenant=tenant)
        async with self._redis.pipeline(transaction=True) as pipeline:
            pipeline.hsetnx(key, "doc", self._sealed(batch))
            pipeline.expire(key, self._ttl)
            pipeline.zadd(index, {batch.id: batch.created_at})
            pipeline.zremrangebyrank(index, 0, -MOST - 1)
            pipeline.expire(index, self._ttl)
            await pipeline.execute()

    async def get(self, tenant: str, id: str) -> BatchDocument | None:
        """Read a batch."""
        found = await self._read(tenant, id)
        return None if found is None else found[0]

    async def page(self, tenant: str, after: str | None, limit: int) -> tuple[list[BatchDocument], bool] | None:
        """Read batches of a tenant, the newest first, and whether there are more; None: `after` is none of them."""
        index, begin = BATCH_INDEX_KEY.format(tenant=tenant), 0
        if after is not None:
            rank = await cast(Any, self._redis.zrevrank(index, after))
            if rank is None:
                return None
            begin = rank + 1
        ids = [id.decode() for id in await cast(Any, self._redis.zrevrange(index, begin, begin + limit))]
        found = await asyncio.gather(*(self.get(tenant, id) for id in ids[:limit]))
        return [batch for batch in found if batch is not None], len(ids) > limit

    async def move(self, batch: BatchDocument, status: BatchStatus, now: float, **fields: Any) -> bool:
        """Give a batch its next status, unless it has another one than `batch` meanwhile; return whether it has it."""
        tenant = batch.principal.tenant
        while (found := await self._read(tenant, batch.id)) is not None:
            current, sealed = found
            if current.status is not batch.status:
                return False
            moved = self._sealed(current.enter(status, int(now), **fields))
            if await self._swap(keys=[BATCH_KEY.format(tenant=tenant, id=batch.id)], args=[sealed, moved]):
                return True
        return False

    async def written(self, batch: BatchDocument) -> set[int]:
        """Return the numbers of the lines that have a result."""
        tenant = batch.principal.tenant
        async with self._redis.pipeline(transaction=False) as pipeline:
            for id in (batch.output_file_id, batch.error_file_id):
                pipeline.hkeys(file_key(tenant, id))
            answers, errors = await pipeline.execute()
        return {int(field) for field in (*answers, *errors) if field != DESCRIPTION.encode()}

    async def record(self, batch: BatchDocument, line: int, text: bytes, usage: TokenUsage, *, failed: bool) -> bool:
        """Write the result of a line; return whether it is the first one."""
        tenant, ids = batch.principal.tenant, (batch.output_file_id, batch.error_file_id)
        id, other = reversed(ids) if failed else ids
        keys = [
            BATCH_KEY.format(tenant=tenant, id=batch.id),
            file_key(tenant, id),
            file_key(tenant, other),
            FILE_BYTES_KEY.format(tenant=tenant),
        ]
        sealed, outcome = self.files.sealed(tenant, id, line, text), "failed" if failed else "completed"
        tokens = (usage.input_tokens, usage.cached_tokens, usage.output_tokens)
        args = (line, sealed, len(text), 1000 * self._ttl, id, outcome, *tokens)
        return bool(await self._record(keys=keys, args=args))

    async def close(self, batch: BatchDocument, now: float) -> tuple[int, int]:
        """Complete the files of results; return the number of answers and of errors. Doing it again does no harm."""
        tenant, ids = batch.principal.tenant, (batch.output_file_id, batch.error_file_id)
        async with self._redis.pipeline(transaction=False) as pipeline:
            pipeline.hmget(FILE_BYTES_KEY.format(tenant=tenant), list(ids))
            for id in ids:
                pipeline.hlen(file_key(tenant, id))
                pipeline.hexists(file_key(tenant, id), DESCRIPTION)
            sizes, *lengths = await pipeline.execute()
        counts = [length - described for length, described in zip(lengths[::2], lengths[1::2], strict=True)]
        seconds = batch.output_seconds or self._ttl
        async with self._redis.pipeline(transaction=True) as pipeline:
            for id, name, size, count in zip(ids, ("output", "errors"), sizes, counts, strict=True):
                if count:
                    file = _results(batch, id, name, int(size or 0), int(now), seconds)
                    pipeline.hset(file_key(tenant, id), DESCRIPTION, self.files.described(tenant, file))
                    pipeline.expire(file_key(tenant, id), seconds)
            await pipeline.execute()
        return counts[0], counts[1]

    async def _read(self, tenant: str, id: str) -> tuple[BatchDocument, bytes] | None:
        """Read a batch and its sealed document."""
        key = BATCH_KEY.format(tenant=tenant, id=id)
        sealed, *counts = cast("Sequence[bytes | None]", await cast(Any, self._redis.hmget(key, ["doc", *_COUNTS])))
        if sealed is None:
            return None
        try:
            batch = _decode(self._seal.open(sealed, key))
        except BrokenSeal:
            log.warning("a batch cannot be read", extra={"batch_id": id})
            return None
        completed, failed, *tokens = (int(count or 0) for count in counts)
        completed, failed = batch.counted or (completed, failed)
        return msgspec.structs.replace(batch, progress=BatchProgress(completed, failed, *tokens)), sealed

    def _sealed(self, batch: BatchDocument) -> bytes:
        key = BATCH_KEY.format(tenant=batch.principal.tenant, id=batch.id)
        return self._seal.seal(msgspec.msgpack.encode(batch), key)


def _results(batch: BatchDocument, id: str, name: str, size: int, now: int, seconds: int) -> StoredFile:
    return StoredFile(
        id=id,
        filename=f"{batch.id}_{name}.jsonl",
        purpose="batch_output",
        bytes=size,
        created_at=now,
        expires_at=now + seconds,
        pieces=batch.lines + 1,
    )
