"""The engines that `serve` starts: kept running, and out of service where they cannot run."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any, Protocol

import msgspec

from gateway.config import checkpoints
from gateway.config.settings import PoolSettings, Settings, SettingsError
from gateway.engines.adapters import registry_url
from gateway.processes.child import Child, ChildFailed
from gateway.processes.commands import engine_address, engine_command
from gateway.processes.replicas import LocalReplicas

log = logging.getLogger("roundhouse.supervisor")


class Say(Protocol):
    """Prints a message to the operator, one line at a time."""

    def __call__(self, line: str) -> None: ...


def bounded_context(tier: str, taken: int, possible: int) -> list[str]:
    """Say that a tier takes shorter requests than its model could, if that is so. In tokens."""
    if taken >= possible:
        return []
    return [
        f"  the {tier} tier takes {taken:,} tokens a request, its model could take {possible:,}: "
        "kv_tokens and adapter_share say how many (docs/configuration.md)"
    ]


class EngineProcesses:
    """Runs engines: one for a pool, or as many as its controller decides.

    An engine that says that it cannot run takes its tier out of service and nothing else, unless no tier is left; so
    does a checkpoint that cannot be used.
    """

    def __init__(self, settings: Settings, say: Say) -> None:
        self._settings = settings
        self._say = say
        self._children: list[Child] = []
        self._tasks: list[asyncio.Task[None]] = []
        self.replicas = LocalReplicas(settings)
        """Engines of pools whose number follows the load."""
        self._none_left: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.out: set[str] = set()
        """Names of pools whose engine cannot run."""

    def take_out(self, pool: PoolSettings, reason: str) -> None:
        """Take a pool out of service, and say why; others are left."""
        self.out.add(pool.name)
        log.error("pool is out of service", extra={"tier": pool.tier, "model": pool.name, "error": reason})
        alone = sum(each.tier == pool.tier for each in self._settings.pools) == 1
        what = f"the {pool.tier} tier" if alone else f"{pool.name} in the {pool.tier} tier"
        self._say(f"  {what} is out of service, the others answer for it: {reason}; then start again")

    def start(self, pool: PoolSettings) -> asyncio.Task[None]:
        """Start the engine of a pool that has none elsewhere, and return the task that ends when it cannot run.

        A pool whose number of engines follows the load gets the fewest that it may have.
        """
        if pool.elastic:
            few, most = pool.min_replicas, pool.max_replicas
            self._say(f"  starting {few} to {most} engines of the {pool.tier} tier: {pool.name} on {pool.device}")
            return self._begin(pool, self.replicas.serve(pool))
        settings = self._settings
        # The engine compares it again whenever it is started, also after a crash.
        sha256 = checkpoints.expected_digest(pool, settings.models.open())
        command = engine_command(
            msgspec.structs.replace(pool, sha256=sha256), engine_address(settings, pool), registry_url(settings)
        )
        environment = {"OMP_NUM_THREADS": str(pool.threads), "OMP_WAIT_POLICY": "PASSIVE"}
        child = Child(f"engine-{pool.tier}", command, environment)
        self._say(f"  starting {child.name}: {pool.name} on {pool.device}")
        self._children.append(child)
        return self._begin(pool, child.run())

    async def wait_failed(self) -> None:
        """Wait until no tier is left.

        Raises:
            ChildFailed: that is so; the message is the last engine's.
        """
        await asyncio.shield(self._none_left)

    async def stop(self) -> None:
        """End all engines."""
        await self.replicas.aclose()
        for child in self._children:
            await child.stop()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._none_left.cancel()

    def _begin(self, pool: PoolSettings, run: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(self._run(pool, run), name=f"engine-{pool.tier}")
        self._tasks.append(task)
        return task

    async def _run(self, pool: PoolSettings, run: Coroutine[Any, Any, None]) -> None:
        try:
            await run
        except ChildFailed as error:
            self.out.add(pool.name)
            if self.out >= {each.name for each in self._settings.pools}:
                self._none_left.set_exception(error)
                return
            self.take_out(pool, await asyncio.to_thread(self._reason, pool, error))

    def _reason(self, pool: PoolSettings, error: ChildFailed) -> str:
        """Return why an engine cannot run, and the remedy; what is wrong with its checkpoint is known here too."""
        try:
            checkpoints.check([pool], self._settings.models.open())
        except SettingsError as wrong:
            return str(wrong)
        return f"{error}; mend that"
