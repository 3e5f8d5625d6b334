"""Keeps conversations of the chat page in Redis, for users whose tenant wants that: sealed, compressed, within limits.

A conversation is one hash: `entry` (what lists show of it), `head`, and each of its turns, so that a change writes only
what is new. A script (`chat.lua`) makes a change whole or not at all, and only to the revision that its writer has
read: a writer that was not the first reads again and adds what it has. Nothing that was said is in clear: digests stand
for the ids of turns, and a search opens the conversations one after the other.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import logging
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from importlib import resources
from typing import Any, NamedTuple, TypeVar, cast

import msgspec
from msgspec import Struct
from redis.asyncio import Redis

from gateway.config.chat import ChatSettings
from gateway.errors import Conflict, NotFound, PreconditionFailed, RateLimited
from gateway.protocol.chats import ChatEntry, ChatTree, ChatTurn, ChatWrite
from gateway.storage.connect import unavailable_without_redis
from gateway.storage.seal import BrokenSeal, Seal

log = logging.getLogger("roundhouse.turns")

CHAT_KEY = "rh1:chat:{{{tenant}}}:{owner}:{id}"
INDEX_KEY = "rh1:chat-index:{{{tenant}}}:{owner}"
RATE_KEY = "rh1:chat-rate:{{{tenant}}}:{owner}"

MAX_CHATS = 1_000
"""Most conversations of a user."""
MAX_CHAT_BYTES = 8 * 1024 * 1024
"""Most bytes of a conversation, before they are compressed."""
MAX_TURNS = 10_000
"""Most turns of a conversation: to keep and to open one takes more than its bytes say."""
MAX_PER_MINUTE = 600
"""Most requests of a user in a minute."""
SEARCH_SECONDS = 3.0
"""Seconds after which a search ends with what it has found."""
_AT_ONCE = 4
"""Conversations that a gateway opens at once: a turn may be compressed a thousandfold."""
_NUMBER, _HEAD = 10, 20
"""Lengths of the number before a value, and of number and bytes together."""

_T = TypeVar("_T")
_redis_needed = partial(unavailable_without_redis, "conversations cannot be reached")


class Owner(NamedTuple):
    """Whose conversations are meant."""

    tenant: str
    digest: str
    """Stands for the user."""


class _Entry(Struct, array_like=True):
    """What lists show of a conversation."""

    title: str
    updated_ms: int
    pinned: bool
    folder: str


class _Head(Struct, array_like=True):
    """The rest of a conversation, without its turns."""

    leaf: str | None
    settings: dict[str, Any]


class Chats:
    """Reads and changes conversations. All methods raise `Unavailable` if Redis does not answer."""

    def __init__(self, redis: Redis, secret: bytes) -> None:
        """Args: redis: a client with time enough for whole conversations."""
        self._redis = redis
        self._secret = secret
        self._seal = Seal(secret)
        self._script = redis.register_script(resources.files("gateway.turns").joinpath("chat.lua").read_text("utf-8"))
        self._opening = asyncio.Semaphore(_AT_ONCE)

    def owner(self, tenant: str, user: str) -> Owner:
        """Return the owner that a user is."""
        return Owner(tenant, hmac.digest(self._secret, f"{tenant}\0{user}".encode(), hashlib.sha256).hex()[:32])

    async def admit(self, owner: Owner) -> None:
        """Count a request.

        Raises:
            RateLimited: the user has sent too many in this minute.
        """
        key = RATE_KEY.format(tenant=owner.tenant, owner=owner.digest)
        with _redis_needed():
            async with self._redis.pipeline(transaction=True) as pipeline:
                pipeline.set(key, 0, ex=60, nx=True)
                pipeline.incr(key)
                pipeline.ttl(key)
                _, count, left = await pipeline.execute()
        if count > MAX_PER_MINUTE:
            raise RateLimited(
                f"a user may ask for conversations and prompts {MAX_PER_MINUTE} times a minute", retry_after=left
            )

    async def entries(self, owner: Owner) -> list[ChatEntry]:
        """Return all conversations of a user, the newest first."""
        with _redis_needed():
            ids = [id.decode() for id in await cast(Any, self._redis.hkeys(_index(owner)))]
            async with self._redis.pipeline(transaction=False) as pipeline:
                for id in ids:
                    pipeline.hmget(_key(owner, id), ["revision", "entry"])
                found = await pipeline.execute() if ids else []
        async with self._opening:
            return await asyncio.to_thread(self._entries, owner, ids, found)

    async def read(self, owner: Owner, id: str) -> ChatTree:
        """Read a conversation.

        Raises:
            NotFound: there is none, it is no longer kept, or it is another user's.
        """
        fields = await self._fields(owner, id)
        async with self._opening:
            return await asyncio.to_thread(self._chat, owner, id, fields)

    async def write(self, owner: Owner, id: str, read: int, given: ChatWrite, settings: ChatSettings) -> int:
        """Make or change a conversation; return its revision.

        Args:
            read: the revision that the writer has read; 0: there is none.

        Raises:
            NotFound: there is none.
            PreconditionFailed: it has another revision.
            Conflict: it, or the user, has no room for it.
        """
        parts = await asyncio.to_thread(lambda: [*self._parts(_key(owner, id), given)])
        prefix = _key(owner, "")
        bounds = (MAX_CHATS, MAX_TURNS, MAX_CHAT_BYTES, settings.max_bytes_per_user, prefix)
        args = [id, read, time.time_ns() // 1_000_000, int(1000 * settings.keep), *bounds, *parts]
        with _redis_needed():
            answer = await self._script(keys=[prefix + id, _index(owner)], args=args)
        revision, refused = cast(int, answer[0]), cast(bytes, answer[1]).decode()
        if refused == "revision" and revision == 0:
            raise _unknown(id)
        if refused == "revision":
            raise PreconditionFailed(
                f'it has changed: its ETag is "{revision}" now; read it, and repeat the change with what is new there',
                param="If-Match",
            )
        if refused:
            raise _full(refused, settings)
        return revision

    async def responses(self, owner: Owner, id: str) -> list[str]:
        """Return the ids of a conversation's responses, without those of turns that cannot be read.

        Raises:
            NotFound: there is no such conversation.
        """
        fields = await self._fields(owner, id)
        async with self._opening:
            return await asyncio.to_thread(self._responses, _key(owner, id), fields)

    async def delete(self, owner: Owner, id: str) -> None:
        """Delete a conversation, if there is one."""
        with _redis_needed():
            async with self._redis.pipeline(transaction=True) as pipeline:
                pipeline.unlink(_key(owner, id))
                pipeline.hdel(_index(owner), id)
                await pipeline.execute()

    async def search(self, owner: Owner, words: Sequence[str]) -> tuple[list[ChatEntry], bool]:
        """Find the conversations with all of these words in title or turns; whether there was time for all of them.

        Args:
            words: case does not matter.
        """
        end = time.monotonic() + SEARCH_SECONDS
        found: list[ChatEntry] = []
        wanted = [word.casefold() for word in words]
        for entry in await self.entries(owner):
            if time.monotonic() > end:
                return found, False
            try:
                chat = await self.read(owner, entry.id)
            except NotFound:  # deleted meanwhile
                continue
            text = "\n".join((chat.title, *(part for turn in chat.turns for part in (turn.question, turn.text))))
            folded = await asyncio.to_thread(text.casefold)
            if all(word in folded for word in wanted):
                found.append(entry)
        return found, True

    async def _fields(self, owner: Owner, id: str) -> dict[bytes, bytes]:
        with _redis_needed():
            fields = cast("dict[bytes, bytes]", await cast(Any, self._redis.hgetall(_key(owner, id))))
        if not fields:
            raise _unknown(id)
        return fields

    def _parts(self, key: str, given: ChatWrite) -> Iterator[str | int | bytes]:
        """Field, bytes and value of each part that is written."""
        parts: dict[str, Any] = {
            "entry": _Entry(given.title, given.updated_ms, given.pinned, given.folder),
            "head": _Head(given.leaf, given.settings),
        }
        parts |= {f"turn:{self._name(turn.id)}": turn for turn in given.turns}
        for field, part in parts.items():
            packed = msgspec.msgpack.encode(part)
            yield field
            yield len(packed)
            yield self._seal.seal(zlib.compress(packed, 1), f"{key}:{field}")

    def _name(self, turn: str) -> str:
        """Return what stands for a turn's id, which may be any text."""
        return hmac.digest(self._secret, turn.encode(), hashlib.sha256).hex()[:32]

    def _chat(self, owner: Owner, id: str, fields: Mapping[bytes, bytes]) -> ChatTree:
        key = _key(owner, id)
        head = self._opened(fields[b"head"], f"{key}:head", _Head)
        turns = sorted((value[:_NUMBER], field) for field, value in fields.items() if field.startswith(b"turn:"))
        return ChatTree(
            **msgspec.structs.asdict(self._entry(owner, id, int(fields[b"revision"]), fields[b"entry"])),
            leaf=head.leaf,
            settings=head.settings,
            turns=[self._opened(fields[field], f"{key}:{field.decode()}", ChatTurn) for _, field in turns],
        )

    def _responses(self, key: str, fields: Mapping[bytes, bytes]) -> list[str]:
        found = []
        for field, value in fields.items():
            if field.startswith(b"turn:"):
                with contextlib.suppress(NotFound):  # unreadable; it is in the log
                    found.append(self._opened(value, f"{key}:{field.decode()}", ChatTurn).response_id)
        return [response for response in found if response is not None]

    def _entries(
        self, owner: Owner, ids: Sequence[str], found: Sequence[tuple[bytes | None, bytes]]
    ) -> list[ChatEntry]:
        """Args: found: revision and sealed entry of each; None: it is no longer kept."""
        shown = []
        for id, (revision, sealed) in zip(ids, found, strict=True):
            if revision is not None:
                with contextlib.suppress(NotFound):  # unreadable; it is in the log
                    shown.append(self._entry(owner, id, int(revision), sealed))
        return sorted(shown, key=lambda entry: (entry.updated_ms, entry.id), reverse=True)

    def _entry(self, owner: Owner, id: str, revision: int, value: bytes) -> ChatEntry:
        entry = self._opened(value, f"{_key(owner, id)}:entry", _Entry)
        return ChatEntry(id=id, revision=revision, **msgspec.structs.asdict(entry))

    def _opened(self, value: bytes, context: str, type_: type[_T]) -> _T:
        try:
            return msgspec.msgpack.decode(zlib.decompress(self._seal.open(value[_HEAD:], context)), type=type_)
        except (BrokenSeal, zlib.error, msgspec.MsgspecError) as error:
            log.warning("a conversation cannot be read", extra={"error": type(error).__name__})
            raise _unknown(context.split(":")[4]) from None


def _key(owner: Owner, id: str) -> str:
    return CHAT_KEY.format(tenant=owner.tenant, owner=owner.digest, id=id)


def _index(owner: Owner) -> str:
    return INDEX_KEY.format(tenant=owner.tenant, owner=owner.digest)


def _unknown(id: str) -> NotFound:
    return NotFound(
        f"chat_id: no conversation {id[:80]!r}; it is unknown, deleted, or no longer kept",
        param="chat_id",
        code="chat_not_found",
    )


def _full(what: str, settings: ChatSettings) -> Conflict:
    reasons = {
        "chats": f"there are {MAX_CHATS:,} conversations; delete some",
        "turns": f"a conversation may have {MAX_TURNS:,} turns; begin a new one",
        "chat": f"a conversation may have {MAX_CHAT_BYTES >> 20} MiB; begin a new one",
        "bytes": f"conversations may have {settings.max_bytes_per_user:,} bytes in all; delete some",
    }
    if what in ("turns", "chat"):
        return Conflict(reasons[what], code="chat_full")
    return Conflict(reasons[what], code="chats_full")
