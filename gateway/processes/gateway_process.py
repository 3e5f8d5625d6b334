"""One of several gateway processes of `serve`; `gateway.processes.gateway_processes` starts it.

It inherits the socket that all of them listen on, and its plan as a file. It listens on two Unix sockets of its own: on
one it serves what the shared port serves, on the other it takes new plans.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path
from socket import socket

import msgspec
import uvloop
from starlette.applications import Starlette

from gateway.app import create_app
from gateway.config.configuration import Configuration
from gateway.config.settings import Settings, SettingsError
from gateway.processes import plan as plans
from gateway.processes.child import CONFIGURATION_ERROR
from gateway.processes.control import CommandResult, listening, private_socket
from gateway.processes.plan import Plan
from gateway.server import GatewayServer
from gateway.services import Gateway
from gateway.storage.connect import socket_path
from gateway.telemetry import logs
from gateway.telemetry.siblings import Siblings

MAX_PLAN = 256 * 1024 * 1024
"""Longest plan in bytes."""


def own_socket(settings: Settings, number: int) -> Path:
    """Return the path of the socket on which a process serves alone what all serve together."""
    return socket_path(settings, f"gateway-{number}")


def control_socket(settings: Settings, number: int) -> Path:
    """Return the path of the socket on which a process takes plans."""
    return socket_path(settings, f"gateway-{number}-control")


class PlannedGateway:
    """Follows the supervisor's plans."""

    def __init__(self, plan: Plan, number: int, admin: socket | None) -> None:
        self._newest = plan.settings
        self._arrivals = plan.arrivals
        self._changing = asyncio.Lock()
        self.configuration = Configuration(plan.settings, lambda: self._newest)
        processes = range(1, plan.settings.server.gateways + 1)
        siblings = Siblings({each: own_socket(plan.settings, each) for each in processes}, number)
        self.app: Starlette = create_app(self.configuration, self._arrivals, siblings, admin)

    async def take(self, line: bytes) -> CommandResult:
        """Take a plan over; the result says what is wrong with it."""
        try:
            plan = plans.decode(line)
        except msgspec.MsgspecError as error:
            return CommandResult(error=f"no plan: {error}")
        gateway: Gateway | None = getattr(self.app.state, "gateway", None)
        if gateway is None:
            return CommandResult(error="it is still starting")
        async with self._changing:
            try:
                await self._welcome(gateway, plan)
                self._newest = plan.settings
                same = plan.settings == self.configuration.settings
                changed = [] if same else await self.configuration.reload()
                return CommandResult(changed, tenants=bool(gateway.view.tenants()))
            except (SettingsError, OSError, ValueError) as error:
                return CommandResult(error=str(error))

    async def _welcome(self, gateway: Gateway, plan: Plan) -> None:
        """Put pools into service whose models have come."""
        coming = self._arrivals.coming
        for pool in plan.settings.pools:
            if pool.name in coming and pool.name not in plan.coming:
                await gateway.engines.add(pool, plan.settings.router)
                del coming[pool.name]
        coming |= plan.coming
        self._arrivals.none_fetched = plan.none_fetched


async def serve(plan: Plan, number: int, shared: socket, admin: socket | None) -> bool:
    """Serve until SIGTERM; return whether it could start.

    Raises:
        SettingsError: the data folder's path is too long.
    """
    settings = plan.settings
    planned = PlannedGateway(plan, number, admin)
    server = GatewayServer(planned.app, settings)
    with private_socket(own_socket(settings, number)) as own:
        async with listening(control_socket(settings, number), planned.take, limit=MAX_PLAN):
            await server.serve(sockets=[shared, own])
    return server.started


def main(arguments: Sequence[str]) -> int:
    """Args: arguments: number of the process, and the inherited files: plan, shared socket, admin socket or none."""
    number, plan_file, *files = map(int, arguments)
    plan = plans.read(plan_file)
    logs.configure(plan.settings.log)
    shared, *admin = [socket(fileno=file) for file in files]
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            started = runner.run(serve(plan, number, shared, admin[0] if admin else None))
    except SettingsError as error:
        print(f"gateway-{number}: {error}", file=sys.stderr)
        started = False
    return 0 if started else CONFIGURATION_ERROR


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
