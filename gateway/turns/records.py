"""Keeps turns in Redis: those to be stored, once they have ended, and checkpoints of long ones.

Writes are queued and sent together, so that no turn waits for Redis; who needs a turn that is not there yet asks the
gateway that ran it. Records are sealed. A script (`record.lua`) lets a turn end only once, whichever gateway says so.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import hashlib
import logging
from collections import OrderedDict
from collections.abc import Awaitable
from importlib import resources
from typing import NamedTuple, cast

import msgspec
from redis.asyncio import Redis
from redis.exceptions import NoScriptError, RedisError

from gateway.storage.seal import BrokenSeal, Seal
from gateway.turns.messages import TurnHeader, TurnRecord, decode_record, encode
from gateway.turns.turn import Turn

log = logging.getLogger("roundhouse.turns")

RECORD_KEY = "rh1:turn:{{{tenant}}}:{id}"
INDEX_KEY = "rh1:turn-index:{{{tenant}}}"
BYTES_KEY = "rh1:turn-bytes:{{{tenant}}}"

MAX_RECORD = 4 * 1024 * 1024
"""Largest record in bytes; a larger turn is kept by its gateway only."""
MAX_PENDING = 10_000
"""Most turns that wait for Redis; beyond that the oldest are kept by their gateway only."""
BATCH, BATCH_BYTES = 64, 256 * 1024
"""Most turns written in one round trip, and bytes after which no more are added."""
GATHER = 0.02
"""Seconds in which turns that end are gathered: a round trip for many costs little more than for one."""
RETRY = 0.5
"""Seconds between attempts while Redis does not answer."""
FIRST = 1
"""Number of the entry with which every log begins."""


def script(name: str) -> str:
    """Return the source of a script of this folder, after the functions that all of them use."""
    folder = resources.files("gateway.turns")
    return "".join(folder.joinpath(part).read_text("utf-8") for part in ("bounds.lua", name))


class RecordState(enum.StrEnum):
    """States of a record: RUNNING -> ENDED or LOST; LOST -> RUNNING or ENDED, if the turn's gateway was only cut off;
    any -> DELETED. `record.lua` refuses all other transitions."""

    RUNNING = "running"
    """The record is a checkpoint of a running turn."""
    ENDED = "ended"
    LOST = "lost"
    """The turn's gateway counts as dead; the turn has failed with the text of its last checkpoint."""
    DELETED = "deleted"


class _Write(NamedTuple):
    """One call of the script."""

    tenant: str
    id: str
    state: RecordState
    data: bytes


class StoredTurn(NamedTuple):
    """A turn as Redis knows it."""

    state: RecordState | None
    """State of its record; None if nothing is kept."""
    record: TurnRecord | None


def header_of(turn: Turn) -> TurnHeader:
    """Return a turn's header."""
    own = len(turn.request.messages)
    history = turn.conversation[: len(turn.conversation) - own]
    return TurnHeader(turn.principal, turn.request, history, turn.created_at)


def record_of(turn: Turn) -> TurnRecord:
    """Return a turn's record."""
    return TurnRecord(header_of(turn), turn.log.since(FIRST), turn.view.completed_at)


def restore(id: str, record: TurnRecord) -> Turn:
    """Return the turn that a record was made of, as it was then."""
    header = record.header
    turn = Turn(id, header.principal, header.request, header.history, 0.0, header.created_at)
    turn.extend(record.gained, record.completed_at)
    return turn


class TurnRecords:
    """Writes and reads records of turns. `gateway` is this process's id, `ttl` in seconds."""

    def __init__(
        self, redis: Redis, seal: Seal, gateway: str, *, ttl: float, max_per_tenant: int, max_bytes_per_tenant: int
    ) -> None:
        self._redis = redis
        self._seal = seal
        self._gateway = gateway
        self._ttl = ttl
        self._most = max_per_tenant, max_bytes_per_tenant
        self._script = script("record.lua")
        self._sha = hashlib.sha1(self._script.encode(), usedforsecurity=False).hexdigest()
        self._pending: OrderedDict[str, tuple[Turn, RecordState]] = OrderedDict()
        self._writing = 0
        self._news = asyncio.Event()

    @property
    def pending(self) -> int:
        """Number of turns that wait to be written."""
        return len(self._pending) + self._writing

    def keep(self, turn: Turn) -> None:
        """Queue the turn as it stands for writing; the record of an ended turn is final."""
        self._queue(turn, RecordState.ENDED if turn.finished else RecordState.RUNNING)

    def drop(self, turn: Turn) -> None:
        """Delete what is kept or queued of a turn of this gateway."""
        self._queue(turn, RecordState.DELETED)

    async def lose(self, turn: Turn) -> bool:
        """Mark a turn of a gateway that is gone as failed; return whether this is the first to do so, and it was not
        deleted.

        Raises:
            RedisError, OSError: Redis does not answer.
        """
        return await self._run([self._sealed(turn, RecordState.LOST)]) == [1]

    async def delete(self, tenant: str, id: str) -> bool:
        """Delete a turn; return whether it was kept. Later writes of its gateway are refused.

        Raises:
            RedisError, OSError: Redis does not answer.
        """
        return await self._run([_Write(tenant, id, RecordState.DELETED, b"")]) == [1]

    async def read(self, tenant: str, id: str) -> StoredTurn:
        """Read the record of a turn.

        Raises:
            RedisError, OSError: Redis does not answer.
        """
        key = RECORD_KEY.format(tenant=tenant, id=id)
        found = self._redis.hmget(key, ["state", "data"])
        state, data = await cast("Awaitable[list[bytes | None]]", found)
        if state is None:
            return StoredTurn(None, None)
        try:
            record = decode_record(self._seal.open(data, key)) if data else None
            return StoredTurn(RecordState(state.decode()), record)
        except (BrokenSeal, msgspec.MsgspecError, ValueError) as error:
            log.warning("a stored response cannot be read", extra={"response_id": id, "error": type(error).__name__})
            return StoredTurn(None, None)

    async def run(self) -> None:
        """Write what is queued, until cancelled."""
        while True:
            await self._news.wait()
            self._news.clear()
            await asyncio.sleep(GATHER)
            while self._pending:
                batch = self._next_batch()
                self._writing = len(batch)
                try:
                    await self._run([write for _, _, write in batch])
                except (RedisError, OSError) as error:
                    log.warning("responses not stored yet", extra={"error": type(error).__name__})
                    for turn, state, _ in batch:
                        self._pending.setdefault(turn.id, (turn, state))
                    self._writing = 0
                    await asyncio.sleep(RETRY)
                finally:
                    self._writing = 0

    async def flush(self, seconds: float) -> bool:
        """Wait until everything queued is written, for so many seconds at most; return whether it is."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self.pending:  # noqa: ASYNC110  at the end of the process only
                    await asyncio.sleep(0.01)
        return not self.pending

    def _queue(self, turn: Turn, state: RecordState) -> None:
        queued = self._pending.get(turn.id)
        if queued is not None and queued[1] is RecordState.DELETED:
            return
        self._pending[turn.id] = (turn, state)
        if len(self._pending) > MAX_PENDING:
            id, _ = self._pending.popitem(last=False)
            log.warning("a response is not stored: Redis is away for too long", extra={"response_id": id})
        self._news.set()

    def _next_batch(self) -> list[tuple[Turn, RecordState, _Write]]:
        """Take the oldest writes of the queue, no more than can be sealed and sent without holding up others."""
        batch: list[tuple[Turn, RecordState, _Write]] = []
        size = 0
        while self._pending and len(batch) < BATCH and size < BATCH_BYTES:
            _, (turn, state) = self._pending.popitem(last=False)
            try:
                write = self._sealed(turn, state)
            except Exception:  # a fault in one turn must not keep the others from being stored
                log.exception("a response is not stored", extra={"response_id": turn.id})
                continue
            size += len(write.data)
            if len(write.data) <= MAX_RECORD:
                batch.append((turn, state, write))
            else:
                log.warning("a response is too large to be stored", extra={"response_id": turn.id})
        return batch

    def _sealed(self, turn: Turn, state: RecordState) -> _Write:
        tenant, data = turn.principal.tenant, b""
        if state is not RecordState.DELETED:
            data = self._seal.seal(encode(record_of(turn)), RECORD_KEY.format(tenant=tenant, id=turn.id))
        return _Write(tenant, turn.id, state, data)

    async def _run(self, writes: list[_Write]) -> list[int]:
        """Run writes; return for each whether it changed anything."""
        results = await self._evaluate(writes)
        if any(isinstance(result, NoScriptError) for result in results):
            # Redis has been restarted. What did run before is refused or repeats itself.
            await self._redis.script_load(self._script)
            results = await self._evaluate(writes)
        for result in results:
            if isinstance(result, Exception):
                raise result
        return results

    async def _evaluate(self, writes: list[_Write]) -> list[int]:
        async with self._redis.pipeline(transaction=False) as pipeline:
            for tenant, id, state, data in writes:
                prefix = RECORD_KEY.format(tenant=tenant, id="")
                keys = [prefix + id, INDEX_KEY.format(tenant=tenant), BYTES_KEY.format(tenant=tenant)]
                own = (state, self._gateway, data, int(1000 * self._ttl), id, *self._most, prefix)
                pipeline.evalsha(self._sha, len(keys), *keys, *own)
            results: list[int] = await pipeline.execute(raise_on_error=False)
            return results
