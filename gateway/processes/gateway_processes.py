"""Several gateway processes that share one port: started, told of changes, started again when they die, and ended.

They share the listening socket itself, not only its port: a connection that waits in it when a process dies is taken by
another one. What changes while they run reaches all of them as a plan (`gateway.processes.plan`), which they also
inherit as a file, so that one that is started again knows what the others know.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import sys
import tempfile
from collections.abc import Awaitable, Collection
from functools import partial
from socket import socket

import msgspec

from engine.checkpoint.opening import open_checkpoint
from engine.client.engine_client import EngineClient
from gateway.background import BackgroundTasks, Periodic
from gateway.config.configuration import WATCH_SECONDS, Apply, Configuration
from gateway.config.settings import PoolSettings, Settings, SettingsError
from gateway.engines.arrival import ArrivalState
from gateway.processes import control
from gateway.processes import plan as plans
from gateway.processes.child import Child, ChildFailed
from gateway.processes.engines import bounded_context
from gateway.processes.front import NO_ANSWER, Readiness
from gateway.processes.gateway_process import control_socket, own_socket
from gateway.processes.plan import Plan
from gateway.server import signals
from gateway.telemetry.siblings import fetch

log = logging.getLogger("roundhouse.supervisor")

LOOK = 0.5
"""Seconds between two looks for processes that do not know the newest plan."""
AGAIN = 5.0
"""Seconds until a process is started again that could not start, while others run."""
PATIENCE = 2.0
"""Seconds in which an engine must answer for something to be said of it."""
END = 15.0
"""Seconds beside `server.drain_timeout` that a process may take to end."""


class SeveralProcesses:
    """The gateway as several processes; they are numbered from 1."""

    def __init__(
        self, configuration: Configuration, arrivals: ArrivalState, shared: socket, admin: socket | None
    ) -> None:
        """Args: shared, admin: sockets that are bound to the addresses of the gateway and of its admin API."""
        self._configuration = configuration
        self._arrivals = arrivals
        self._inherited = [shared.fileno(), *([] if admin is None else [admin.fileno()])]
        self._numbers = range(1, configuration.settings.server.gateways + 1)
        self._file = tempfile.TemporaryFile()  # noqa: SIM115 - it lives as long as this object
        self._children: dict[int, Child] = {}
        self._told: dict[int, Plan] = {}
        """The newest plan that each process has taken."""
        self._ready: set[int] = set()
        """Processes that have been ready."""
        self._tenants = True
        self._stopping = False
        self._changing = asyncio.Lock()
        self._helping = BackgroundTasks("supervisor")
        plans.write(self._file, self._plan)
        configuration.add(self._prepare)

    async def run(self) -> None:
        """See `Front`."""
        keeping = [asyncio.create_task(self._keep(number), name=f"gateway-{number}") for number in self._numbers]
        parts = (
            Periodic("plans", self._inform, LOOK),
            Periodic("configuration", self._configuration.look, WATCH_SECONDS),
        )
        with signals(self.stop, self._reload):
            for part in parts:
                await part.start()
            try:
                done, _ = await asyncio.wait(keeping, return_when=asyncio.FIRST_EXCEPTION)
                for task in done:
                    task.result()
            finally:
                self.stop()
                await asyncio.gather(*keeping, return_exceptions=True)
                for part in parts:
                    await part.aclose()
                await self._helping.aclose()
                self._file.close()

    def stop(self) -> None:
        """See `Front`."""
        for child in self._children.values():
            if self._stopping:
                child.interrupt()
            else:
                self._helping.begin(child.stop())
        self._stopping = True

    async def wait_started(self) -> None:
        """See `Front`."""
        while len(self._told) < len(self._numbers):  # noqa: ASYNC110 - it happens in other processes
            await asyncio.sleep(0.1)

    async def add(self, pool: PoolSettings) -> Awaitable[list[str]]:
        """See `Front`: the processes add it themselves once it is no longer among those that come."""
        return _answering(pool)

    async def readiness(self, out: Collection[str]) -> tuple[bool, list[str]]:
        """See `Front`."""
        found = [await self._readiness(number) for number in self._numbers]
        ready = all(each.status == "ready" or (each.status == "degraded" and out) for each in found)
        return ready, next((each.problems for each in found if each.problems), [])

    @property
    def tenants(self) -> bool:
        """See `Front`: as the process knew that took a plan last."""
        return self._tenants

    async def notes(self) -> list[str]:
        """See `Front`."""
        here = [pool for pool in self._configuration.settings.pools if pool.name not in self._arrivals.coming]
        own = [pool for pool in here if pool.engines and pool.engines[0].startswith("unix://")]
        found = await asyncio.gather(*(_answering(pool, PATIENCE) for pool in own))
        return [line for lines in found for line in lines]

    @property
    def _plan(self) -> Plan:
        return Plan(self._configuration.settings, dict(self._arrivals.coming), self._arrivals.none_fetched)

    async def _keep(self, number: int) -> None:
        """Run one process, and start it again whenever it ends.

        Raises:
            ChildFailed: it could not start, and never has.
        """
        while not self._stopping:
            words = [number, self._file.fileno(), *self._inherited]
            child = self._children[number] = Child(
                f"gateway-{number}",
                [sys.executable, "-m", "gateway.processes.gateway_process", *map(str, words)],
                files=[self._file.fileno(), *self._inherited],
                grace=self._configuration.settings.server.drain_timeout + END,
                orphaned=signal.SIGKILL,  # Redis and engines end too: there is nothing left to finish turns with
            )
            try:
                await child.run(partial(self._forget, number))
            except ChildFailed as error:
                if number not in self._ready:
                    raise
                log.error("a gateway process could not start", extra={"child": child.name, "error": str(error)})
                await asyncio.sleep(AGAIN)

    def _forget(self, number: int) -> None:
        """Forget what a process was told that is started again."""
        self._told.pop(number, None)

    def _reload(self) -> None:
        self._helping.begin(self._reload_now())

    async def _reload_now(self) -> None:
        with contextlib.suppress(SettingsError):  # it is in the log
            await self._configuration.reload()

    async def _prepare(self, settings: Settings) -> Apply:
        """Have all processes take new settings; if one refuses, the others go back to the old ones.

        Raises:
            SettingsError: one refuses them, or does not answer.
        """
        async with self._changing:
            plan = msgspec.structs.replace(self._plan, settings=settings)
            for number in self._numbers:
                error = await self._tell(number, plan)
                if error is not None:  # those before it are told the old ones again
                    raise SettingsError(f"gateway process {number}: {error}")
            return lambda: plans.write(self._file, plan)

    async def _inform(self) -> None:
        """Tell the newest plan to processes that do not know it."""
        async with self._changing:
            plan = self._plan
            behind = [number for number in self._numbers if self._told.get(number) != plan]
            if behind and not self._stopping:
                plans.write(self._file, plan)
                for number in behind:
                    await self._tell(number, plan)

    async def _tell(self, number: int, plan: Plan) -> str | None:
        """Tell a process a plan; return why it has not taken it."""
        at = control_socket(plan.settings, number)
        try:
            answer = await asyncio.to_thread(control.send, at, plan.encode())
        except OSError:
            return "it is starting; try again in a moment"
        if answer.error is None:
            self._told[number], self._tenants = plan, answer.tenants
        return answer.error

    async def _readiness(self, number: int) -> Readiness:
        try:
            _, body = await fetch(own_socket(self._configuration.settings, number), "/readyz")
            found = msgspec.json.decode(body, type=Readiness)
        except (OSError, TimeoutError, msgspec.MsgspecError):
            return NO_ANSWER
        if found.status != "not ready":
            self._ready.add(number)
        return found


async def _answering(pool: PoolSettings, seconds: float | None = None) -> list[str]:
    """Wait until the first engine of a pool answers, at most so long; return what an operator is told of it.

    Of engines that announce themselves, nothing is known here.
    """
    if not pool.engines:
        return []
    async with EngineClient(pool.engines[0]) as client:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await client.wait_connected()
    if client.info is None:
        return []
    declared = await asyncio.to_thread(lambda: open_checkpoint(pool.model).context)
    return bounded_context(pool.tier, client.info.context, declared)
