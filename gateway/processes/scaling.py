"""Runs a controller: inside `serve`, for the engines of this machine, or as a process of its own."""

from __future__ import annotations

import asyncio
import contextlib
from socket import socket

from gateway.access.identity.secret import check, installation_secret
from gateway.config.configuration import Configuration
from gateway.config.settings import Settings, SettingsError
from gateway.processes.replicas import LocalReplicas
from gateway.scaling.controller import Controller
from gateway.scaling.listener import bind, listening
from gateway.server import signals
from gateway.storage.connect import connect

LISTEN = "127.0.0.1:9110"
"""Where a controller that is a process of its own answers, unless it is told otherwise."""
TIMEOUT = 2.0
"""Seconds that one of a controller's commands to Redis may take: no turn waits for it."""


def listener(settings: Settings) -> contextlib.AbstractContextManager[socket | None]:
    """Return the socket of a controller inside `serve`, if it is to have one.

    Raises:
        SettingsError: the address cannot be used.
    """
    elastic = any(pool.elastic for pool in settings.pools)
    at = settings.scaling.listen
    return bind(at) if elastic and at is not None else contextlib.nullcontext()


async def scale(configuration: Configuration, replicas: LocalReplicas, bound: socket | None) -> None:
    """Decide how many engines this machine's pools have, until cancelled. Args: bound: to answer at."""
    settings = configuration.settings
    async with connect(settings, timeout=TIMEOUT) as redis:
        controller = Controller(lambda: configuration.settings, redis, installation_secret(settings), replicas)
        async with listening(controller, bound), controller.running():
            await asyncio.Event().wait()


async def run(settings: Settings, address: str | None) -> None:
    """Publish decisions until SIGTERM or SIGINT. Args: address: to answer at, instead of `scaling.listen`.

    Raises:
        SettingsError: there is nothing to decide, or the address or the secret cannot be used.
    """
    _check(settings)
    secret, stopped = installation_secret(settings), asyncio.Event()
    with bind(address or settings.scaling.listen or LISTEN) as bound:
        async with connect(settings, timeout=TIMEOUT) as redis:
            if await check(redis, secret) is False:
                raise SettingsError("the gateways of this Redis have another secret: set ROUNDHOUSE_SECRET to theirs")
            controller = Controller(lambda: settings, redis, secret)
            async with listening(controller, bound), controller.running():
                with signals(stopped.set, lambda: None):
                    await stopped.wait()


def _check(settings: Settings) -> None:
    elastic = [pool.tier for pool in settings.pools if pool.elastic]
    if elastic:
        raise SettingsError(
            f"pools: the {elastic[0]} pool's engines are started by `roundhouse serve`, which decides itself how many; "
            "set registered if they are started elsewhere"
        )
    if not any(pool.scaled for pool in settings.pools):
        raise SettingsError("pools: none has max_replicas, so there is nothing to decide")
