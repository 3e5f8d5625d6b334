"""Finds embeddings of questions: in this process, in Redis, else by the embedder.

Whatever its source, an embedding has been rounded to 16 bits, so that the same question always has the same one. Redis
holds keyed digests of texts, never a text. What cannot be had in time is None.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
from collections import Counter, OrderedDict
from collections.abc import Callable
from importlib import resources
from time import monotonic
from typing import Any

import numpy as np
from numpy.typing import NDArray
from redis.asyncio import Redis
from redis.exceptions import RedisError

from cache.embedding.client import EmbedderClient, EmbedRefused
from cache.embedding.wire import EmbedderInfo
from cache.semantic.keys import embedding_key, embeddings_key

Vector = NDArray[np.float32]

log = logging.getLogger("roundhouse.cache")

MAX_WRITING = 256
"""Most writes to Redis under way; further ones are dropped."""


class Embeddings:
    """Embeddings of single questions, for turns that wait for them.

    Args:
        ttl: seconds Redis keeps one.
        max_bytes: of one tenant's embeddings in Redis; the oldest go first.
        capacity: how many this process keeps; one takes about a kilobyte.
        on_fault: called while an exception that nobody expected is being handled; the embedding is then not stored.
    """

    def __init__(
        self,
        client: EmbedderClient,
        redis: Redis,
        *,
        ttl: float = 86_400,
        max_bytes: int = 2**24,
        capacity: int = 4096,
        on_fault: Callable[[], None] = lambda: log.exception("a fault of ours"),
    ) -> None:
        self._client = client
        self._redis = redis
        self._ttl = int(1000 * ttl)
        self._max_bytes = max_bytes
        self._keep = redis.register_script(resources.files("cache.embedding").joinpath("keep.lua").read_text("utf-8"))
        self._on_fault = on_fault
        self._capacity = capacity
        self._near: OrderedDict[tuple[str, str], Vector] = OrderedDict()
        self._writing: set[asyncio.Task[None]] = set()
        self.sources: Counter[str] = Counter()
        """How many embeddings came from `process`, `redis` and `embedder`, and how many from `none`."""

    @property
    def hello(self) -> EmbedderInfo | None:
        """Description of the embedder; None while it is not known. Embeddings of different revisions cannot be
        compared."""
        return self._client.hello

    async def similarity(self, one: str, other: str, *, seconds: float) -> float | None:
        """Cosine of two texts' embeddings, computed when nobody waits for it; None if there is none."""
        try:
            first, second = (await self._client.embed([one, other], seconds=seconds, urgent=False)).vectors
        except EmbedRefused:
            return None
        return float(first @ second)

    async def of(self, tenant: str, text: str, *, secret: bytes, seconds: float) -> Vector | None:
        """Return the embedding of a text within so many seconds; None if it cannot be had in time.

        Args:
            secret: the tenant's, at most 64 bytes.
        """
        hello = self._client.hello
        if hello is None:
            return None
        digest = hashlib.blake2b(f"{hello.revision}\0{text}".encode(), digest_size=16, key=secret).hexdigest()
        vector = self._near.get((tenant, digest))
        if vector is not None:
            self._near.move_to_end((tenant, digest))
            self.sources["process"] += 1
            return vector
        began = monotonic()
        vector = await self._stored(tenant, digest)
        source = "redis"
        if vector is None:
            try:
                embedded = await self._client.embed([text], seconds=max(0.001, seconds - (monotonic() - began)))
            except EmbedRefused:
                self.sources["none"] += 1
                return None
            half = embedded.vectors[0].astype("<f2")
            self._write(tenant, digest, half.tobytes())
            vector, source = half.astype(np.float32), "embedder"
        self.sources[source] += 1
        self._near[tenant, digest] = vector
        if len(self._near) > self._capacity:
            self._near.popitem(last=False)
        return vector

    async def aclose(self) -> None:
        """Wait up to a second for writes under way."""
        if self._writing:
            await asyncio.wait(self._writing, timeout=1)
        for task in self._writing:
            task.cancel()
        await asyncio.gather(*self._writing, return_exceptions=True)

    async def _stored(self, tenant: str, digest: str) -> Vector | None:
        try:
            found: Any = await self._redis.get(embedding_key(tenant, digest))
        except (RedisError, OSError):
            return None
        hello = self._client.hello
        if found is None or hello is None or len(found) != 2 * hello.dimensions:
            return None
        return np.frombuffer(found, "<f2").astype(np.float32)

    def _write(self, tenant: str, digest: str, data: bytes) -> None:
        if len(self._writing) >= MAX_WRITING:
            return

        async def write() -> None:
            try:
                with contextlib.suppress(RedisError, OSError):
                    await self._keep(
                        keys=[embedding_key(tenant, digest), embeddings_key(tenant)],
                        args=[digest, data, self._ttl, self._max_bytes, embedding_key(tenant, "")],
                    )
            except Exception:
                self._on_fault()

        task = asyncio.create_task(write())
        self._writing.add(task)
        task.add_done_callback(self._writing.discard)
