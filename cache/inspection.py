"""Lists what the response cache has stored, for operators."""

from __future__ import annotations

from typing import cast

from msgspec import Struct
from msgspec.structs import replace
from redis.asyncio import Redis

from cache.keys import bytes_key, epochs_key, index_key, response_key
from cache.response import Sealing, read_text
from cache.semantic.keys import answer_key

_SHOWN = ("model", "tier", "scope", "tags", "input_tokens", "output_tokens", "created", "epochs")


class StoredAnswerInfo(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One stored answer, without its text."""

    digest: str
    """Identity of the request; the request itself is not stored."""
    model: str
    tier: str
    scope: str
    """Who may be given the answer: `user` or `tenant`."""
    tags: tuple[str, ...]
    input_tokens: int
    output_tokens: int
    bytes: int
    created: float
    """Time when it was stored, in seconds since 1970."""
    expires: float
    """Time when it expires, in seconds since 1970."""
    valid: bool
    """False once it was invalidated: nobody is given it any more."""
    semantic: str | None = None
    """State of the answer in the semantic cache (`cache.semantic.entry.EntryState`); None: it is not in it."""
    text: str | None = None
    """The answer's text, only where a single answer was asked for; None also if it cannot be opened."""


class Holding(Struct, frozen=True):
    """The answers that one tenant has stored."""

    entries: int
    bytes: int
    """Bytes that count towards the cap: fields of answers, without Redis' own overhead."""
    data: list[StoredAnswerInfo]
    """The newest answers."""


async def holding(redis: Redis, tenant: str, *, limit: int) -> Holding:
    """Read what a tenant has stored, and the `limit` newest answers.

    Raises:
        RedisError: Redis does not answer.
    """
    async with redis.pipeline(transaction=False) as pipeline:
        pipeline.time()
        pipeline.hgetall(epochs_key(tenant))
        pipeline.get(bytes_key(tenant))
        pipeline.zrevrange(index_key(tenant), 0, limit - 1, withscores=True)
        pipeline.zcard(index_key(tenant))
        (seconds, _), epochs, size, members, count = await pipeline.execute()
        named = [(*member.decode().partition(":")[::2], score / 1000) for member, score in members]
        for digest, _, _ in named:
            pipeline.hmget(response_key(tenant, digest), _SHOWN)
            pipeline.hget(answer_key(tenant, digest), "state")
        found = await pipeline.execute() if named else []
    listed = (
        _stored(digest, fields, epochs, int(size), expires, state)
        for (digest, size, expires), fields, state in zip(named, found[::2], found[1::2], strict=True)
        if expires > seconds
    )
    return Holding(count, int(size or 0), [stored for stored in listed if stored is not None])


async def stored(redis: Redis, seal: Sealing, tenant: str, digest: str) -> StoredAnswerInfo | None:
    """Read one stored answer with its text; None if there is none.

    Raises:
        RedisError: Redis does not answer.
    """
    key = response_key(tenant, digest)
    async with redis.pipeline(transaction=True) as pipeline:
        pipeline.hmget(key, (*_SHOWN, "size", "answer"))
        pipeline.hgetall(epochs_key(tenant))
        pipeline.pttl(key)
        pipeline.time()
        pipeline.hget(answer_key(tenant, digest), "state")
        fields, epochs, left, (seconds, micros), state = await pipeline.execute()
    *shown, size, sealed = cast("list[bytes | None]", fields)
    if size is None or sealed is None:
        return None
    found = _stored(digest, shown, epochs, int(size), seconds + micros / 1e6 + left / 1000, state)
    return None if found is None else replace(found, text=read_text(sealed, key, seal))


def _stored(
    digest: str,
    fields: list[bytes | None],
    epochs: dict[bytes, bytes],
    size: int,
    expires: float,
    state: bytes | None,
) -> StoredAnswerInfo | None:
    values = [None if value is None else value.decode() for value in fields]
    if None in values:
        return None  # evicted by Redis, or written by another version
    model, tier, scope, tags, input_tokens, output_tokens, created, begun = cast("list[str]", values)
    return StoredAnswerInfo(
        digest=digest,
        model=model,
        tier=tier,
        scope=scope,
        tags=tuple(tags.split()),
        input_tokens=int(input_tokens),
        output_tokens=int(output_tokens),
        bytes=size,
        created=float(created),
        expires=expires,
        semantic=None if state is None else state.decode(),
        valid=all(_current(epochs, *epoch.split("=")) for epoch in begun.split()),
    )


def _current(epochs: dict[bytes, bytes], name: str, number: str) -> bool:
    """Whether an answer begun under this epoch is valid: as `epochs.lua` has it."""
    return epochs.get(name.encode(), b"").decode() == number and (name != "*" or bool(number))
