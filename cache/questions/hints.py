"""Hints to stored questions: from this process's index, kept in step with other gateways by a stream, or from vector
sets of a Redis that has them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
from redis.asyncio import Redis
from redis.exceptions import RedisError

from cache.questions.index import Hint, Name, PartitionIndex, Vector, VectorIndex
from cache.semantic.keys import SEQUENCE_KEY, STREAM_KEY, partition_key, phrasing_key, vectors_key

log = logging.getLogger("roundhouse.cache")

MAX_LOG = 10_000
"""Number of messages that the stream keeps, approximately."""
STREAM_LIFE = 7 * 24 * 3600
"""Seconds that the stream is kept after its last message."""
_READ = 500
"""Questions or messages that are read at once."""
_SWEPT = 4
"""Members of a vector set that are checked whenever one is added."""
_BLOCK, _PAUSE = 5000, 1.0
"""Milliseconds to wait for a message; seconds to wait for Redis to come back."""

_APPEND = """
local number = redis.call('INCR', KEYS[2])
redis.call('XADD', KEYS[1], 'MAXLEN', '~', ARGV[1], '*', 'n', number, unpack(ARGV, 3))
redis.call('EXPIRE', KEYS[1], ARGV[2])
redis.call('EXPIRE', KEYS[2], ARGV[2])
return number
"""


class Hints(Protocol):
    """The interface of what finds stored questions that may be near."""

    async def start(self) -> None: ...

    async def aclose(self) -> None: ...

    async def prepare(self, name: Name, dimensions: int) -> None:
        """Make a partition ready; called while the question is embedded."""

    async def nearest(self, name: Name, vector: Vector, count: int) -> list[Hint]:
        """Return the nearest stored questions that are known, nearest first. Never raises."""

    async def added(self, name: Name, phrasing: str, answer: str, vector: Vector) -> None:
        """Record that a question was stored."""

    async def gone(self, name: Name, hints: Sequence[Hint]) -> None:
        """Record that a hint led nowhere."""


async def has_vector_sets(redis: Redis) -> bool:
    """Whether this Redis has vector sets (Redis 8 and later).

    Raises:
        RedisError: it does not answer.
    """
    run: Any = redis.execute_command
    found = await run("COMMAND INFO", "VSIM", "VADD")
    # redis-py gives a dictionary of those that exist, a raw reply has a nil for each other.
    return len([each for each in found if each]) == 2


class IndexedHints:
    """Hints from this process's own index.

    A partition is read from Redis when it is first used. From then on the stream tells of questions that any gateway
    stores; its messages are numbered, and after a gap everything is read anew.

    Args:
        reader: a client whose reads may wait.
        on_fault: called while an exception that nobody expected is being handled; the stream is then read on.
    """

    def __init__(
        self,
        redis: Redis,
        reader: Redis,
        *,
        index: VectorIndex | None = None,
        on_fault: Callable[[], None] = lambda: log.exception("a fault of ours"),
    ) -> None:
        self._on_fault = on_fault
        self._redis = redis
        self._reader = reader
        self._index = VectorIndex() if index is None else index
        self._append = redis.register_script(_APPEND)
        self._loading: dict[Name, asyncio.Task[None]] = {}
        self._task: asyncio.Task[None] | None = None
        self._last = b"$"
        self._number = 0
        self._stopping = False
        self.following = False
        """Whether the stream is being read."""
        self.followed = 0
        """Number of messages read."""
        self.rebuilds = 0
        """Number of times that messages were missed and everything was read anew."""

    @property
    def vectors(self) -> int:
        return len(self._index)

    async def start(self) -> None:
        self._task = asyncio.create_task(self._follow(), name="semantic index")

    async def aclose(self) -> None:
        self._stopping = True
        tasks = [*self._loading.values(), *([self._task] if self._task else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def prepare(self, name: Name, dimensions: int) -> None:
        task = self._loading.get(name)
        if task is None:
            if self._index.get(name) is not None:
                return
            task = asyncio.create_task(self._load(name, self._index.begin(name, dimensions)))
            self._loading[name] = task
            task.add_done_callback(lambda _: self._loading.pop(name, None))
        await asyncio.shield(task)

    async def nearest(self, name: Name, vector: Vector, count: int) -> list[Hint]:
        partition = self._index.get(name)
        return [] if partition is None else partition.nearest(vector, count)

    async def added(self, name: Name, phrasing: str, answer: str, vector: Vector) -> None:
        self._index.add(name, phrasing, answer, vector)
        words: list[bytes | str | int] = [MAX_LOG, STREAM_LIFE]
        words += "t", name[0], "p", name[1], "q", phrasing, "a", answer, "v", vector.astype("<f2").tobytes()
        try:
            await self._append(keys=[STREAM_KEY, SEQUENCE_KEY], args=words)
        except (RedisError, OSError) as error:  # others find it when they read the partition
            log.warning("a stored question was not announced", extra={"error": type(error).__name__})

    async def gone(self, name: Name, hints: Sequence[Hint]) -> None:
        partition = self._index.get(name)
        if partition is not None:
            for hint in hints:
                partition.forget(hint)

    async def _load(self, name: Name, partition: PartitionIndex) -> None:
        tenant, id = name
        try:
            found: Any = await self._redis.zrevrange(partition_key(tenant, id), 0, -1)
            for start in range(0, len(found), _READ):
                ids = [each.decode() for each in found[start : start + _READ]]
                async with self._redis.pipeline(transaction=False) as pipeline:
                    for each in ids:
                        pipeline.hmget(phrasing_key(tenant, id, each), "answer", "vector")
                    rows = await pipeline.execute()
                partition.load(
                    (each, answer.decode(), np.frombuffer(vector, "<f2").astype(np.float32))
                    for each, (answer, vector) in zip(ids, rows, strict=True)
                    if answer is not None and vector is not None
                )
            partition.loading = None
        except (RedisError, OSError, ValueError) as error:
            log.warning("a partition of the semantic cache could not be read", extra={"error": type(error).__name__})
            self._index.drop(name)  # it is tried again

    async def _follow(self) -> None:
        while not self._stopping:  # the client may turn a cancellation into an error of its own
            try:
                if not self.following:
                    await self._catch_up()
                    self.following = True
                read: Any = await self._reader.xread({STREAM_KEY: self._last}, count=_READ, block=_BLOCK)
                for _, messages in read or ():
                    for id, fields in messages:
                        self._last = id
                        self._take(fields)
            except (RedisError, OSError, ValueError) as error:
                if self._stopping:
                    return
                if self.following:
                    log.warning("the semantic cache's stream cannot be read", extra={"error": type(error).__name__})
                self.following = False
                await asyncio.sleep(_PAUSE)
            except Exception:
                self._on_fault()
                self.following = False
                self._last = b"$"  # everything is read anew, from the end on
                await asyncio.sleep(_PAUSE)

    async def _catch_up(self) -> None:
        """Find one's place in the stream: at its end at first, and where it was left after Redis has been away."""
        number: Any = await self._reader.get(SEQUENCE_KEY)
        newest: Any = await self._reader.xrevrange(STREAM_KEY, count=1)
        if self._last == b"$" or int(number or 0) < self._number:
            # The second: a Redis that has lost what it knew.
            self._last = newest[0][0] if newest else b"0-0"
            self._number = int(newest[0][1].get(b"n", 0)) if newest else int(number or 0)
            self._index.clear()

    def _take(self, fields: dict[bytes, bytes]) -> None:
        self.followed += 1
        try:
            number = int(fields[b"n"])
            tenant, partition, phrasing, answer = (fields[name].decode() for name in (b"t", b"p", b"q", b"a"))
            vector = np.frombuffer(fields[b"v"], "<f2").astype(np.float32)
        except (KeyError, ValueError):
            log.warning("a message in the semantic cache's stream cannot be read")
            number = -1
        if number != self._number + 1:
            self._index.clear()
            self.rebuilds += 1
        if number >= 0:
            self._number = number
            with contextlib.suppress(ValueError):  # another model's length
                self._index.add((tenant, partition), phrasing, answer, vector)


class VectorSetHints:
    """Hints from vector sets in Redis: nothing to keep in step, one round trip more."""

    def __init__(self, redis: Redis, *, ttl: float) -> None:
        self._redis = redis
        self._ttl = int(ttl)

    async def start(self) -> None:
        pass

    async def aclose(self) -> None:
        pass

    async def prepare(self, name: Name, dimensions: int) -> None:
        pass

    async def nearest(self, name: Name, vector: Vector, count: int) -> list[Hint]:
        blob = vector.astype("<f4").tobytes()
        try:
            run: Any = self._redis.execute_command
            found = await run("VSIM", vectors_key(*name), "FP32", blob, "WITHSCORES", "COUNT", count)
        except (RedisError, OSError) as error:
            log.warning("vector sets do not answer", extra={"error": type(error).__name__})
            return []
        pairs = found.items() if isinstance(found, dict) else zip(found[::2], found[1::2], strict=True)
        hints = []
        for member, score in pairs:
            phrasing, _, answer = member.decode().partition(":")
            hints.append(Hint(phrasing, answer, 2 * float(score) - 1))  # a score is (1 + cosine) / 2
        return hints

    async def added(self, name: Name, phrasing: str, answer: str, vector: Vector) -> None:
        key = vectors_key(*name)
        with contextlib.suppress(RedisError, OSError):
            async with self._redis.pipeline(transaction=False) as pipeline:
                pipeline.execute_command("VADD", key, "FP32", vector.astype("<f4").tobytes(), f"{phrasing}:{answer}")
                pipeline.expire(key, self._ttl)
                pipeline.execute_command("VRANDMEMBER", key, _SWEPT)
                *_, members = await pipeline.execute()
            # Members whose questions have ended go as new ones come: in the long run one in `_SWEPT` is left, at most.
            phrasings = [member.partition(b":")[0] for member in members]
            known: Any = await self._redis.zmscore(partition_key(*name), phrasings)
            ended = [member for member, score in zip(members, known, strict=True) if score is None]
            if ended:
                async with self._redis.pipeline(transaction=False) as pipeline:
                    for member in ended:
                        pipeline.execute_command("VREM", key, member)
                    await pipeline.execute()

    async def gone(self, name: Name, hints: Sequence[Hint]) -> None:
        with contextlib.suppress(RedisError, OSError):
            async with self._redis.pipeline(transaction=False) as pipeline:
                for hint in hints:
                    pipeline.execute_command("VREM", vectors_key(*name), f"{hint.phrasing}:{hint.answer}")
                await pipeline.execute()
