"""This process's copy of the directory, kept up to date in the background, so that turns need not wait for Redis.

Tenants, prices and routes are all here; keys and users are read when they are first seen. A task looks at the head of
the audit log twice a second: when it has moved, the entries since then say which records to read again. Without Redis
the last copy stays in force, and what has not been seen before cannot be checked. The configuration file's tenants,
keys and prices come first.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable, Iterable, Mapping
from typing import cast

from gateway.access.directory.audit import ChainPosition
from gateway.access.directory.audit_log import LogSetBack
from gateway.access.directory.change import Configured
from gateway.access.directory.seen import MOST_FOUND, K, RecordCache, V
from gateway.access.directory.store import Directory
from gateway.background import Periodic
from gateway.config.settings import Settings
from gateway.errors import Unavailable
from gateway.records.directory import Key, Kind, Price, R, Record, ReplicaControl, Route, Tenant, User

log = logging.getLogger("roundhouse.directory")

POLL = 0.5
"""Seconds between two checks for changes."""
_WHOLE: tuple[type[Record], ...] = (Tenant, Price, Route, ReplicaControl)
"""Kinds of which the copy holds all records."""
_MOST_ENTRIES = 1000
"""Most audit records that are followed; after more changes everything is read again."""


def configured(settings: Settings) -> Configured:
    """Return the tenants, keys and prices of the configuration file."""
    tenants = {
        tenant.name: Tenant(
            name=tenant.name,
            description="configuration file",
            weight=tenant.weight,
            service=tenant.service,
            services=tenant.services,
            quota=tenant.limits,
            unknown_parameters=tenant.unknown_parameters,
        )
        for tenant in settings.tenants
    }
    keys = {
        key.id: Key(
            id=key.id,
            tenant=tenant.name,
            digest=key.sha256,
            description="configuration file",
            scopes=key.scopes,
            operator=key.operator,
        )
        for tenant in settings.tenants
        for key in tenant.keys
    }
    prices = {
        price.name: Price(name=price.name, input=price.input, output=price.output, cached_input=price.cached_input)
        for price in settings.prices
    }
    return Configured(tenants, keys, prices)


class View:
    """A copy of the directory. Everything but `key` and `user` is answered without I/O."""

    def __init__(
        self, directory: Directory, *, clock: Callable[[], float] = time.monotonic, poll: float = POLL
    ) -> None:
        self._directory = directory
        self._clock = clock
        self._records: dict[Kind, dict[str, Record]] = {kind.KIND: {} for kind in _WHOLE}
        self._keys: RecordCache[str, Key] = RecordCache(directory.key_by_digest, clock)
        # Only verified tokens name users, most of whom are in no directory: that nobody may guess them costs nothing.
        self._users: RecordCache[tuple[str, str], User] = RecordCache(
            lambda name: directory.user_by_subject(*name),
            clock,
            most_unknown=MOST_FOUND,
            unknown_per_second=math.inf,
        )
        self._keys_named: RecordCache[str, Key] = RecordCache(lambda id: directory.get(Key, id), clock)
        self._users_named: RecordCache[str, User] = RecordCache(lambda id: directory.get(User, id), clock)
        self._head: ChainPosition | None = None
        self._at = clock()
        self._followed = True
        """Whether the last check was answered."""
        self.set_back = False
        """Whether Redis has lost changes that were seen here: the last copy stays in force until it has them again."""
        self._refreshing = asyncio.Lock()
        """One at a time: one that has read an older head must not forget what a newer one has let in."""
        self._following = Periodic("directory", self._try, poll)
        self.configure(directory.configured)

    def configure(self, configured: Configured) -> None:
        """Use the records of a new configuration file."""
        self._directory.configured = configured
        self._configured = configured
        self._configured_keys = {key.digest: key for key in configured.keys.values()}

    def tenant(self, name: str) -> Tenant | None:
        """A tenant by name."""
        return self._configured.tenants.get(name) or cast("Tenant | None", self._records["tenant"].get(name))

    def tenants(self) -> dict[str, Tenant]:
        """All tenants by name."""
        return {**cast("dict[str, Tenant]", self._records["tenant"]), **self._configured.tenants}

    def price(self, model: str, adapter: str | None = None) -> Price | None:
        """Return the price of tokens: the adapter's, else its model's."""
        for name in (adapter, model):
            if name is not None and (price := self._price(name)) is not None:
                return price
        return None

    def route(self, name: str) -> Route | None:
        """A route by name."""
        return cast("Route | None", self._records["route"].get(name))

    def routes(self) -> Iterable[Route]:
        """All routes."""
        return cast("Iterable[Route]", self._records["route"].values())

    def replicas(self) -> Mapping[str, ReplicaControl]:
        """Controls of replicas that operators have set, by name."""
        return cast("Mapping[str, ReplicaControl]", self._records["replica"])

    def known_key(self, digest: str) -> Key | None:
        """Return the key with this digest, if it is in the configuration file or has been seen before."""
        return self._configured_keys.get(digest) or self._keys.known(digest)

    async def key(self, digest: str) -> Key | None:
        """Return the key with this digest, or None; the caller checks whether it is expired or disabled.

        Raises:
            Unavailable: it has not been seen before, and Redis does not answer.
            RateLimited: too many unknown keys are tried at the moment.
        """
        return self._configured_keys.get(digest) or await self._find(self._keys, digest)

    async def user(self, tenant: str, subject: str) -> User | None:
        """Return the user of a tenant that an identity provider calls `subject`, or None. Raises as `key`."""
        return await self._find(self._users, (tenant, subject))

    async def key_named(self, id: str) -> Key | None:
        """The key with this id, or None. Raises as `key`."""
        return self._configured.keys.get(id) or await self._find(self._keys_named, id)

    async def user_named(self, id: str) -> User | None:
        """The user with this id, or None. Raises as `key`."""
        return await self._find(self._users_named, id)

    @property
    def age(self) -> float:
        """Seconds since this copy was last known to be up to date."""
        return self._clock() - self._at

    @property
    def complete(self) -> bool:
        """Whether everything has been read once."""
        return self._head is not None

    async def start(self) -> None:
        """Read everything, or start without if Redis does not answer, and follow changes in the background."""
        await self._try()
        if await self._directory.may_be_evicted():
            log.warning("directory: this Redis may drop tenants and keys: set its maxmemory-policy to volatile-lfu")
        await self._following.start()

    async def aclose(self) -> None:
        """Stop following."""
        await self._following.aclose()

    async def refresh(self) -> None:
        """Read what has changed.

        Raises:
            Unavailable: Redis does not answer.
        """
        async with self._refreshing:
            head = await self._directory.audit.head()
            if self._head is None or not await self._catch_up(self._head, head):
                await self._read_all()
            self._head = head
            self._at = self._clock()

    async def _find(self, seen: RecordCache[K, V], name: K) -> V | None:
        """Return a record that was seen before, or may be read now.

        Raises:
            Unavailable: Redis has an older directory than the one seen here, where a revoked key may be valid again.
        """
        if self.set_back and seen.known(name) is None:
            raise Unavailable("the directory in Redis is older than one seen here; nothing new is read from it")
        return await seen.find(name)

    async def _try(self) -> None:
        try:
            await self.refresh()
        except LogSetBack as error:
            if not self.set_back:
                log.error(f"directory: {error.message}")
            self.set_back = True
        except Unavailable:
            if self._followed:
                log.warning("directory: Redis does not answer; the last copy stays in force")
            self._followed = False
        else:
            if not self._followed:
                log.info("directory: Redis answers again")
            self._followed = True
            self.set_back = False

    async def _catch_up(self, since: ChainPosition, head: ChainPosition) -> bool:
        """Read again what the records since then name; False if they do not lead from one to the other."""
        if head == since:
            return True
        if not 0 < head.sequence - since.sequence <= _MOST_ENTRIES:
            return False
        logged = await self._directory.audit.read(since.sequence, head.sequence - since.sequence)
        try:
            entries = [one.read() for one in logged]
        except ValueError:
            return False  # somebody has tampered with the log
        if len(entries) != head.sequence - since.sequence or entries[0].previous != since.hash:
            return False
        changed: dict[str, set[str]] = {}
        for entry in entries:
            changed.setdefault(entry.action.partition(".")[0], set()).add(entry.subject)
        read = {kind: await self._directory.stored(kind, sorted(changed.get(kind.KIND, ()))) for kind in _WHOLE}
        for kind, records in read.items():
            for identity, record in records.items():
                if record is None:
                    self._records[kind.KIND].pop(identity, None)
                else:
                    self._records[kind.KIND][identity] = record
        keys = await self._directory.stored(Key, sorted(changed.get("key", ())))
        self._keys.forget({id: key.digest if key else None for id, key in keys.items()})
        self._keys_named.forget({id: id if key else None for id, key in keys.items()})
        users = await self._directory.stored(User, sorted(changed.get("user", ())))
        self._users.forget({id: (user.tenant, user.subject) if user else None for id, user in users.items()})
        self._users_named.forget({id: id if user else None for id, user in users.items()})
        return True

    async def _read_all(self) -> None:
        read = {kind.KIND: await self._all(kind) for kind in _WHOLE}
        self._records = read
        for seen in (self._keys, self._keys_named, self._users, self._users_named):
            seen.clear()

    async def _all(self, kind: type[R]) -> dict[str, Record]:
        return {record.identity: record async for record in self._directory.every(kind, stored_only=True)}

    def _price(self, name: str) -> Price | None:
        return self._configured.prices.get(name) or cast("Price | None", self._records["price"].get(name))
