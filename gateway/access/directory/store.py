"""The directory in Redis: reads, lists, and changes that happen all or none, together with their audit entries.

A change looks at Redis (`look.lua`), is decided here (`plan.plan`), and is committed by one script (`commit.lua`)
that runs it only if nothing has changed since the look; otherwise it is decided anew. Records, indexes, audit entries,
the idempotency key and the head, by which gateways notice a change, are written by that one script.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from bisect import bisect_right
from collections.abc import AsyncIterator, Mapping, Sequence
from importlib import resources
from itertools import chain
from typing import Any, Generic, cast

from msgspec import Struct
from redis.asyncio import Redis
from redis.exceptions import ConnectionError, RedisError, TimeoutError

from gateway.access.directory.audit import START, ChainPosition, is_lost
from gateway.access.directory.audit_log import AuditLog, LogSetBack, directory_needed, hash_in, mark_of, range_of
from gateway.access.directory.change import Caps, Change, Configured, Delete, Idempotency, Put
from gateway.access.directory.plan import Author, Command, DirectorySnapshot, plan, question_when_full, questions
from gateway.access.directory.schema import (
    AUDIT_KEY,
    CHECKPOINT_KEY,
    DIGESTS_KEY,
    HEAD_KEY,
    SUBJECTS_KEY,
    index_key,
    records_key,
    subject_field,
)
from gateway.errors import Unavailable
from gateway.records.directory import Key, R, Record, User, decode
from gateway.storage.replicas import Replicas

log = logging.getLogger("roundhouse.directory")

MOST_LISTED = 1000
"""Most records of one page."""
_ATTEMPTS = 200
_LOOK_MS = 5000
"""Milliseconds: a change that was decided on an older snapshot, whose time its record carries, is decided anew."""


class RecordPage(Struct, Generic[R], frozen=True):
    """One page of records in the order of their identities."""

    records: list[R]
    next: str | None
    """Where the next page begins (`after`); None if this is the last one."""


class Applied(Struct, frozen=True):
    """The result of a change."""

    records: list[Record | None]
    """Records after the change, one per change; None for what was deleted or only noted."""
    replayed: bool
    """Whether it was done before, for the same idempotency key."""


class Directory:
    """Reads and changes tenants, users, keys, prices and routes."""

    def __init__(
        self,
        redis: Redis,
        *,
        configured: Configured | None = None,
        secret: bytes = b"",
        caps: Caps | None = None,
        replicas: Replicas = Replicas(),  # noqa: B008  it is frozen
        patient: Redis | None = None,
    ) -> None:
        """`configured`: what the configuration file holds, read-only; `secret`: seals the audit log; `replicas`: that
        must have a change; `patient`: a client that may wait for them."""
        self._redis = redis
        self._replicas = replicas
        self._patient = patient or redis
        self.unconfirmed = 0
        """Number of changes that were made, but that too few replicas had in time."""
        self.configured = configured or Configured()
        self.audit = AuditLog(redis, secret=secret)
        """The audit log of its changes."""
        self._secret = secret
        self._caps = caps or Caps()
        # Changes of this process wait here instead of making each other look again.
        self._changing = asyncio.Lock()
        scripts = resources.files("gateway.access.directory")
        self._look = redis.register_script(scripts.joinpath("look.lua").read_text("utf-8"))
        self._commit = redis.register_script(scripts.joinpath("commit.lua").read_text("utf-8"))

    async def may_be_evicted(self) -> bool:
        """Whether this Redis is set to evict records to make room; False if it does not tell."""
        try:
            memory = await self._redis.info("memory")
        except (RedisError, OSError):
            return False
        return bool(memory.get("maxmemory")) and str(memory.get("maxmemory_policy")).startswith("allkeys-")

    async def get(self, kind: type[R], identity: str) -> R | None:
        """Read a record, or None. One of the configuration file has revision 0.

        Raises:
            Unavailable: Redis does not answer (all methods may raise this).
        """
        if (record := self._configured(kind).get(identity)) is not None:
            return record
        return (await self.stored(kind, [identity]))[identity]

    async def exists(self, kind: type[Record], identity: str) -> bool:
        """Whether there is a record, also one that cannot be read."""
        if identity in self.configured.of(kind.KIND):
            return True
        with directory_needed():
            return bool(await cast(Any, self._redis.hexists(records_key(kind.KIND), identity)))

    async def page(
        self,
        kind: type[R],
        *,
        tenant: str | None = None,
        user: str | None = None,
        after: str = "",
        limit: int = 100,
        stored_only: bool = False,
    ) -> RecordPage[R]:
        """Records in the order of their identities.

        `tenant`: only its own (users, keys, routes); `user`: only its keys; `after`: `next` of the page before; at
        most `limit` (up to 1000) of them; `stored_only`: without those of the configuration file.
        """
        limit = max(1, min(limit, MOST_LISTED))
        with directory_needed():
            members: list[bytes] = await cast(
                Any,
                self._redis.zrangebylex(
                    index_key(kind.KIND, tenant=tenant, user=user),
                    f"({after}" if after else "-",
                    "+",
                    start=0,
                    num=limit + 1,
                ),
            )
        found = await self.stored(kind, [member.decode() for member in members])
        if user is None and not stored_only:
            own = self._configured(kind)
            names = sorted(name for name, record in own.items() if tenant in (None, record.belongs_to))
            found |= {name: own[name] for name in names[bisect_right(names, after) :][: limit + 1]}
        shown = sorted(found)[:limit]
        # One that was deleted between the two reads is None.
        records = [record for name in shown if (record := found[name]) is not None]
        return RecordPage(records, shown[-1] if len(found) > limit else None)

    async def every(self, kind: type[R], **which: Any) -> AsyncIterator[R]:
        """Yield all records that `page` would list, read page by page. `which`: as for `page`."""
        after: str | None = ""
        while after is not None:
            page = await self.page(kind, after=after, limit=MOST_LISTED, **which)
            for record in page.records:
                yield record
            after = page.next

    async def stored(self, kind: type[R], identities: Sequence[str]) -> dict[str, R | None]:
        """Read the records in Redis with these identities; None for those that are not there, or cannot be read."""
        if not identities:
            return {}
        with directory_needed():
            documents = await cast(Any, self._redis.hmget(records_key(kind.KIND), list(identities)))
        return {name: _decoded(kind, name, document) for name, document in zip(identities, documents, strict=True)}

    async def key_by_digest(self, digest: str) -> Key | None:
        """Read the key with this digest, or None. One round trip if there is none, else two."""
        return await self._found_by(Key, DIGESTS_KEY, digest)

    async def user_by_subject(self, tenant: str, subject: str) -> User | None:
        """Read the user of a tenant that an identity provider calls `subject`, or None."""
        return await self._found_by(User, SUBJECTS_KEY, subject_field(tenant, subject))

    async def write(self, record: R, *, actor: str, expected: int | None = None, once: Idempotency | None = None) -> R:
        """Create or replace a record; returns it as it is stored.

        `actor`: who does it, for the audit log, such as `key:ops` or `cli:anna`; `expected`: the revision that it
        replaces, 0 if there may be none, None for whatever there is.

        Raises:
            Conflict, PreconditionFailed, NotFound, InvalidRequest: see `plan.plan`.
            Unavailable: Redis does not answer; whether the change was made is unknown. With the same idempotency key
                it may be asked for again.
        """
        applied = await self.apply([Put(record, expected)], actor=actor, once=once)
        return cast(R, applied.records[0])

    async def delete(
        self,
        kind: type[Record],
        identity: str,
        *,
        actor: str,
        expected: int | None = None,
        once: Idempotency | None = None,
    ) -> None:
        """Remove a record. A tenant with users or keys, or a user with keys, is not removed. Raises as `write`."""
        await self.apply([Delete(kind.KIND, identity, expected)], actor=actor, once=once)

    async def apply(self, changes: Sequence[Change], *, actor: str, once: Idempotency | None = None) -> Applied:
        """Make several changes to different records, all or none. Raises as `write`."""
        with directory_needed():
            async with self._changing:
                return await self._apply(changes, actor, once)

    async def _apply(self, changes: Sequence[Change], actor: str, once: Idempotency | None) -> Applied:
        asked = questions(changes, actor, once)
        for _ in range(_ATTEMPTS):
            seen = await self._see(asked, len(changes))
            author = Author(actor, once, nonce=secrets.token_hex(8))
            decided = plan(changes, author, seen, caps=self._caps, configured=self.configured, secret=self._secret)
            if decided.replayed:
                return Applied(decided.records, True)
            before = seen.head.hash if seen.head != START else ""
            args = [before, seen.now, _LOOK_MS, *_words(decided.commands)]
            keys = list(dict.fromkeys([HEAD_KEY, *(command[1] for command in decided.commands)]))
            try:
                done = await self._committing(keys, args)
            except (ConnectionError, TimeoutError, OSError):
                if not await self._committed(decided.head):
                    raise
                done = True
            # The client library repeats a command whose connection broke: the first one may have been done.
            if done or await self._committed(decided.head):
                self.audit.saw(decided.head)
                self._tell_how_full(seen)
                return Applied(decided.records, False)
        raise Unavailable("the directory is being changed by too many at once; try again in a few seconds")

    @property
    def redis(self) -> Redis:
        """The Redis that holds the directory, for what is kept beside it."""
        return self._redis

    async def _committing(self, keys: Sequence[str], args: Sequence[str | int]) -> bool:
        """Run the script that commits a change; return whether it was made."""
        if not self._replicas.number:
            return bool(await self._commit(keys=keys, args=args))
        async with self._patient.pipeline(transaction=False) as pipeline:
            await self._commit(keys=keys, args=args, client=pipeline)
            [done], confirmed = await self._replicas.execute(pipeline)
        if done and not confirmed:
            self.unconfirmed += 1
            log.warning("directory: a change was made that too few replicas of Redis have; a fail-over may lose it")
        return bool(done)

    def _tell_how_full(self, seen: DirectorySnapshot) -> None:
        entries = int(seen.answers["XLEN", AUDIT_KEY])
        if entries >= self._caps.audit:
            log.warning("directory: the oldest entries of the audit log were dropped to make room")
        elif seen.checkpoint == START and self._caps.nearly_full(entries):
            log.warning("directory: the audit log is nearly full; export it", extra={"entries": entries})

    async def _committed(self, head: ChainPosition) -> bool:
        return any(logged.hash == head.hash for logged in await self.audit.read(head.sequence - 1, 1))

    async def _see(self, asked: Sequence[Command], adding: int) -> DirectorySnapshot:
        marks = [("HMGET", key, "sequence", "hash", "seal") for key in (HEAD_KEY, CHECKPOINT_KEY)]
        newest = self.audit.newest
        commands = [*marks, ("XRANGE", AUDIT_KEY, *range_of(newest)), *asked]
        now, head, checkpoint, known, *replies = await self._ask(commands)
        if is_lost(newest, mark_of(checkpoint), hash_in(known)):
            raise LogSetBack(newest, mark_of(head))
        seen = DirectorySnapshot(now, mark_of(head), mark_of(checkpoint), dict(zip(asked, replies, strict=True)))
        if (question := question_when_full(seen, self._caps, adding)) is not None:
            _, reply = await self._ask([question])
            seen = DirectorySnapshot(seen.now, seen.head, seen.checkpoint, {**seen.answers, question: reply})
        return seen

    async def _ask(self, commands: Sequence[Command]) -> list[Any]:
        keys = list(dict.fromkeys(command[1] for command in commands))
        return cast("list[Any]", await self._look(keys=keys, args=_words(commands)))

    async def _found_by(self, kind: type[R], index: str, field: str) -> R | None:
        with directory_needed():
            identity = await cast(Any, self._redis.hget(index, field))
        return None if identity is None else (await self.stored(kind, [identity.decode()]))[identity.decode()]

    def _configured(self, kind: type[R]) -> Mapping[str, R]:
        return cast("Mapping[str, R]", self.configured.of(kind.KIND))


def _decoded(kind: type[R], identity: str, document: bytes | None) -> R | None:
    try:
        return None if document is None else decode(kind, document)
    except ValueError as error:  # written by hand; the others must not suffer from it
        log.error(
            "directory: a record cannot be read", extra={"record": f"{kind.KIND} {identity}", "error": str(error)}
        )
        return None


def _words(commands: Sequence[Command]) -> list[str | int]:
    return list(chain.from_iterable((len(command), *command) for command in commands))
