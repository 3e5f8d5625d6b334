"""Token limits per tenant: reserve what a turn may use at most, settle what it used.

Checking before and charging after lets concurrent turns overshoot; a reservation taken atomically does not. The bucket
lives in Redis (`bucket.lua`) and is shared by all gateways. When Redis is down or slow, a breaker keeps it off the road
of every turn, and `limits.on_redis_down` says whether turns are limited within this process or refused.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable
from importlib import resources

from msgspec import Struct
from redis.asyncio import Redis
from redis.exceptions import RedisError

from gateway.errors import InvalidRequest, RateLimited, Unavailable
from gateway.limits.bucket import Answer, LocalBucket
from gateway.protocol.stream import LimitState
from gateway.settings import Limits, Settings
from router.health import Breaker, Circuit

log = logging.getLogger("roundhouse.limits")

LEASE = 900.0
"""Seconds until the reservation of a gateway that died comes back."""
MAX_UNSETTLED = 10_000
"""Settlements kept for later while Redis is down; beyond that the oldest are left to their lease."""

LEVEL_KEY = "rh1:limit:{{{tenant}}}"
HELD_KEY = "rh1:limit-held:{{{tenant}}}"
LEASES_KEY = "rh1:limit-lease:{{{tenant}}}"


class Reservation(Struct, frozen=True):
    """Tokens set aside for one turn. Must be settled exactly once; settling again changes nothing."""

    tenant: str
    turn: str
    tokens: int
    local: bool
    """Taken from this process's bucket because Redis was not available."""


class Limiter:
    """The token buckets of all tenants."""

    def __init__(self, redis: Redis, settings: Settings, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._script = redis.register_script(
            resources.files("gateway.limits").joinpath("bucket.lua").read_text("utf-8")
        )
        self._clock = clock
        self._breaker = Breaker(failures=5, pause=5.0)
        self._local: dict[str, LocalBucket] = {}
        self._unsettled: deque[tuple[Reservation, int]] = deque(maxlen=MAX_UNSETTLED)
        self._limits: dict[str, Limits] = {}
        self._default = settings.limits
        self.outstanding = 0
        """Reservations of this process that have not been settled."""
        self.configure(settings)

    def configure(self, settings: Settings) -> None:
        """Take over the limits of a new configuration; what Redis holds of a bucket stays there."""
        before = {tenant: self.limits(tenant) for tenant in self._local}
        self._default = settings.limits
        self._limits = {tenant.name: tenant.limits for tenant in settings.tenants if tenant.limits}
        self._local = {name: bucket for name, bucket in self._local.items() if self.limits(name) == before[name]}

    @property
    def circuit(self) -> Circuit:
        """State of the breaker that keeps a Redis that does not answer off the road of every turn."""
        return self._breaker.circuit

    def limits(self, tenant: str) -> Limits:
        return self._limits.get(tenant, self._default)

    async def reserve(self, tenant: str, turn: str, tokens: int) -> Reservation:
        """Set tokens aside for a turn, all or none. The same turn reserves once, however often it asks.

        Raises:
            InvalidRequest: more than the bucket can ever hold.
            RateLimited: not enough at the moment; says when there will be.
            Unavailable: Redis is down and the limits say `deny`.
        """
        limits = self.limits(tenant)
        if tokens > limits.burst_tokens:
            raise InvalidRequest(
                f"this request may use {tokens} tokens (prompt and output limit), more than the {limits.burst_tokens} "
                "that may ever be used at once; shorten the input or lower the output limit",
                param="max_output_tokens",
                code="request_exceeds_limit",
            )
        answer = await self._call("reserve", tenant, turn, tokens)
        local = answer is None
        if answer is None:
            if limits.on_redis_down == "deny":
                raise Unavailable("limits cannot be checked at the moment; try again in a few seconds")
            answer = self._bucket(tenant).reserve(turn, tokens, self._clock())
        if not answer.granted:
            raise RateLimited(
                f"rate limit reached: {tokens} tokens wanted, {answer.remaining} left of "
                f"{limits.tokens_per_minute} per minute; try again in {answer.wait:.1f} s",
                retry_after=answer.wait,
            )
        self.outstanding += 1
        return Reservation(tenant, turn, tokens, local)

    async def settle(self, reservation: Reservation, used: int) -> LimitState:
        """Charge what was used instead of what was reserved; returns the bucket's state after it. Never raises."""
        self.outstanding -= 1
        tenant = reservation.tenant
        if reservation.local:
            return self._state(tenant, self._bucket(tenant).settle(reservation.turn, used, self._clock()))
        answer = await self._call("settle", tenant, reservation.turn, used)
        if answer is None:
            self._unsettled.append((reservation, used))
            return self._state(tenant, None)
        while self._unsettled:
            late, late_used = self._unsettled.popleft()
            if await self._call("settle", late.tenant, late.turn, late_used) is None:
                self._unsettled.appendleft((late, late_used))
                break
        return self._state(tenant, answer)

    async def state(self, tenant: str) -> LimitState:
        """What the tenant has left."""
        return self._state(tenant, await self._call("read", tenant, "", 0))

    def _state(self, tenant: str, answer: Answer | None) -> LimitState:
        if answer is None:
            answer = self._bucket(tenant).read(self._clock())
        return LimitState(self.limits(tenant).burst_tokens, max(answer.remaining, 0), answer.full)

    def _bucket(self, tenant: str) -> LocalBucket:
        bucket = self._local.get(tenant)
        if bucket is None:
            limits = self.limits(tenant)
            bucket = LocalBucket(limits.tokens_per_minute, limits.burst_tokens, now=self._clock())
            self._local[tenant] = bucket
        return bucket

    async def _call(self, operation: str, tenant: str, turn: str, tokens: int) -> Answer | None:
        """One call of the script; None if Redis did not answer in time."""
        now = self._clock()
        if not self._breaker.allows(now):
            return None
        self._breaker.attempt(now)
        limits = self.limits(tenant)
        try:
            granted, remaining, full, wait = await self._script(
                keys=[key.format(tenant=tenant) for key in (LEVEL_KEY, HELD_KEY, LEASES_KEY)],
                args=[operation, turn, tokens, limits.tokens_per_minute, limits.burst_tokens, int(LEASE * 1000)],
            )
        except (RedisError, OSError) as error:
            self._breaker.failed(now)
            log.warning("limits: no answer from Redis", extra={"error": type(error).__name__})
            return None
        self._breaker.succeeded()
        return Answer(bool(granted), remaining, full / 1000, wait / 1000)
