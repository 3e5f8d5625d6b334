"""The counters of one subject: what it has used, what is held for it, and which limit of its quota refuses. Pure.

The arithmetic of `limits.lua` in Python: it explains what the script decided, and stands in for it without Redis.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import NamedTuple

import msgspec
from msgspec import Struct

from gateway.records.quota import Amounts, Quota

UNIT = 60_000
"""Parts of a token or request, chosen so that what drains in a millisecond is the limit per minute, an integer."""
DAY = 86_400_000
"""Milliseconds of a day."""
BURST_SECONDS = 60
"""Burst of a quota that does not name one, in seconds."""
UNLIMITED = -1


class Bounds(NamedTuple):
    """A quota in the order in which the script reads it; -1 is no limit."""

    requests: int
    input_tokens: int
    output_tokens: int
    burst_seconds: int
    turns: int
    sockets: int
    day: int
    month: int

    def burst(self, rate: int) -> int:
        """Parts that may be used at once; at least one token or request, or nothing could ever pass."""
        return max(UNIT, rate * self.burst_seconds * 1000)


@lru_cache(maxsize=10_000)
def bounds_of(quota: Quota) -> Bounds:
    """Return a quota's bounds."""
    fields = (
        quota.requests_per_minute,
        quota.input_tokens_per_minute,
        quota.output_tokens_per_minute,
        quota.burst_seconds or BURST_SECONDS,
        quota.concurrent_turns,
        quota.open_sockets,
        quota.spend_per_day,
        quota.spend_per_month,
    )
    return Bounds(*(UNLIMITED if field is None else field for field in fields))


@lru_cache(maxsize=10_000)
def packed_bounds(quota: Quota) -> bytes:
    """Return a quota's bounds packed for the script."""
    return msgspec.msgpack.encode(bounds_of(quota))


class Gauge(NamedTuple):
    """One limit of a subject at one moment, in tokens, requests, turns, sockets or micro-dollars."""

    name: str
    """Name of the quota's field."""
    limit: int
    used: int
    """Amount used and held together, rounded up."""
    milliseconds: int
    """Milliseconds until nothing is used any more, if nothing is held; 0 if only the end of a turn or socket helps."""

    @property
    def remaining(self) -> int:
        return max(0, self.limit - self.used)


class Counters(Struct):
    """The counters of one subject. Rates are in parts (`UNIT`), the rest in whole tokens and micro-dollars."""

    at: int = 0
    """Time of the counters, in milliseconds since 1970 by Redis' clock."""
    requests: int = 0
    input: int = 0
    output: int = 0
    held_input: int = 0
    held_output: int = 0
    held_spend: int = 0
    turns: int = 0
    sockets: int = 0
    day: int = 0
    """Day of the daily counters, in days since 1970."""
    spent_day: int = 0
    month: int = 197001
    """Month of the monthly counters, such as 202611."""
    spent_month: int = 0

    @classmethod
    def decode(cls, text: bytes | str) -> Counters:
        """Decode what the script wrote."""
        return cls(*map(int, text.split()))

    def advance(self, bounds: Bounds, now: int) -> None:
        """Let the rates drain, and end a day and month that are over."""
        passed = max(0, now - self.at)
        self.at = now
        self.requests = _drained(self.requests, passed, bounds.requests)
        self.input = _drained(self.input, passed, bounds.input_tokens)
        self.output = _drained(self.output, passed, bounds.output_tokens)
        day, month = now // DAY, month_of(now)
        # A day that lies ahead by a small step of the clock goes on; after a large one its spend counts for today.
        astray = self.day > day + 1
        if self.day < day:
            self.spent_day = 0
        if self.month < month:
            self.spent_month = 0
        if astray or self.day < day:
            self.day = day
        if astray or self.month < month:
            self.month = month

    def gauges(self, bounds: Bounds) -> Iterator[Gauge]:
        """Return every limit that there is, after `advance`."""
        rates = (
            ("requests_per_minute", bounds.requests, self.requests, 0),
            ("input_tokens_per_minute", bounds.input_tokens, self.input, self.held_input),
            ("output_tokens_per_minute", bounds.output_tokens, self.output, self.held_output),
        )
        for name, rate, used, held in rates:
            if rate >= 0:
                yield Gauge(name, bounds.burst(rate) // UNIT, -(-used // UNIT) + held, -(-used // rate))
        for name, bound, count in (
            ("concurrent_turns", bounds.turns, self.turns),
            ("open_sockets", bounds.sockets, self.sockets),
        ):
            if bound >= 0:
                yield Gauge(name, bound, count, 0)
        if bounds.day >= 0:
            yield Gauge("spend_per_day", bounds.day, self.spent_day + self.held_spend, (self.day + 1) * DAY - self.at)
        if bounds.month >= 0:
            used = self.spent_month + self.held_spend
            yield Gauge("spend_per_month", bounds.month, used, end_of_month(self.month) - self.at)

    def shortfall(self, bounds: Bounds, wanted: Amounts) -> tuple[Gauge, int] | None:
        """Return the limit that refuses and the milliseconds until it may not: the one with the longest wait. None if
        everything fits.

        Where running turns hold what is missing, nobody knows when they end: the wait is a second then.
        """
        worst: tuple[Gauge, int] | None = None
        for gauge in self.gauges(bounds):
            wait = self._wait(gauge.name, gauge.milliseconds, bounds, wanted)
            if wait is not None and (worst is None or wait > worst[1]):
                worst = gauge, wait
        return worst

    def _wait(self, name: str, full: int, bounds: Bounds, wanted: Amounts) -> int | None:
        match name:
            case "requests_per_minute":
                return _rate_wait(bounds, bounds.requests, self.requests, 0, wanted.requests)
            case "input_tokens_per_minute":
                return _rate_wait(bounds, bounds.input_tokens, self.input, self.held_input, wanted.input_tokens)
            case "output_tokens_per_minute":
                return _rate_wait(bounds, bounds.output_tokens, self.output, self.held_output, wanted.output_tokens)
            case "concurrent_turns":
                return TURN_WAIT if wanted.turns and self.turns + wanted.turns > bounds.turns else None
            case "open_sockets":
                return TURN_WAIT if wanted.sockets and self.sockets + wanted.sockets > bounds.sockets else None
        spent, bound = (self.spent_day, bounds.day) if name == "spend_per_day" else (self.spent_month, bounds.month)
        if not wanted.spend or spent + self.held_spend + wanted.spend <= bound:
            return None
        return full if spent + wanted.spend > bound else TURN_WAIT

    def take(self, bounds: Bounds, wanted: Amounts) -> None:
        """Count a request and hold the other amounts."""
        if bounds.requests >= 0:
            self.requests += wanted.requests * UNIT
        self.hold(wanted, 1)

    def hold(self, amounts: Amounts, sign: int) -> None:
        """Hold amounts (1) or give them back (-1)."""
        self.turns = max(0, self.turns + sign * amounts.turns)
        self.sockets = max(0, self.sockets + sign * amounts.sockets)
        self.held_input = max(0, self.held_input + sign * amounts.input_tokens)
        self.held_output = max(0, self.held_output + sign * amounts.output_tokens)
        self.held_spend = max(0, self.held_spend + sign * amounts.spend)

    def charge(self, bounds: Bounds, used: Amounts) -> None:
        """Count the amounts that were used."""
        if bounds.requests >= 0:
            self.requests += used.requests * UNIT
        if bounds.input_tokens >= 0:
            self.input += used.input_tokens * UNIT
        if bounds.output_tokens >= 0:
            self.output += used.output_tokens * UNIT
        self.spent_day += used.spend
        self.spent_month += used.spend

    def encode(self) -> str:
        """Encode the counters as the script writes them."""
        return " ".join(map(str, msgspec.structs.astuple(self)))


TURN_WAIT = 1000
"""Milliseconds after which a client should ask again, where only the end of a running turn helps."""


def never_fits(quota: Quota, wanted: Amounts) -> Gauge | None:
    """Return the limit that the amounts exceed even if nothing else is used."""
    counters = Counters()
    for gauge in counters.gauges(bounds_of(quota)):
        amount = {
            "input_tokens_per_minute": wanted.input_tokens,
            "output_tokens_per_minute": wanted.output_tokens,
            "spend_per_day": wanted.spend,
            "spend_per_month": wanted.spend,
        }.get(gauge.name, 0)
        if amount > gauge.limit:
            return gauge
    return None


def month_of(milliseconds: int) -> int:
    """Year and month (UTC) of a time, such as 202611."""
    moment = datetime.fromtimestamp(milliseconds // 1000, UTC)
    return moment.year * 100 + moment.month


def end_of_month(month: int) -> int:
    """Milliseconds since 1970 at which the next month begins (UTC)."""
    begin = datetime(month // 100, month % 100, 1, tzinfo=UTC)
    return int((begin + timedelta(days=32)).replace(day=1).timestamp()) * 1000


def _drained(used: int, passed: int, rate: int) -> int:
    return 0 if rate < 0 else max(0, used - passed * rate)


def _rate_wait(bounds: Bounds, rate: int, used: int, held: int, wanted: int) -> int | None:
    missing = used + (held + wanted) * UNIT - bounds.burst(rate)
    if not wanted or missing <= 0:
        return None
    return -(-missing // rate) if missing <= used else max(TURN_WAIT, -(-used // rate))
