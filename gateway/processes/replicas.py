"""The engines of pools whose number follows the load: processes of this machine, started and ended by a controller.

They announce themselves in Redis, as engines elsewhere do, and gateways find them there.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Literal

import msgspec

from gateway.access.identity.secret import derive, installation_secret
from gateway.background import BackgroundTasks, cancel
from gateway.config import checkpoints
from gateway.config.settings import PoolSettings, Settings, SettingsError
from gateway.engines.adapters import registry_url
from gateway.processes.child import Child, ChildFailed, Misconfigured
from gateway.processes.commands import engine_address, engine_command
from gateway.scaling.actuator import StartedReplica
from gateway.storage.connect import redis_url

_MARGIN = 10.0
"""Seconds in which an engine must end once the time for its requests is over."""


class EngineReady(msgspec.Struct, frozen=True):
    """The line that an engine prints when it answers."""

    id: str


class LocalReplica:
    """One engine process."""

    def __init__(self, name: str, pool: PoolSettings, number: int) -> None:
        self.name = name
        self.pool = pool
        self.number = number
        """Number of its socket."""
        self.id = ""
        self.state: Literal["starting", "ready", "draining", "failed"] = "starting"
        self.since = time.time()
        self.reason = ""
        self.child: Child | None = None
        self.task: asyncio.Task[None] | None = None
        """Runs it."""

    def enter(self, state: Literal["starting", "ready", "draining", "failed"], reason: str = "") -> None:
        if self.state != "draining":  # from which there is no way back
            self.state, self.reason, self.since = state, reason, time.time()

    def restarts(self) -> bool:
        """Note that its process has ended; returns whether it is started again: only if one has answered before."""
        answered = self.id != ""
        if answered:
            self.enter("starting")
        return answered

    @property
    def told(self) -> StartedReplica:
        return StartedReplica(
            name=self.name, pool=self.pool.tier, id=self.id, state=self.state, since=self.since, reason=self.reason
        )


class LocalReplicas:
    """Implements `gateway.scaling.actuator.Actuator` with processes of this machine.

    An engine that says that it cannot run takes its pool away from the controller, unless one has run before.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._replicas: dict[str, LocalReplica] = {}
        self._ending = BackgroundTasks("engines")
        self._unusable: dict[str, asyncio.Future[None]] = {}
        self._pools: dict[str, PoolSettings] = {}
        self._proven: set[str] = set()
        """Pools of which an engine has answered at some time."""
        self._numbers = itertools.count(1)
        self._ended = False

    @property
    def pools(self) -> frozenset[str]:
        """See `Actuator`."""
        return frozenset(self._pools)

    async def replicas(self) -> Sequence[StartedReplica]:
        """See `Actuator`."""
        return [replica.told for replica in self._replicas.values()]

    async def serve(self, pool: PoolSettings) -> None:
        """Start the fewest engines of a pool, leave the rest to the controller, and wait until they cannot run.

        Raises:
            ChildFailed: its engines cannot run.
        """
        self._pools[pool.tier] = pool
        unusable = self._unusable[pool.tier] = asyncio.get_running_loop().create_future()
        for _ in range(pool.min_replicas):
            await self.start(pool.tier)
        try:
            await unusable
        finally:
            del self._pools[pool.tier]

    async def start(self, pool: str, *, stays: bool = False) -> None:
        """See `Actuator`."""
        if self._ended or pool not in self._pools:
            return
        name, taken = f"{pool}-{next(self._numbers)}", {each.number for each in self._replicas.values()}
        number = next(number for number in itertools.count(1) if number not in taken)
        replica = self._replicas[name] = LocalReplica(name, self._pools[pool], number)
        replica.task = asyncio.create_task(self._run(replica), name=f"engine-{name}")

    async def stop(self, name: str, seconds: float) -> None:
        """See `Actuator`. How long it has was settled when it was started: `scaling.drain_timeout`."""
        replica = self._replicas.get(name)
        if replica is None:
            return
        failed = replica.state == "failed"
        replica.enter("draining")
        if failed:
            del self._replicas[name]
        else:
            self._ending.begin(_end(replica))

    async def aclose(self) -> None:
        """End all engines."""
        self._ended = True
        await asyncio.gather(*(_end(replica) for replica in list(self._replicas.values())))
        await self._ending.aclose()
        for unusable in self._unusable.values():
            unusable.cancel()

    async def _run(self, replica: LocalReplica) -> None:
        pool = replica.pool
        try:
            child = replica.child = await asyncio.to_thread(self._child, replica)
            await child.run(again=replica.restarts)
        except (ChildFailed, SettingsError) as error:
            replica.enter("failed", str(error))
            unusable = self._unusable[pool.tier]
            if isinstance(error, Misconfigured) and pool.tier not in self._proven and not unusable.done():
                unusable.set_exception(error)
        finally:
            if replica.state != "failed":
                self._replicas.pop(replica.name, None)

    def _heard(self, replica: LocalReplica, line: bytes) -> None:
        """Take over what an engine prints: one line, when it answers."""
        with contextlib.suppress(msgspec.MsgspecError):
            replica.id = msgspec.json.decode(line, type=EngineReady).id
            replica.enter("ready")
            self._proven.add(replica.pool.tier)

    def _child(self, replica: LocalReplica) -> Child:
        """
        Raises:
            SettingsError: what the engine needs cannot be read or written.
        """
        settings, pool = self._settings, replica.pool
        drain = settings.scaling.drain_timeout
        sha256 = checkpoints.expected_digest(pool, settings.models.open())
        command = engine_command(
            msgspec.structs.replace(pool, sha256=sha256),
            engine_address(settings, pool, replica.number),
            registry_url(settings),
        )
        environment = {
            "OMP_NUM_THREADS": str(pool.threads),
            "OMP_WAIT_POLICY": "PASSIVE",
            "ROUNDHOUSE_REGISTER": redis_url(settings),
        }
        if pool.device == "cuda":
            environment["CUDA_VISIBLE_DEVICES"] = _gpu(replica.number)
        registering = ["--register-key", str(key_file(settings)), "--drain-timeout", f"{drain:g}"]
        redis = settings.redis
        files = {"--register-ca": redis.ca, "--register-cert": redis.cert, "--register-cert-key": redis.key}
        registering += [word for option, file in files.items() if file is not None for word in (option, file)]
        return Child(
            f"engine-{replica.name}",
            [*command, *registering],
            environment,
            grace=drain + _MARGIN,
            heard=partial(self._heard, replica),
        )


async def _end(replica: LocalReplica) -> None:
    if replica.child is not None:
        await replica.child.stop()
    if replica.task is not None:
        await cancel([replica.task])


def _gpu(number: int) -> str:
    """Return the GPU of the engine with this number, from 1: another one for each.

    Raises:
        SettingsError: `CUDA_VISIBLE_DEVICES` has fewer.
    """
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    gpus = [str(number - 1)] if visible is None else [each.strip() for each in visible.split(",")][number - 1 :]
    if not gpus:
        raise SettingsError(f"CUDA_VISIBLE_DEVICES has no GPU for engine {number} of a pool: lower its max_replicas")
    return gpus[0]


def key_file(settings: Settings) -> Path:
    """Return the file with the key of engines' leases, which is written if it is missing or has another one.

    Raises:
        SettingsError: it cannot be written.
    """
    key = derive(installation_secret(settings), "engines").hex()
    path = Path(settings.redis.data, "engines.key").resolve()
    try:
        if path.exists() and path.read_text("ascii") == key:
            return path
        temporary = path.with_name(f".engines.key.{os.getpid()}.{time.monotonic_ns()}")
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(key)
        temporary.replace(path)
    except (OSError, ValueError) as error:
        raise SettingsError(f"{path}: cannot write the key of engines: {error}") from error
    return path
