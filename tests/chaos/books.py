"""What Redis holds of limits and usage during a run and after it."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, field
from time import monotonic

import msgspec
from redis.asyncio import Redis
from redis.exceptions import RedisError

from gateway.billing.entry import LedgerEntry, Totals, parse_counters, totals
from gateway.limits.counters import UNIT
from tests.chaos.installation import CONCURRENT, RATE, TENANTS, Installation

_OUTPUT, _HELD_OUTPUT, _HELD_SPEND, _TURNS, _SPENT_MONTH = 3, 5, 6, 7, 12
"""Places of counters in a subject's field of `rh1:limit:{<tenant>}`, see docs/redis-keys.md."""
_RESERVED = range(4, 9)
"""Places of the counters of what is reserved."""
_HELD = (b"1", b"3")
"""First bytes of reservations that are held, or the money of which is."""
_INTERVAL = 0.2
_LIMITS = 3
"""Number of limits that are looked at."""


@dataclass
class LimitWatch:
    """Looks at the limits' counters while a run goes on."""

    installation: Installation
    looks: int = 0
    beyond: list[tuple[float, str]] = field(default_factory=list)
    """When a limit was exceeded, and how far."""

    async def run(self) -> None:
        """Look until cancelled."""
        async with Redis.from_url(self.installation.redis.url, socket_timeout=1.0) as client:
            while True:
                with contextlib.suppress(RedisError, OSError):
                    await self._look(client)
                await asyncio.sleep(_INTERVAL)

    async def _look(self, client: Redis) -> None:
        narrow = await client.hget("rh1:limit:{narrow}", "tenant")
        poor = await client.hget("rh1:limit:{poor}", "tenant")
        self.looks += 1
        now = monotonic()
        if narrow:
            counters = [int(number) for number in narrow.split()]
            output = counters[_OUTPUT] / UNIT + counters[_HELD_OUTPUT]
            if counters[_TURNS] > CONCURRENT:
                self._found(now, f"{counters[_TURNS]} turns of {CONCURRENT} at the same time")
            if output > RATE:
                self._found(now, f"{output:g} output tokens of {RATE}")
        if poor:
            counters = [int(number) for number in poor.split()]
            spent = counters[_SPENT_MONTH] + counters[_HELD_SPEND]
            if spent > self.installation.budget:
                self._found(now, f"{spent} of {self.installation.budget} micro-dollars")

    def _found(self, now: float, what: str) -> None:
        if all(what != said for _, said in self.beyond[-_LIMITS:]):  # else it has not changed since the last look
            self.beyond.append((now, what))


async def entries(installation: Installation) -> list[LedgerEntry]:
    """Return the ledger's entries of all tenants."""
    decoder = msgspec.json.Decoder(LedgerEntry)
    found = []
    async with Redis.from_url(installation.redis.url) as client:
        for tenant in TENANTS:
            async for key in client.scan_iter(f"rh1:usage:{{{tenant}}}:*"):
                found += [decoder.decode(fields[b"entry"]) for _, fields in await client.xrange(key)]
    return found


async def sums_differ(installation: Installation, ledger: list[LedgerEntry]) -> list[str]:
    """Return where the sums of days differ from the entries that they count."""
    found = []
    async with Redis.from_url(installation.redis.url) as client:
        for tenant in TENANTS:
            counted = Totals()
            async for key in client.scan_iter(f"rh1:usage-day:{{{tenant}}}:*"):
                for each in parse_counters(await client.hgetall(key)).values():
                    counted += each
            listed = sum((totals(entry) for entry in ledger if entry.tenant == tenant), Totals())
            if counted != listed:
                found.append(f"{tenant}: sums are {counted}, entries {listed}")
    return found


async def reserved(installation: Installation) -> list[tuple[str, str]]:
    """Return what is reserved: tenant, and id of the turn or socket."""
    found = []
    async with Redis.from_url(installation.redis.url) as client:
        for tenant in TENANTS:
            held = await client.hgetall(f"rh1:limit-held:{{{tenant}}}")
            found += [(tenant, id.decode()) for id, record in held.items() if record.startswith(_HELD)]
    return found


async def held(installation: Installation) -> list[str]:
    """Return counters of what is reserved that are not zero."""
    found = []
    async with Redis.from_url(installation.redis.url) as client:
        for tenant in TENANTS:
            for subject, counters in (await client.hgetall(f"rh1:limit:{{{tenant}}}")).items():
                if subject != b"clock" and any(counters.split()[place] != b"0" for place in _RESERVED):
                    found.append(f"{tenant}, {subject.decode()}: {counters.decode()}")
    return found
