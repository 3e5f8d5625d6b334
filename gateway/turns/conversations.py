"""Keeps conversations in Redis: items that turns and clients add, each sealed, in the order in which they came.

A script (`conversation.lua`) makes every change whole or not at all, so that turns that end at the same time, on
whichever gateways, each add their items.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping
from functools import partial
from typing import TypeVar, cast

import msgspec
from msgspec import Struct
from redis.asyncio import Redis

from gateway.config.settings import TurnSettings
from gateway.errors import Conflict, NotFound
from gateway.protocol.requests import Message
from gateway.storage.connect import unavailable_without_redis
from gateway.storage.seal import BrokenSeal, Seal
from gateway.turns.ids import is_conversation_id
from gateway.turns.records import MAX_RECORD, script

log = logging.getLogger("roundhouse.turns")

CONVERSATION_KEY = "rh1:conversation:{{{tenant}}}:{id}"
INDEX_KEY = "rh1:conversation-index:{{{tenant}}}"
BYTES_KEY = "rh1:conversation-bytes:{{{tenant}}}"

MAX_ITEMS = 2_000
"""Items from which on a conversation takes no more."""
MAX_BYTES = MAX_RECORD
"""Bytes from which on a conversation takes no more."""
_ITEM = "item:"
"""Prefix of the fields that hold items."""
_NUMBER = 10
"""Length of the number that stands before an item, by which items are in order."""

_T = TypeVar("_T")
_redis_needed = partial(unavailable_without_redis, "conversations cannot be reached")


class Conversation(Struct, array_like=True, frozen=True):
    """A conversation without its items."""

    id: str
    created_at: int
    metadata: dict[str, str]


class ConversationItems(Mapping[str, Message]):
    """The items of a conversation in their order, by id; each is opened when it is asked for."""

    def __init__(self, fields: Mapping[bytes, bytes], key: str, seal: Seal) -> None:
        prefix = _ITEM.encode()
        found = sorted((value, field) for field, value in fields.items() if field.startswith(prefix))
        self._sealed = {field.removeprefix(prefix).decode(): value[_NUMBER:] for value, field in found}
        self._key = key
        self._seal = seal
        self.full = len(found) >= MAX_ITEMS or sum(map(len, fields.values())) >= MAX_BYTES
        """Whether the conversation takes no more items."""

    def __getitem__(self, id: str) -> Message:
        return _opened(self._seal, self._sealed[id], f"{self._key}:{id}", Message)

    def __iter__(self) -> Iterator[str]:
        return iter(self._sealed)

    def __len__(self) -> int:
        return len(self._sealed)


class Conversations:
    """Reads and changes conversations. All methods raise `Unavailable` if Redis does not answer."""

    def __init__(self, redis: Redis, seal: Seal, settings: TurnSettings) -> None:
        self._redis = redis
        self._seal = seal
        self._script = redis.register_script(script("conversation.lua"))
        self._kept = (
            int(1000 * settings.store_ttl),
            settings.max_stored_per_tenant,
            settings.max_stored_bytes_per_tenant,
        )

    async def create(
        self, tenant: str, id: str, metadata: dict[str, str], items: Mapping[str, Message]
    ) -> Conversation:
        """Make a conversation with an id that is new."""
        made = Conversation(id, int(time.time()), metadata)
        await self._change("create", tenant, id, self._head(tenant, made), *self._sealed(tenant, id, items))
        return made

    async def read(self, tenant: str, id: str) -> Conversation:
        """Read a conversation without its items.

        Raises:
            NotFound: there is none, it is no longer kept, or it is another tenant's.
        """
        key = CONVERSATION_KEY.format(tenant=tenant, id=id)
        head = None
        if is_conversation_id(id):
            with _redis_needed():
                head = cast("bytes | None", await self._redis.hget(key, "head"))
        if head is None:
            raise _unknown(id)
        return _opened(self._seal, head, key, Conversation)

    async def items(self, tenant: str, id: str) -> ConversationItems:
        """Read all items of a conversation.

        Raises:
            NotFound: see `read`.
        """
        key = CONVERSATION_KEY.format(tenant=tenant, id=id)
        fields: dict[bytes, bytes] = {}
        if is_conversation_id(id):
            with _redis_needed():
                fields = cast("dict[bytes, bytes]", await self._redis.hgetall(key))
        if b"head" not in fields:
            raise _unknown(id)
        return ConversationItems(fields, key, self._seal)

    async def update(self, tenant: str, id: str, metadata: dict[str, str]) -> Conversation:
        """Replace a conversation's metadata.

        Raises:
            NotFound: see `read`.
        """
        changed = msgspec.structs.replace(await self.read(tenant, id), metadata=metadata)
        await self._existing("update", tenant, id, self._head(tenant, changed))
        return changed

    async def append(self, tenant: str, id: str, items: Mapping[str, Message], *, ended: bool = False) -> None:
        """Add items at the end; those whose ids it has already are left out, so that this may be done again.

        Args:
            ended: the items are those of a turn that has ended, and are added even if the conversation is full.

        Raises:
            NotFound: see `read`.
            Conflict: it is full.
        """
        if await self._existing("append", tenant, id, *self._sealed(tenant, id, items), bounded=not ended) < 0:
            raise full()

    async def remove(self, tenant: str, id: str, item: str) -> None:
        """Remove an item.

        Raises:
            NotFound: there is no such item, or no such conversation, see `read`.
        """
        if not await self._change("remove", tenant, id, _ITEM + item):
            raise unknown_item(item)

    async def delete(self, tenant: str, id: str) -> None:
        """Delete a conversation with its items.

        Raises:
            NotFound: see `read`.
        """
        await self._existing("delete", tenant, id)

    async def _existing(self, what: str, tenant: str, id: str, *given: str | bytes, bounded: bool = True) -> int:
        changed = await self._change(what, tenant, id, *given, bounded=bounded) if is_conversation_id(id) else 0
        if not changed:
            raise _unknown(id)
        return changed

    async def _change(self, what: str, tenant: str, id: str, *given: str | bytes, bounded: bool = True) -> int:
        prefix = CONVERSATION_KEY.format(tenant=tenant, id="")
        keys = [prefix + id, INDEX_KEY.format(tenant=tenant), BYTES_KEY.format(tenant=tenant)]
        room = (MAX_ITEMS, MAX_BYTES) if bounded else (2**53, 2**53)
        with _redis_needed():
            return cast(int, await self._script(keys=keys, args=[what, id, *self._kept, prefix, *room, *given]))

    def _head(self, tenant: str, conversation: Conversation) -> bytes:
        key = CONVERSATION_KEY.format(tenant=tenant, id=conversation.id)
        return self._seal.seal(msgspec.msgpack.encode(conversation), key)

    def _sealed(self, tenant: str, id: str, items: Mapping[str, Message]) -> Iterator[str | bytes]:
        key = CONVERSATION_KEY.format(tenant=tenant, id=id)
        for item, message in items.items():
            yield _ITEM + item
            yield self._seal.seal(msgspec.msgpack.encode(message), f"{key}:{item}")


def full() -> Conflict:
    """The error for a conversation that takes no more items."""
    return Conflict(
        f"conversation: it takes no more items once it has {MAX_ITEMS:,}, or {MAX_BYTES >> 20} MiB; begin a new one",
        param="conversation",
        code="conversation_full",
    )


def unknown_item(id: str) -> NotFound:
    """The error for an item that a conversation does not have."""
    return NotFound(f"item_id: no item {id[:80]!r} in this conversation", param="item_id", code="item_not_found")


def _unknown(id: str) -> NotFound:
    return NotFound(
        f"conversation: no conversation {id[:80]!r}; it is unknown, deleted, or no longer kept",
        param="conversation",
        code="conversation_not_found",
    )


def _opened(seal: Seal, sealed: bytes, context: str, type_: type[_T]) -> _T:
    try:
        return msgspec.msgpack.decode(seal.open(sealed, context), type=type_)
    except (BrokenSeal, msgspec.MsgspecError) as error:
        log.warning("a conversation cannot be read", extra={"error": type(error).__name__})
        raise _unknown(context.split(":")[3]) from None
