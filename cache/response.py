"""The exact response cache: the same request from the same user gets the same answer without a model.

Redis is the truth: every answer is a HASH with a time to live. Its text is sealed, the other fields can be read with
redis-cli. A Redis that is down or slow is a miss, never an error, and so is an answer that cannot be opened. One round
trip finds an answer, or the turn that is making it (a *flight*), or takes the lead. What a look-up reads is checked
against the epochs in the same script, so that whatever is invalidated or deleted is gone at once for every gateway.
"""

from __future__ import annotations

import enum
import logging
from collections.abc import Iterable, Sequence
from importlib import resources
from typing import Protocol

import msgspec
from msgspec import Struct
from redis.asyncio import Redis
from redis.exceptions import RedisError

from cache.keys import bytes_key, epochs_key, flight_key, index_key, response_key
from cache.policy import Reject
from cache.shape import DeltaShape, check

log = logging.getLogger("roundhouse.cache")

FORMAT = "3"
"""Format of an entry's fields; entries of another format are misses."""
MAX_TTL = 30 * 24 * 3600
"""Seconds that an answer may live at most."""
EPOCHS_LIFE = 2 * MAX_TTL
"""Seconds that epochs are kept after the last invalidation; no answer is older."""
MAX_TAGS = 10_000
"""Invalidated tags that are remembered per tenant; with more, all of its answers are invalidated."""
LEASE = 30.0
"""Seconds after which a flight ends unless its gateway renews it."""
ALL = "*"
"""Argument of `invalidate` that means all answers of a tenant; no tag has this name."""


class LookupOutcome(enum.StrEnum):
    """The result of a look-up."""

    HIT = "hit"
    """There is a stored answer."""
    JOIN = "join"
    """There is no stored answer, but another turn is making it."""
    LEAD = "lead"
    """There is none, and others wait for this turn's answer from now on. `put` or `release` must follow."""
    MISS = "miss"
    """There is none, and nobody waits for this turn's answer."""


class Sealing(Protocol):
    """Seals the texts of answers. `context` says what the data is; data sealed as one thing cannot be opened as
    another."""

    def seal(self, data: bytes, context: str) -> bytes:
        """Return data that nobody else can read."""
        ...

    def open(self, sealed: bytes, context: str) -> bytes:
        """Return what was sealed.

        Raises:
            ValueError: it was sealed with another secret, or as something else, or is damaged.
        """
        ...


class CachedAnswer(Struct, frozen=True, kw_only=True):
    """A stored answer."""

    text: str
    shape: DeltaShape
    """The shape in which it was streamed."""
    model: str
    """Public name of the model that answered."""
    tier: str
    input_tokens: int
    output_tokens: int
    stop: str | None = None
    """The stop string that ended it, if one did."""
    scope: str = "user"
    """Who may be given it; see `cache.policy.Scope`."""
    tags: tuple[str, ...] = ()
    options: str = ""
    """What the tiers came to when it was written, as its gateway wrote that; empty if none was chosen."""
    created: float = 0.0
    """Seconds since the epoch, by Redis' clock; set when it is stored."""

    @property
    def fields(self) -> dict[str, str | int]:
        """Plain fields of the answer's HASH in Redis, except for those that the script adds."""
        return {
            "format": FORMAT,
            "model": self.model,
            "tier": self.tier,
            "input_tokens": self.input_tokens,
            "output_tokens": self.output_tokens,
            "scope": self.scope,
            "tags": " ".join(self.tags),
        }

    @property
    def packed(self) -> bytes:
        """What of the answer is stored sealed."""
        return _packer.encode(_Said(self.text, self.shape, self.stop, self.options))


class _Said(Struct, array_like=True, frozen=True):
    """What of an answer nobody else may read: its tokens tell its text, and its stop string is the client's."""

    text: str
    shape: DeltaShape
    stop: str | None
    options: str


_packer, _unpacker = msgspec.msgpack.Encoder(), msgspec.msgpack.Decoder(_Said)


class Lookup(Struct, frozen=True):
    """The result of a look-up, with its reason."""

    outcome: LookupOutcome
    reason: str
    """`stored` or `joined`; for a miss `absent`, `refresh`, `stale`, `invalidated`, `unreadable` or `unavailable`."""
    epochs: str = ""
    """Epochs at the time of the look-up, for `put`, so that an invalidation in between wins; empty if nothing may be
    stored."""
    entry: CachedAnswer | None = None
    leader: str | None = None
    """Id of the turn that is making the answer."""


class Wish(Struct, frozen=True, kw_only=True):
    """The terms on which a request uses the cache."""

    turn: str = ""
    """Id of the turn that would lead; empty if nobody may follow it."""
    refresh: bool = False
    """Whether neither a stored answer nor another turn's will do."""
    max_age: int | None = None
    """Greatest age of a stored answer in seconds."""
    follow: bool = True
    """Whether another turn's answer will do."""
    failed: str = ""
    """Id of a turn that was followed in vain: its place is free."""
    tags: tuple[str, ...] = ()


class AnswerRemoval:
    """Removes stored answers; to that end none needs to be opened."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis
        self._invalidate = redis.register_script(_script("invalidate"))
        self._remove = redis.register_script(_script("remove"))

    async def invalidate(self, tenant: str, tag: str = ALL) -> None:
        """Forget all answers of a tenant, or those with a tag, at once and on every gateway, also those in the making.

        Raises:
            RedisError: it could not be done; unlike a look-up, the caller must know.
        """
        await self._invalidate(keys=[epochs_key(tenant)], args=[tag, 1000 * EPOCHS_LIFE, MAX_TAGS])

    async def remove(self, tenant: str, digest: str) -> bool:
        """Forget one answer, at once and on every gateway, also one in the making; return whether one was stored.

        Raises:
            RedisError: it could not be done.
        """
        keys = [response_key(tenant, digest), index_key(tenant), bytes_key(tenant), flight_key(tenant, digest)]
        return bool(await self._remove(keys=keys, args=[digest]))


class ResponseCache(AnswerRemoval):
    """Stored answers of all tenants, each in keys of its own.

    Args:
        redis: a client with `decode_responses=False`, whose timeouts bound what a look-up may cost.
        seal: of the texts.
        ttl: seconds an answer lives, at most `MAX_TTL`.
        max_entries: answers kept per tenant.
        max_bytes: bytes of all of them together.
    """

    def __init__(self, redis: Redis, seal: Sealing, *, ttl: float, max_entries: int, max_bytes: int = 2**53) -> None:
        super().__init__(redis)
        self._seal = seal
        self.configure(ttl=ttl, max_entries=max_entries, max_bytes=max_bytes)
        self._look_up = redis.register_script(_script("look_up"))
        self._store = redis.register_script(_script("store"))
        self._release = redis.register_script(_RELEASE)

    def configure(self, *, ttl: float, max_entries: int, max_bytes: int) -> None:
        """Use other bounds from now on."""
        self._ttl = int(1000 * min(ttl, MAX_TTL))
        self._max_entries = max_entries
        self._max_bytes = max_bytes

    async def get(self, tenant: str, digest: str, wish: Wish = Wish()) -> Lookup:  # noqa: B008  it is frozen
        """Look up the stored answer of a request, or the turn that is making it. Never raises: without Redis it is a
        miss."""
        keys = [epochs_key(tenant), response_key(tenant, digest), flight_key(tenant, digest)]
        age = "" if wish.max_age is None else 1000 * wish.max_age
        arguments: list[str | int] = [
            wish.turn,
            int(1000 * LEASE),
            int(not wish.refresh),
            age,
            wish.failed,
            1000 * EPOCHS_LIFE,
        ]
        try:
            found = await self._look_up(keys=keys, args=[*arguments, *wish.tags])
            outcome, reason, epochs = (word.decode() for word in found[:3])
            rest: list[bytes] = found[3:]
        except (RedisError, OSError) as error:
            log.warning("response cache look-up failed", extra={"error": type(error).__name__})
            return Lookup(LookupOutcome.MISS, "unavailable")
        match LookupOutcome(outcome):
            case LookupOutcome.HIT:
                entry = read_entry(rest, keys[1], self._seal)
                if entry is not None:
                    return Lookup(LookupOutcome.HIT, reason, epochs, entry)
                # Written by something else, or sealed with another secret: as good as absent. This answer will replace
                # it, and nobody waits for it.
                return Lookup(LookupOutcome.MISS, "unreadable", epochs)
            case LookupOutcome.JOIN if wish.follow:
                return Lookup(LookupOutcome.JOIN, "joined", epochs, leader=rest[0].decode())
            case LookupOutcome.JOIN:
                return Lookup(LookupOutcome.MISS, reason, epochs)
            case other:
                return Lookup(other, reason, epochs)

    async def put(self, tenant: str, digest: str, entry: CachedAnswer, found: Lookup, turn: str = "") -> int | Reject:
        """Store an answer and show it to those who wait for turn `turn`, if that leads. Return how many old answers it
        pushed out.

        `OUTDATED` or `UNAVAILABLE` if nothing was stored: it was invalidated or deleted since it was looked up, or
        Redis did not answer, then or now.
        """
        if not found.epochs:
            return Reject.UNAVAILABLE
        key = response_key(tenant, digest)
        fields = {"answer": self._seal.seal(entry.packed, key), **entry.fields}
        arguments = [part for pair in fields.items() for part in pair]
        keys = [
            key,
            index_key(tenant),
            bytes_key(tenant),
            epochs_key(tenant),
            flight_key(tenant, digest),
        ]
        bounds: list[str | int] = [
            self._ttl,
            self._max_entries,
            self._max_bytes,
            response_key(tenant, ""),
            found.epochs,
            turn,
        ]
        try:
            evicted = int(await self._store(keys=keys, args=[digest, *bounds, size_of(entry), *arguments]))
        except (RedisError, OSError) as error:
            log.warning("response cache store failed", extra={"error": type(error).__name__})
            return Reject.UNAVAILABLE
        return evicted if evicted >= 0 else Reject.OUTDATED

    async def release(self, tenant: str, digest: str, turn: str) -> None:
        """End the flight of `turn`. Never raises: the lease ends too."""
        try:
            await self._release(keys=[flight_key(tenant, digest)], args=[turn])
        except (RedisError, OSError) as error:
            log.warning("response cache: flight not ended", extra={"error": type(error).__name__})

    async def renew(self, flights: Iterable[tuple[str, str]]) -> None:
        """Renew the leases of flights (tenant and digest). Never raises."""
        try:
            async with self._redis.pipeline(transaction=False) as pipeline:
                for tenant, digest in flights:
                    pipeline.pexpire(flight_key(tenant, digest), int(1000 * LEASE))
                await pipeline.execute()
        except (RedisError, OSError) as error:
            log.warning("response cache: leases not renewed", extra={"error": type(error).__name__})


def size_of(entry: CachedAnswer) -> int:
    """Return the bytes of an answer's fields, before it is sealed."""
    return sum(len(str(value).encode()) for value in entry.fields.values()) + len(entry.packed)


_RELEASE = """
local flight = redis.call('GET', KEYS[1])
if flight and string.match(flight, '^%S+') == ARGV[1] then return redis.call('DEL', KEYS[1]) end
return 0
"""


def _script(name: str) -> str:
    folder = resources.files("cache")
    return "".join(folder.joinpath(f"{part}.lua").read_text("utf-8") for part in ("epochs", name))


def read_entry(flat: Sequence[bytes], key: str, seal: Sealing) -> CachedAnswer | None:
    """Read a stored answer from the fields and values of its hash; None if something else has written them, or it
    cannot be opened."""
    try:
        fields = dict(zip(flat[::2], flat[1::2], strict=True))
        if fields[b"format"].decode() != FORMAT:
            return None
        said = _opened(fields[b"answer"], key, seal)
        return CachedAnswer(
            text=said.text,
            shape=said.shape,
            model=fields[b"model"].decode(),
            tier=fields[b"tier"].decode(),
            input_tokens=int(fields[b"input_tokens"]),
            output_tokens=int(fields[b"output_tokens"]),
            stop=said.stop,
            scope=fields[b"scope"].decode(),
            tags=tuple(fields[b"tags"].decode().split()),
            options=said.options,
            created=float(fields[b"created"]),
        )
    except (ValueError, KeyError):  # a UnicodeDecodeError and msgspec's errors are ValueErrors
        return None


def read_text(sealed: bytes, key: str, seal: Sealing) -> str | None:
    """Read the text of a stored answer from its field `answer`; None if it cannot be opened."""
    try:
        return _opened(sealed, key, seal).text
    except ValueError:
        return None


def _opened(sealed: bytes, key: str, seal: Sealing) -> _Said:
    said = _unpacker.decode(seal.open(sealed, key))
    check(said.shape, said.text)
    return said
