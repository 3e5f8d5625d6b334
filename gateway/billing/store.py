"""The usage ledger in Redis: writes entries and counters in one script, and deletes what is old enough."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from importlib import resources
from typing import cast

import msgspec
from msgspec import Struct
from redis.asyncio import Redis

from gateway.billing.entry import (
    DAY_DIGITS,
    TENANTS_KEY,
    LedgerEntry,
    counters_key,
    entries_key,
    group,
    hour_of,
    periods_key,
    totals,
)
from gateway.config.settings import UsageSettings
from gateway.records.quota import Charge
from gateway.storage.replicas import Replicas

_encoder = msgspec.json.Encoder()


class Numbered(Struct, frozen=True, omit_defaults=True):
    """An entry with its number: each writer counts up, and sends again what may not have arrived."""

    number: int
    entry: LedgerEntry
    charges: tuple[Charge, ...] = ()
    """What the limits are charged for it, in case that its gateway dies first; journals of older versions have none."""


class LedgerStore:
    """The ledger of all tenants in Redis."""

    def __init__(self, redis: Redis, settings: UsageSettings, replicas: Replicas = Replicas()) -> None:  # noqa: B008
        """Args: redis: a client that may wait for `replicas`, which must have what is written."""
        self._redis = redis
        self._replicas = replicas
        self._settings = settings
        self._script = redis.register_script(
            resources.files("gateway.billing").joinpath("ledger.lua").read_text("utf-8")
        )

    async def write(self, writer: str, entries: Sequence[Numbered], *, patience: float | None = None) -> bool:
        """Count entries of one writer, in the order of their numbers. Entries that were counted before are not counted
        again. Return whether the replicas have them; `patience`: seconds to wait for that, instead of the configured.

        Raises:
            RedisError: some of them may not have been counted; send them all again.
        """
        if not entries:
            return True
        async with self._redis.pipeline(transaction=False) as pipeline:
            for tenant, hour, run in _runs(entries):
                keys = [
                    entries_key(tenant, hour[:DAY_DIGITS]),
                    counters_key(tenant, hour),
                    counters_key(tenant, hour[:DAY_DIGITS]),
                    periods_key(tenant),
                ]
                args: list[str | bytes | int] = [writer, self._settings.entries_per_day, hour]
                for numbered in run:
                    entry = numbered.entry
                    args += [numbered.number, group(entry).field, _encoder.encode(entry), *totals(entry).values]
                await self._script(keys=keys, args=args, client=pipeline)
            pipeline.zadd(TENANTS_KEY, {numbered.entry.tenant: numbered.entry.at // 1000 for numbered in entries})
            _, confirmed = await self._replicas.execute(pipeline, patience)
        return confirmed

    async def prune(self, now: datetime) -> None:
        """Delete entries and counters that are older than the settings say.

        Raises:
            RedisError: some of it is still there.
        """
        entries, hours, days = (
            int((now - timedelta(days=days)).strftime("%Y%m%d%H"))
            for days in (self._settings.entry_days, self._settings.hour_days, self._settings.day_days)
        )
        for name in cast("list[bytes]", await self._redis.zrange(TENANTS_KEY, 0, -1)):
            tenant = name.decode()
            index = periods_key(tenant)
            found = await self._redis.zrangebyscore(index, 0, max(entries, hours, days))
            async with self._redis.pipeline(transaction=False) as pipeline:
                for period in (member.decode() for member in cast("list[bytes]", found)):
                    if len(period) > DAY_DIGITS:
                        # Those of a day go together, so that they always make up the whole of it.
                        if int(period[:DAY_DIGITS] + "23") < hours:
                            pipeline.delete(counters_key(tenant, period))
                            pipeline.zrem(index, period)
                    else:
                        if int(period + "23") < entries:
                            pipeline.delete(entries_key(tenant, period))
                        if int(period + "23") < days:
                            pipeline.delete(counters_key(tenant, period), entries_key(tenant, period))
                            pipeline.zrem(index, period)
                await pipeline.execute()
            if not await self._redis.exists(index):
                await self._redis.zrem(TENANTS_KEY, tenant)


def _runs(entries: Iterable[Numbered]) -> Iterable[tuple[str, str, list[Numbered]]]:
    """Group entries by tenant and hour. Those of a tenant stay in order, also where its clock went back."""
    runs: dict[str, list[tuple[str, list[Numbered]]]] = {}
    for numbered in entries:
        hour = hour_of(numbered.entry.at)
        own = runs.setdefault(numbered.entry.tenant, [])
        if not own or own[-1][0] != hour:
            own.append((hour, []))
        own[-1][1].append(numbered)
    return [(tenant, hour, run) for tenant, own in runs.items() for hour, run in own]
