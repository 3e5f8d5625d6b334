"""Heartbeats: what each gateway reports about itself once a second, and the overview of all gateways that operators
see.

`Heartbeat` makes the facts that `gateway.storage.presence` writes to Redis: numbers and names, never text of clients.
`overview` puts the heartbeats of all gateways together; it is pure, and all that `roundhouse top` shows comes from it.
"""

from __future__ import annotations

import os
import platform
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping
from time import monotonic

import msgspec
from msgspec import Struct

from gateway import __version__
from gateway.engines.engine import Engine
from gateway.engines.pools import Engines
from gateway.telemetry.activity import Activity, Sums, TenantActivity

MAX_TENANTS = 100
"""Most tenants in one heartbeat: those that used most."""
MAX_ADAPTERS = 200
"""Most adapters in one heartbeat: those with most running turns."""


class ReplicaStatus(Struct):
    """Status of one engine, as a gateway sees it."""

    name: str
    tier: str
    model: str
    up: bool
    breaker: str
    running: int = 0
    waiting: int = 0
    predicted_queue_seconds: float = 0.0
    tokens_per_second: float = 0.0
    """Output tokens per second, over the last few seconds."""
    kv_used: float = 0.0
    """Share of the KV blocks that hold running requests or adapters."""
    kv_cached: float = 0.0
    """Share of the KV blocks that is kept for prefix hits only."""
    adapters: int = 0
    """Number of adapters on the device."""


class GatewayState(Struct):
    """Status of one gateway."""

    id: str
    host: str
    process: int
    version: str
    started: float
    """Time of its start, in seconds since 1970."""
    turns: int
    connections: int
    minute: Sums
    tenants: list[TenantActivity]
    replicas: list[ReplicaStatus]
    draining: bool = False
    adapters: dict[str, int] | None = None
    """Running turns by adapter; None: a gateway of an earlier version, which does not tell."""


class Overview(Struct):
    """Status of all gateways together."""

    gateways: list[GatewayState]
    replicas: list[ReplicaStatus]
    tenants: list[TenantActivity]
    minute: Sums
    unreadable: list[str] = []
    """Ids of gateways whose heartbeat this version does not understand."""

    @property
    def turns(self) -> int:
        return sum(gateway.turns for gateway in self.gateways)

    @property
    def connections(self) -> int:
        return sum(gateway.connections for gateway in self.gateways)


class Heartbeat:
    """Makes the heartbeats of one gateway."""

    def __init__(self, id: str, engines: Engines, activity: Activity) -> None:
        self._id = id
        self._engines = engines
        self._activity = activity
        self._started = time.time()
        self._speeds: defaultdict[str, _Speed] = defaultdict(_Speed)

    def facts(self, turns: int, connections: int, *, draining: bool) -> dict[str, str]:
        """Return the fields of the next heartbeat."""
        now = monotonic()
        minute, tenants = self._activity.busiest(now, MAX_TENANTS)
        replicas = [self._replica(engine, now) for pool in self._engines.pools for engine in pool.engines]
        for gone in self._speeds.keys() - {replica.name for replica in replicas}:
            del self._speeds[gone]
        state = GatewayState(
            id=self._id,
            host=platform.node(),
            process=os.getpid(),
            version=__version__,
            started=self._started,
            turns=turns,
            connections=connections,
            minute=minute,
            tenants=tenants,
            replicas=replicas,
            draining=draining,
            adapters=dict(self._activity.adapters.most_common(MAX_ADAPTERS)),
        )
        return {"state": msgspec.json.encode(state).decode()}

    def _replica(self, engine: Engine, now: float) -> ReplicaStatus:
        load, client = engine.client.load, engine.client
        replica = ReplicaStatus(
            engine.name, engine.pool.tier, engine.pool.name, up=client.connected, breaker=engine.breaker.circuit.value
        )
        if load is not None and client.connected:
            blocks = max(1, load.total_blocks)
            replica.running, replica.waiting = load.running, load.waiting
            replica.predicted_queue_seconds = round(load.predicted_queue_seconds, 3)
            replica.tokens_per_second = round(self._speeds[engine.name].update(load.output_tokens, now), 1)
            replica.kv_cached = round(load.cached_blocks / blocks, 3)
            if load.total_blocks:  # not every server tells
                replica.kv_used = round(1 - (load.free_blocks + load.cached_blocks) / blocks, 3)
            replica.adapters = len(load.adapters or ())
        return replica


class _Speed:
    """Growth of a counter per second, over the last few seconds."""

    SPAN = 5.0

    def __init__(self) -> None:
        self._seen: list[tuple[float, int]] = []

    def update(self, count: int, now: float) -> float:
        if self._seen and count < self._seen[-1][1]:
            self._seen.clear()  # a new engine counts from zero
        self._seen = [each for each in self._seen if now - each[0] <= self.SPAN]
        self._seen.append((now, count))
        (begin, first), (end, last) = self._seen[0], self._seen[-1]
        return (last - first) / (end - begin) if end > begin else 0.0


def overview(heartbeats: Mapping[str, Mapping[str, str]]) -> Overview:
    """Combine the heartbeats of all gateways, given by id."""
    gateways, unreadable = [], []
    for id, facts in sorted(heartbeats.items()):
        try:
            gateways.append(msgspec.json.decode(facts.get("state", ""), type=GatewayState))
        except msgspec.MsgspecError:
            unreadable.append(id)
    minute = Sums()
    for gateway in gateways:
        minute.add(gateway.minute)
    replicas = _replicas(replica for gateway in gateways for replica in gateway.replicas)
    return Overview(gateways, replicas, _tenants(gateways), minute, unreadable)


def turns_with(adapter: str, heartbeats: Mapping[str, Mapping[str, str]]) -> int | None:
    """Return how many turns run with an adapter; None if one of these gateways does not tell."""
    seen, turns = overview(heartbeats), 0
    for gateway in seen.gateways:
        told = gateway.adapters
        if told is None or (adapter not in told and len(told) >= MAX_ADAPTERS):
            return None
        turns += told.get(adapter, 0)
    return None if seen.unreadable else turns


def _replicas(seen: Iterable[ReplicaStatus]) -> list[ReplicaStatus]:
    """One line per engine: gateways that share it have the same figures of it, up to a second apart."""
    best: dict[tuple[str, str], ReplicaStatus] = {}
    for replica in seen:
        key = (replica.name, replica.model)
        if key not in best or (replica.up and not best[key].up):
            best[key] = replica
    return list(best.values())


def _tenants(gateways: Iterable[GatewayState]) -> list[TenantActivity]:
    sums: dict[str, TenantActivity] = {}
    for gateway in gateways:
        for tenant in gateway.tenants:
            total = sums.setdefault(tenant.name, TenantActivity(tenant.name, 0, Sums()))
            total.running += tenant.running
            total.minute.add(tenant.minute)
    return list(sums.values())
