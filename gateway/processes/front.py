"""The gateway of `serve`: in the supervisor's own process, or as several processes (`gateway_processes`)."""

from __future__ import annotations

import asyncio
import urllib.error
import urllib.request
from collections.abc import Awaitable, Collection
from socket import socket
from typing import Protocol

import msgspec
from msgspec import Struct

from gateway.app import create_app
from gateway.config.configuration import Configuration
from gateway.config.settings import PoolSettings
from gateway.engines.arrival import ArrivalState
from gateway.engines.pool import Pool
from gateway.processes.engines import bounded_context
from gateway.server import GatewayServer, url
from gateway.services import Gateway


class Failed(Exception):
    """The installation cannot run; the message says why and what to do."""


class Readiness(Struct, frozen=True):
    """The answer of `/readyz`."""

    status: str
    problems: list[str]


NO_ANSWER = Readiness("not ready", [])


class Front(Protocol):
    """The interface of the gateway to the supervisor."""

    async def run(self) -> None:
        """Serve until `stop` or a signal has ended all turns.

        Raises:
            Failed, ChildFailed: it cannot run.
        """

    def stop(self) -> None:
        """Drain, then end; called again, end at once."""

    async def wait_started(self) -> None:
        """Wait until it takes connections."""

    async def add(self, pool: PoolSettings) -> Awaitable[list[str]]:
        """Put the pool of a model into service that has come; return what waits until its engine answers, and then
        gives what an operator is told of it."""

    async def readiness(self, out: Collection[str]) -> tuple[bool, list[str]]:
        """Return whether everything that was started answers, and what is wrong. Args: out: tiers out of service."""

    @property
    def tenants(self) -> bool:
        """Whether anybody may send requests, as far as is known."""

    async def notes(self) -> list[str]:
        """Return what an operator is told once everything answers."""


class OneProcess:
    """The gateway in this process."""

    def __init__(self, configuration: Configuration, arrivals: ArrivalState, shared: socket) -> None:
        """Args: shared: a socket that is bound to the address."""
        self._app = create_app(configuration, arrivals)
        self._server = GatewayServer(self._app, configuration.settings)
        self._shared = shared
        self._url = url(configuration.settings, shared)

    async def run(self) -> None:
        """See `Front`."""
        await self._server.serve(sockets=[self._shared])
        if not self._server.started:
            raise Failed("the gateway could not start (see its message above)")

    def stop(self) -> None:
        """See `Front`."""
        self._server.stop()

    async def wait_started(self) -> None:
        """See `Front`."""
        while not self._server.started:  # noqa: ASYNC110 - uvicorn has no event for it
            await asyncio.sleep(0.1)

    async def add(self, pool: PoolSettings) -> Awaitable[list[str]]:
        """See `Front`."""
        gateway = self._gateway
        added = await gateway.engines.add(pool, gateway.settings.router)
        gateway.engines.configure(gateway.settings.pools, gateway.settings.router)  # they may have changed meanwhile
        return _answering(added)

    async def readiness(self, out: Collection[str]) -> tuple[bool, list[str]]:
        """See `Front`."""
        found = await asyncio.to_thread(self._readiness)
        # Here everything is started, so that a gateway that is degraded is not ready yet; but what is out of service or
        # still comes is not waited for.
        ready = found.status != "not ready" and all(pool.name in out for pool in self._gateway.engines.away)
        return ready, found.problems

    @property
    def tenants(self) -> bool:
        """See `Front`."""
        return bool(self._gateway.view.tenants())

    async def notes(self) -> list[str]:
        """See `Front`."""
        own = [pool for pool in self._gateway.engines.pools if _of_this_host(pool)]
        return [line for pool in own for line in _bounded(pool)]

    @property
    def _gateway(self) -> Gateway:
        gateway: Gateway = self._app.state.gateway
        return gateway

    def _readiness(self) -> Readiness:
        try:
            answer = urllib.request.urlopen(f"{self._url}/readyz", timeout=2)
        except urllib.error.HTTPError as error:
            answer = error
        except OSError:
            return NO_ANSWER
        with answer:
            return msgspec.json.decode(answer.read(), type=Readiness)


async def _answering(pool: Pool) -> list[str]:
    while not (pool.may_sleep or any(engine.client.connected for engine in pool.engines)):  # noqa: ASYNC110
        await asyncio.sleep(0.1)  # engines may announce themselves, for which there is no event
    return _bounded(pool)


def _of_this_host(pool: Pool) -> bool:
    return any(engine.client.address.startswith("unix://") for engine in pool.engines)


def _bounded(pool: Pool) -> list[str]:
    return bounded_context(pool.tier, pool.context, pool.declared_context)
