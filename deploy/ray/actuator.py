"""Has Ray start and end the engines that a controller asks for."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from deploy.ray import cluster
from deploy.ray.engine import bundle, engine_start, pools_of
from deploy.ray.replica import ReplicaActor
from gateway.config.settings import PoolSettings, Settings
from gateway.scaling.actuator import StartedReplica


class RayReplicas:
    """Implements `gateway.scaling.actuator.Actuator`. What there is, the cluster knows."""

    def __init__(self, settings: Settings) -> None:
        """
        Raises:
            SettingsError: the cluster has no engine to start, or cannot.
        """
        self._settings = settings
        self._told: dict[str, StartedReplica] = {}
        self._pools: dict[str, PoolSettings] = {pool.tier: pool for pool in pools_of(settings)}

    @property
    def pools(self) -> frozenset[str]:
        """See `Actuator`."""
        return frozenset(self._pools)

    async def replicas(self) -> Sequence[StartedReplica]:
        """See `Actuator`. Gives back the resources of those that have ended."""
        found = await asyncio.to_thread(cluster.look, self._told)
        for name in (name for name, replica in found.items() if replica.told is None):
            await asyncio.to_thread(cluster.end, name)
        self._told = {name: replica.told for name, replica in found.items() if replica.told is not None}
        return list(self._told.values())

    async def start(self, pool: str, *, stays: bool = False) -> None:
        """See `Actuator`. Where no node has room, Ray's autoscaler adds one."""
        name, section = f"{pool}-{time.time_ns():016x}{cluster.STAYS if stays else ''}", self._pools[pool]
        await asyncio.to_thread(
            cluster.begin, ReplicaActor, name, bundle(section, self._settings), engine_start(self._settings, section)
        )

    async def stop(self, name: str, seconds: float) -> None:
        """See `Actuator`. How long it has was settled when it was started: `scaling.drain_timeout`."""
        await asyncio.to_thread(drain, name)


def drain(name: str) -> None:
    """Begin to end a replica; one whose actor does not run has nothing to end."""
    found = cluster.look().get(name)
    if found is None:
        return
    actor = cluster.find(name)
    if actor is None or not found.node or found.told is None or found.told.state == "failed":
        cluster.end(name)
    else:
        actor.drain.remote()
