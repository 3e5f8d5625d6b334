"""What `roundhouse doctor` says of engines whose number follows the load, and of those that announce themselves."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path

from redis.asyncio import Redis
from redis.exceptions import RedisError

from engine.registration import LEASE_KEY, LIFETIME, MAX_SKEW, Lease
from engine.wire import PROTOCOL_MIN, PROTOCOL_VERSION
from gateway.access.identity.secret import derive, installation_secret
from gateway.cli.check_result import PATIENCE, CheckResult
from gateway.config.settings import PoolSettings, Settings, SettingsError
from gateway.engines.leases import LeaseLook, look_up
from gateway.engines.pool_model import PoolModel
from gateway.scaling.records import PoolRecords
from gateway.storage.connect import connect

_SCALING_REMEDIES = {
    "bounds": "raise max_replicas, or bound the work by limits",
    "budget": "raise the pool's budget",
    "stuck": "look where its engines are started: free machines, images, quotas",
    "starts_fail": "look at the logs of its engines",
    "no_signal": "look at Redis: leases of engines are missing",
}
"""What to do about reasons to alert."""
_REFUSAL_REMEDIES = {
    "seal": "start it with the key that `roundhouse engine key` prints here, as --register-key",
    "form": "update it, or this host: they are of different versions",
    "time": "run NTP on its machine and on this one",
}
"""What to do about leases that gateways do not believe."""
_SKEW = 5.0
"""Seconds by which an engine's clock may differ."""


async def scaling(settings: Settings) -> AsyncIterator[CheckResult]:
    """Check pools whose number of engines follows the load; where Redis does not answer, nothing is known of them."""
    pools = [pool.tier for pool in settings.pools if pool.scaled]
    try:
        async with connect(settings, timeout=PATIENCE) as redis:
            records = PoolRecords(redis)
            leader = await records.leader() if pools else None
            found = [(tier, await records.read(tier)) for tier in pools]
    except (SettingsError, RedisError, OSError, ValueError):
        return
    if leader is not None and leader.seconds > 0:
        yield CheckResult("services", "controller", f"{leader.id} decides how many engines pools have")
    elif pools:
        remedy = "start `roundhouse serve`, or `roundhouse scale run` where engines are started elsewhere"
        yield CheckResult("services", "controller", "nobody decides how many engines pools have", "warning", remedy)
    for tier, record in found:
        name = f"engines of {tier}"
        if record is None:
            continue
        value = f"{record.ready} ready of {record.desired}, at most {record.max_replicas}"
        if record.alerts:
            value = f"{value}: {'; '.join(each.text for each in record.alerts)}"
            remedy = "; ".join(dict.fromkeys(_SCALING_REMEDIES[each.kind] for each in record.alerts))
            yield CheckResult("services", name, value, "warning", remedy)
        else:
            yield CheckResult("services", name, value)


async def announced(settings: Settings) -> AsyncIterator[CheckResult]:
    """Check the leases of engines that announce themselves; where Redis does not answer, nothing is known of them."""
    pools = [pool for pool in settings.pools if pool.registered or pool.elastic]
    try:
        if (secret := _secret(settings)) is None:
            return
        key = derive(secret, "engines")
        async with connect(settings, timeout=PATIENCE) as redis:
            looks = [(pool, await look_up(redis, key, pool.tier)) for pool in pools]
            skews = {pool.tier: await _skews(redis, look.leases) for pool, look in looks}
    except (SettingsError, RedisError, OSError, ValueError):
        return
    for pool, look in looks:
        yield _summary(pool, look)
        model = PoolModel(pool.name, Path(pool.model), pool.yarn_factor)
        for lease in look.leases:
            for value, remedy in _problems(lease, model, skews[pool.tier].get(lease.id, 0.0)):
                yield CheckResult("services", lease.id, value, "warning", remedy)
        for id, refusal in look.refused.items():
            remedy = _REFUSAL_REMEDIES[refusal.reason]
            yield CheckResult("services", id[:64], f"its lease is not believed: {refusal}", "warning", remedy)


def _secret(settings: Settings) -> bytes | None:
    """Return the installation's secret, or None while it has none: asking for it would make one.

    Raises:
        SettingsError: it cannot be used.
    """
    there = os.environ.get("ROUNDHOUSE_SECRET") or Path(settings.redis.data, "secret").exists()
    return installation_secret(settings) if there else None


def _summary(pool: PoolSettings, look: LeaseLook) -> CheckResult:
    """Say how many engines of a pool have announced themselves."""
    name, states = f"leases of {pool.tier}", Counter(lease.state for lease in look.leases)
    value = f"{len(look.leases)} engine{'' if len(look.leases) == 1 else 's'} announced"
    value += f" ({', '.join(f'{count} {state}' for state, count in sorted(states.items()))})" if states else ""
    if look.ended:
        value += f", {len(look.ended)} ended without withdrawing"
    if look.leases or pool.min_replicas == 0:
        if not look.ended:
            return CheckResult("services", name, value)
        ids = ", ".join(id.decode(errors="replace")[:64] for id in look.ended[:3])
        return CheckResult("services", name, value, "note", f"unless they were meant to end, look at the logs of {ids}")
    if pool.elastic:
        return CheckResult("services", name, value, "note", "`roundhouse serve` starts them")
    remedy = f"start one: roundhouse engine serve --pool {pool.tier} --register URL --register-key FILE, with the model"
    return CheckResult("services", name, value, "broken", remedy)


def _problems(lease: Lease, model: PoolModel, skew: float) -> Iterator[tuple[str, str]]:
    """Yield what is wrong with an engine, each with what to do."""
    if (mismatch := model.mismatch(lease)) is not None:
        yield f"it is not used: {mismatch}", "start it with the pool's checkpoint, or with the --pool that it is for"
    if not lease.understood:
        theirs, ours = f"{lease.protocol_min} to {lease.protocol}", f"{PROTOCOL_MIN} to {PROTOCOL_VERSION}"
        yield f"it is not used: it speaks versions {theirs} of the protocol, this host {ours}", "update the older one"
    if abs(skew) > _SKEW:
        side = "ahead of" if skew > 0 else "behind"
        remedy = f"run NTP on both: from {MAX_SKEW:.0f} s on its lease is not believed"
        yield f"its clock is {abs(skew):.0f} s {side} this machine's", remedy


async def _skews(redis: Redis, leases: Sequence[Lease]) -> dict[str, float]:
    """Return by how many seconds the clocks of engines are ahead of this machine's.

    How long ago a lease was written, its time to live tells, which no clock of theirs or ours has a part in.
    """
    async with redis.pipeline(transaction=False) as pipeline:
        for lease in leases:
            pipeline.pttl(LEASE_KEY.format(pool=lease.pool, id=lease.id))
        left = await pipeline.execute() if leases else []
    now = time.time()
    return {
        lease.id: lease.time - (now - (LIFETIME - rest / 1000))
        for lease, rest in zip(leases, left, strict=True)
        if rest > 0
    }
