"""The controller on a cluster: an actor on the head node that decides how many engines each pool has.

What it knows is in Redis and in the cluster, so that it may die at any time; while it is away nothing changes.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading

from redis.exceptions import RedisError

from deploy.ray.actuator import RayReplicas
from gateway.access.identity.secret import DIFFERENT, check, installation_secret
from gateway.config.settings import Settings, SettingsError, load
from gateway.scaling.controller import Controller
from gateway.scaling.listener import bind, listening
from gateway.storage.connect import connect
from gateway.telemetry import logs

log = logging.getLogger("roundhouse.ray")

_TIMEOUT = 2.0
"""Seconds that one of its commands to Redis may take: no turn waits for it."""
_RETRY = 5.0
"""Seconds until a configuration that cannot be used is read again."""


class ControllerActor:
    """The actor."""

    def __init__(self, config: str) -> None:
        """Args: config: file on the head node."""
        self._deciding = _Deciding(config)
        threading.Thread(target=asyncio.run, args=(self._deciding.run(),), daemon=True).start()

    def problem(self) -> str | None:
        """Return why nothing is decided; None while all is well."""
        return self._deciding.problem


class _Deciding:
    """Runs a controller. Ray would make an actor with such methods an asynchronous one."""

    def __init__(self, config: str) -> None:
        self._config = config
        self.problem: str | None = "it has just begun"

    async def run(self) -> None:
        while True:
            try:
                settings = load(self._config)
                logs.configure(settings.log)
                await self._decide(settings)
            except (SettingsError, RedisError, OSError) as error:
                self.problem = str(error)
                log.error("nothing is decided: %s", error)
            except Exception as error:
                self.problem = f"{type(error).__name__}, see the logs of Ray"
                log.exception("nothing is decided")
            await asyncio.sleep(_RETRY)

    async def _decide(self, settings: Settings) -> None:
        """Decide until the actor ends.

        Raises:
            SettingsError: the configuration, or the secret of this node, cannot be used.
            RedisError, OSError: Redis cannot be reached.
        """
        replicas, secret = RayReplicas(settings), installation_secret(settings)
        listen = settings.scaling.listen
        async with contextlib.AsyncExitStack() as stack:
            bound = None if listen is None else stack.enter_context(bind(listen))
            redis = await stack.enter_async_context(connect(settings, timeout=_TIMEOUT))
            if await check(redis, secret) is False:
                raise SettingsError(f"{DIFFERENT}: give the head node theirs as ROUNDHOUSE_SECRET")
            controller = Controller(lambda: settings, redis, secret, replicas)
            await stack.enter_async_context(listening(controller, bound))
            await stack.enter_async_context(controller.running())
            self.problem = None
            await asyncio.Event().wait()
