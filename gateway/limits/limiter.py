"""Limits of all tenants: reserve what a turn may use at most, settle what it used.

Checking before and charging after lets concurrent turns overshoot; a reservation taken atomically does not. The
counters live in Redis (`limits.lua`) and are shared by all gateways. When Redis is down or slow, a circuit breaker
spares turns the wait, and `limits.on_redis_down` says whether turns are limited within this process, to its share of
each limit, or refused. What was used meanwhile is charged when Redis is back.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec
from msgspec import Struct
from redis.asyncio import Redis
from redis.exceptions import RedisError

from gateway.background import Periodic
from gateway.config.settings import Settings
from gateway.errors import Unavailable
from gateway.limits import readings
from gateway.limits.book import Book
from gateway.limits.counters import Counters, bounds_of
from gateway.limits.dead_gateways import DeadGateways
from gateway.limits.expectation import Expectations
from gateway.limits.idle import IdleLimits
from gateway.limits.reservation import Reservation
from gateway.limits.script import SCRIPT, Argument, ScriptReply, answer, arguments, keys, release, renewal
from gateway.limits.subjects import share_of_quota
from gateway.protocol.stream import LimitState
from gateway.records.quota import Amounts, Charge, LimitSubject
from router.health import Breaker, Circuit

log = logging.getLogger("roundhouse.limits")

LEASE = 60.0
"""Seconds after which a reservation that nobody renews is given back."""
REMEMBERED = 10 * LEASE
"""Seconds for which it is known that a turn was charged that Redis may not have held: whoever takes over the journal of
its gateway may charge it again."""
MAX_LATE = 10_000
"""Most settlements kept for later while Redis is down; older ones are left to their lease."""
MAX_SEEN = 10_000
"""Most subjects whose last counters are kept for the time without Redis."""
PAUSE = 1.0
"""Seconds after which a Redis that did not answer is tried again, by one turn: a fail-over takes some two seconds, and
limits are local until it is noticed."""
_CATCH_UP = 1.0
"""Seconds between two attempts to send late settlements."""
_BATCH = 200
"""Reservations renewed by one call."""
_NOTHING = Amounts()


class _Late(Struct, frozen=True):
    """A settlement to send to Redis when it is back."""

    operation: str
    tenant: str
    id: str
    amounts: Amounts
    subjects: tuple[LimitSubject, ...]


class Limiter:
    """Reserves and settles amounts against the limits of all tenants."""

    def __init__(
        self,
        redis: Redis,
        settings: Settings,
        *,
        gateways: Callable[[], int] = lambda: 1,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Args: gateways: how many share this Redis, for the time without it; clock: seconds, monotonic."""
        self._script = redis.register_script(SCRIPT)
        self._gateways = gateways
        self._clock = clock
        self._breaker = Breaker(failures=5, pause=PAUSE)
        self._lease = int(LEASE * 1000)
        self._outstanding: dict[str, Reservation] = {}
        self._books: dict[str, Book] = {}
        """Book of each tenant while Redis is away."""
        self._late: deque[_Late] = deque(maxlen=MAX_LATE)
        self._seen: OrderedDict[tuple[str, str], Counters] = OrderedDict()
        self._offset = time.time() - clock()
        """Seconds from this process's clock to Redis' clock."""
        self._catching_up = asyncio.Lock()
        self._renewed = clock()
        self._doubtful = False
        """Whether Redis has been away since the last renewal: another server may answer by now, which lacks some."""
        self._keeping = Periodic("limits", self._keep_up, _CATCH_UP, at_end=self._settle_up)
        self.expectations = Expectations(redis)
        self._idle = IdleLimits(redis)
        self._dead = DeadGateways(redis, clock)
        self.configure(settings)

    def configure(self, settings: Settings) -> None:
        """Use the limits of a new configuration; counted amounts stay."""
        self._settings = settings.limits

    @property
    def circuit(self) -> Circuit:
        """State of the circuit breaker that spares turns a Redis that does not answer."""
        return self._breaker.circuit

    @property
    def outstanding(self) -> int:
        """Number of reservations of this process that have not been settled."""
        return sum(1 for reservation in self._outstanding.values() if not reservation.amounts.sockets)

    async def start(self) -> None:
        """Start renewing leases and sending late settlements."""
        await self._keeping.start()

    async def aclose(self) -> None:
        """Stop, and send Redis all late settlements."""
        await self._keeping.aclose()

    async def reserve(self, tenant: str, id: str, amounts: Amounts, subjects: tuple[LimitSubject, ...]) -> Reservation:
        """Set amounts aside for a turn or socket, all or none. A repeated call for the same one reserves once.

        Raises:
            InvalidRequest: more than a limit can ever give.
            RateLimited: not enough at the moment; says which limit, and when there may be.
            Unavailable: Redis is down and the limits say `deny`.
        """
        if not subjects:
            return Reservation(tenant, id, subjects, amounts, False, [])
        readings.check_size(subjects, amounts)
        await self._tell_first()
        asked, answered = self._breaker.allows(self._clock()), False
        try:
            given = await self._call("reserve", tenant, id, amounts, subjects)
            local, answered = given is None, given is not None
            if given is None:
                given = self._reserve_here(tenant, id, amounts, subjects)
            elif not given.granted:
                raise readings.refusal(subjects, given.counters, amounts, self._settings.soft_limit)
        except BaseException:
            # Redis may have taken what it had no time to answer for. It is told, or else the lease ends.
            if asked and not answered:
                self._late.append(_Late("settle", tenant, id, _NOTHING, subjects))
            raise
        reservation = Reservation(tenant, id, subjects, amounts, local, given.counters)
        self._outstanding[id] = reservation
        if local:
            self._late.append(_Late("hold", tenant, id, amounts, subjects))
        return reservation

    def doubts(self, tenant: str, amounts: Amounts, subjects: tuple[LimitSubject, ...]) -> bool:
        """Whether there may be too little left, by the last known counters of these subjects. Asks nobody."""
        for subject in subjects:
            seen = self._seen.get((tenant, subject.name))
            if seen is not None:
                bounds = bounds_of(subject.quota)
                now = msgspec.structs.replace(seen)
                now.advance(bounds, self._now())
                if now.shortfall(bounds, amounts):
                    return True
        return False

    def nothing(self, tenant: str, id: str) -> Reservation:
        """Return a reservation that holds nothing yet: `extend` fills it."""
        return Reservation(tenant, id, (), _NOTHING, False, [])

    async def extend(self, reservation: Reservation, amounts: Amounts, subjects: tuple[LimitSubject, ...]) -> None:
        """Set aside `amounts` in all for a turn that has a reservation, of `subjects` in all, among them those it has.

        All or none; what is refused is settled, but a request that was counted stays counted.

        Raises:
            InvalidRequest, RateLimited, Unavailable: as from `reserve`.
        """
        tenant, id = reservation.tenant, reservation.id
        if not subjects:
            return
        readings.check_size(subjects, amounts)
        reservation.subjects = subjects  # from now on Redis may have taken something
        await self._tell_first()
        given = None if reservation.local else await self._call("extend", tenant, id, amounts, subjects)
        if given is not None and not given.granted:
            self._outstanding.pop(id, None)
            reservation.subjects = ()
            raise readings.refusal(subjects, given.counters, amounts, self._settings.soft_limit)
        if given is None:
            given = self._reserve_here(tenant, id, amounts, subjects, instead=True)
            self._late.append(_Late("widen", tenant, id, amounts, subjects))
            reservation.local = True
        reservation.amounts, reservation.counters = amounts, given.counters
        self._outstanding[id] = reservation

    async def settle(self, reservation: Reservation, used: Amounts) -> LimitState:
        """Charge what was used instead of what was reserved; return the limits after it. Never raises."""
        tenant, id, subjects = reservation.tenant, reservation.id, reservation.subjects
        self._outstanding.pop(id, None)
        if not subjects:
            return LimitState()
        try:
            given = None if reservation.local else await self._call("settle", tenant, id, used, subjects)
        except BaseException:  # nobody waits for it any more; to settle twice changes nothing
            self._late.append(_Late("settle", tenant, id, used, subjects))
            raise
        if given is not None:
            return self._state(subjects, given.counters)
        if reservation.local:
            charged = Amounts(reservation.amounts.requests, 0, 0, used.input_tokens, used.output_tokens, used.spend)
            self._late.append(_Late("charge", tenant, id, charged, subjects))
        else:
            self._late.append(_Late("settle", tenant, id, used, subjects))
        shares = self._shares(subjects)
        _, counters = self._book(tenant).settle(id, used, shares, self._now())
        return self._state(shares, counters)

    def state(self, reservation: Reservation) -> LimitState:
        """Return the limits when the reservation was taken."""
        subjects = self._shares(reservation.subjects) if reservation.local else reservation.subjects
        return self._state(subjects, reservation.counters)

    async def read(self, tenant: str, subjects: tuple[LimitSubject, ...]) -> LimitState:
        """Return the limits now."""
        given = await self._call("read", tenant, "", _NOTHING, subjects)
        if given is not None:
            return self._state(subjects, given.counters)
        shares = self._shares(subjects)
        return self._state(shares, self._book(tenant).read(shares, self._now())[1])

    async def charge_lost(self, tenant: str, charge: Charge) -> None:
        """Charge what a turn had used whose gateway has died; once, also if it is asked for again within ten minutes.

        Raises:
            ConnectionError: Redis does not answer.
        """
        operation = "settle" if charge.if_held else "charge"
        if await self._call(operation, tenant, charge.reservation, charge.used, charge.subjects) is None:
            raise ConnectionError("a lost turn was not charged to its limits")

    def died(self, gateway: str) -> None:
        """Give back what a gateway holds that has died, soon."""
        self._dead.died(gateway)

    def returned(self) -> None:
        """Renew the leases at once: other gateways may have taken this one for dead."""
        self._doubtful = True

    async def renew(self) -> None:
        """Renew the leases of what still runs."""
        by_tenant: dict[str, list[str]] = {}
        for reservation in self._outstanding.values():
            by_tenant.setdefault(reservation.tenant, []).append(reservation.id)
        for tenant, ids in by_tenant.items():
            if tenant in self._books:
                self._books[tenant].renew(ids, self._now())
            for start in range(0, len(ids), _BATCH):
                batch = ids[start : start + _BATCH]
                known = await self._ask(tenant, renewal(self._lease, batch))
                if known is not None and known < len(batch):
                    self._hold_again(batch)

    def _hold_again(self, ids: Iterable[str]) -> None:
        """Hold reservations again of which Redis has lost some: what it still holds, it does not hold twice."""
        for id in ids:
            found = self._outstanding.get(id)
            if found is not None and not found.local:
                found.local = True  # until it is held, a settlement must not come before that
                self._late.append(_Late("hold", found.tenant, id, found.amounts, found.subjects))

    async def _tell_first(self) -> None:
        """Let late settlements reach Redis before it decides anything else, also those that are on their way."""
        if (self._late or self._catching_up.locked()) and self._breaker.allows(self._clock()):
            await self.catch_up()

    async def catch_up(self) -> None:
        """Send Redis the late settlements."""
        async with self._catching_up:
            while self._late:
                batch = [self._late.popleft() for _ in range(min(len(self._late), _BATCH))]
                told = [False] * len(batch)
                try:
                    told = await asyncio.gather(*map(self._tell, batch))
                finally:  # a turn that sends them may be cut off; to tell Redis twice changes nothing
                    missed = [late for late, done in zip(batch, told, strict=True) if not done]
                    self._late.extendleft(reversed(missed))
                waiting = {late.id for late in self._late}
                for late in batch:
                    reservation = self._outstanding.get(late.id)
                    if reservation is not None and late.id not in waiting:
                        reservation.local = False
                if missed:
                    return
            if self._breaker.circuit is Circuit.CLOSED:
                self._books.clear()  # Redis knows everything again

    async def _tell(self, late: _Late) -> bool:
        return await self._call(late.operation, late.tenant, late.id, late.amounts, late.subjects) is not None

    async def _keep_up(self) -> None:
        doubtful = self._doubtful and self._breaker.allows(self._clock())
        if doubtful or self._clock() - self._renewed >= LEASE / 3:
            self._renewed, self._doubtful = self._clock(), False
            await self.renew()
        await self._settle_up()

    async def _settle_up(self) -> None:
        if self._late or self._books:
            await self.catch_up()
        if self._breaker.circuit is Circuit.CLOSED:
            with contextlib.suppress(RedisError, OSError):  # what was learnt waits
                await self._idle.sweep()
                await self._dead.release(self._idle.lately, self._release)
                if self.expectations.waiting:
                    await self.expectations.exchange()

    def _reserve_here(
        self, tenant: str, id: str, amounts: Amounts, subjects: tuple[LimitSubject, ...], *, instead: bool = False
    ) -> ScriptReply:
        if self._settings.on_redis_down == "deny":
            raise Unavailable("limits cannot be checked at the moment; try again in a few seconds")
        shares = self._shares(subjects)
        granted, now, counters = self._book(tenant).reserve(id, amounts, shares, self._now(), instead=instead)
        if not granted:
            raise readings.refusal(shares, counters, amounts, self._settings.soft_limit)
        return ScriptReply(granted, now, counters)

    def _shares(self, subjects: Sequence[LimitSubject]) -> tuple[LimitSubject, ...]:
        gateways = max(1, self._gateways())
        return tuple(LimitSubject(subject.name, share_of_quota(subject.quota, gateways)) for subject in subjects)

    def _book(self, tenant: str) -> Book:
        """Return this process's book of a tenant. It starts with Redis' last known counters and what runs here."""
        book = self._books.get(tenant)
        if book is None:
            book = self._books[tenant] = Book(self._lease)
            gateways = max(1, self._gateways())
            for (owner, name), counters in self._seen.items():
                if owner == tenant:
                    book.adopt(name, counters, gateways)
            for reservation in self._outstanding.values():
                if reservation.tenant == tenant:
                    book.adopt_reservation(reservation.id, reservation.amounts, reservation.subjects, self._now())
        return book

    def _now(self) -> int:
        return int((self._clock() + self._offset) * 1000)

    def _state(self, subjects: Sequence[LimitSubject], counters: Sequence[Counters]) -> LimitState:
        return readings.read(subjects, counters, self._settings.soft_limit)

    async def _release(self, tenant: str, part: str) -> None:
        await self._ask(tenant, release(self._lease, part))

    async def _call(
        self,
        operation: str,
        tenant: str,
        id: str,
        amounts: Amounts,
        subjects: tuple[LimitSubject, ...],
    ) -> ScriptReply | None:
        lease = int(REMEMBERED * 1000) if operation == "charge" else self._lease
        reply = await self._ask(tenant, arguments(operation, lease, id, amounts, subjects))
        if reply is None:
            return None
        given = answer(reply)
        self._offset = given.now / 1000 - self._clock()
        self._idle.used(tenant)
        for subject, counters in zip(subjects, given.counters, strict=True):
            self._seen[tenant, subject.name] = counters
        while len(self._seen) > MAX_SEEN:
            self._seen.popitem(last=False)
        return given

    async def _ask(self, tenant: str, words: list[Argument]) -> Any:
        """Call the script once; None if Redis did not answer in time."""
        now = self._clock()
        if not self._breaker.allows(now):
            return None
        self._breaker.attempt(now)
        try:
            reply = await self._script(keys=keys(tenant), args=words)
        except (RedisError, OSError) as error:
            self._breaker.failed(now)
            self._doubtful = True
            log.warning("limits: no answer from Redis", extra={"error": type(error).__name__})
            return None
        self._breaker.succeeded()
        return reply
