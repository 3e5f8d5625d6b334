"""Several gateway processes that share one port: started, told of changes, started again when they die, and ended.

They share the listening socket itself, not only its port: a connection that waits in it when a process dies is taken by
another one. What changes while they run reaches all of them as a plan (`gateway.processes.plan`), which they also
inherit as a file, so that one that is started again knows what the others know.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
import tempfile
from collections.abc import Awaitable, Collection
from functools import partial
from socket import socket

import msgspec

from gateway.background import BackgroundTasks, Periodic
from gateway.config.configuration import WATCH_SECONDS, Apply, Configuration
from gateway.config.settings import PoolSettings, Settings, SettingsError
from gateway.engines.arrival import ArrivalState
from gateway.processes import control
from gateway.processes import plan as plans
from gateway.processes.child import Child, ChildFailed
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
        [address] = pool.engines
        return _listening(address.removeprefix("unix://"))

    async def readiness(self, out: Collection[str]) -> tuple[bool, list[str]]:
        """See `Front`."""
        found = [await self._readiness(number) for number in self._numbers]
        ready = all(each.status == "ready" or (each.status == "degraded" and out) for each in found)
        return ready, next((each.problems for each in found if each.problems), [])

    @property
    def tenants(self) -> bool:
        """See `Front`: only the processes know."""
        return True

    def notes(self) -> list[str]:
        """See `Front`: only the processes know."""
        return []

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
            self._told[number] = plan
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


async def _listening(path: str) -> list[str]:
    """Wait until a process listens on a Unix socket; there is nothing to say of it."""
    while True:
        with contextlib.suppress(OSError):
            _, writer = await asyncio.open_unix_connection(path)
            writer.close()
            return []
        await asyncio.sleep(0.1)
