"""Fetches the models that are not on this machine yet, the smallest first, and says how far they are."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection
from time import monotonic

import msgspec

from engine.adapters.registry import RegistryError
from gateway.config import checkpoints
from gateway.config.configuration import Configuration
from gateway.config.settings import PoolSettings, Settings, SettingsError
from gateway.engines.arrival import ArrivalState
from gateway.models.catalogue import CatalogueModel
from gateway.models.fetch import FetchReport
from gateway.processes.demo import register_adapters
from gateway.processes.engines import EngineProcesses, Say
from gateway.processes.fetching import FetchFailed, fetch
from gateway.processes.front import Front
from router.route import ComingTier

log = logging.getLogger("roundhouse.supervisor")

FIRST_PAUSE, LONGEST_PAUSE = 30.0, 600.0
"""Seconds before models that could not be fetched are tried again; the pause doubles each time."""
_STEP, _BETWEEN = 0.1, 2.0
"""Part of a file, and seconds, between two lines about it."""


class NoneFetched(Exception):
    """No model could be fetched; the message says why."""


class Arrivals:
    """Fetches models in processes of their own."""

    def __init__(self, settings: Settings, say: Say, unusable: Collection[str] = ()) -> None:
        """
        Args:
            unusable: names of pools whose checkpoint cannot be used; they do not come.

        Raises:
            SettingsError: the catalogue cannot be read.
        """
        self._models = settings.models
        self._say = say
        missing = sorted(checkpoints.awaited(settings), key=lambda each: each[1].bytes)
        self._missing: dict[str, tuple[PoolSettings, CatalogueModel]] = {pool.name: (pool, of) for pool, of in missing}
        self.state = ArrivalState(
            {pool.name: ComingTier(tier=pool.tier, model=pool.name, size=of.bytes) for pool, of in missing}
        )
        """What the gateway is told of them, and of those that do not come."""
        self.state.coming |= {
            pool.name: ComingTier(tier=pool.tier, model=pool.name, unusable=True)
            for pool in settings.pools
            if pool.name in unusable
        }

    async def first(self) -> None:
        """Fetch one model, so that there is something to serve.

        Raises:
            NoneFetched: none can be had.
        """
        failures = []
        for name in list(self._missing):
            try:
                await self._fetch(name)
            except FetchFailed as error:
                failures.append(str(error))
                if error.unreachable:  # nor would the others be
                    break
            else:
                del self._missing[name], self.state.coming[name]
                return
        raise NoneFetched("; ".join(failures))

    async def rest(self, serve: Callable[[PoolSettings], Awaitable[None]]) -> None:
        """Fetch the other models one after the other, and try again later what cannot be had.

        Args:
            serve: puts the pool of a model that has come into service.
        """
        pause = FIRST_PAUSE
        while self._missing:
            failed = []
            for name, (pool, _) in list(self._missing.items()):
                try:
                    await self._fetch(name)
                except FetchFailed as error:
                    log.warning("model cannot be fetched", extra={"tier": pool.tier, "error": str(error)})
                    failed.append(f"  the {pool.tier} tier is not coming yet: {error}")
                else:
                    del self._missing[name]
                    await serve(pool)
                    del self.state.coming[name]
            for line in failed:
                self._say(f"{line}; tried again in {pause:.0f} s")
            if failed:
                await asyncio.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE)

    async def _fetch(self, name: str) -> None:
        pool, model = self._missing[name]
        shown, last = 0.0, monotonic()

        def follow(report: FetchReport) -> None:
            nonlocal shown, last
            if report.said:
                self._say(f"  {pool.tier}: {report.said}")
            if report.here is None:
                return
            now = self._change(name, here=report.here, failed=False)
            if now.here / now.size >= shown + _STEP and monotonic() - last > _BETWEEN:
                shown, last = now.here / now.size, monotonic()
                self._say(f"  the {pool.tier} tier {now}")

        self._say(f"  fetching the {pool.tier} tier: {model.title}, {model.bytes / 1e6:,.0f} MB")
        try:
            await fetch(model, self._models, follow)
        except FetchFailed:
            self._change(name, failed=True)
            raise
        self._change(name, here=model.bytes, failed=False)

    def _change(self, name: str, **fields: object) -> ComingTier:
        self.state.coming[name] = changed = msgspec.structs.replace(self.state.coming[name], **fields)
        return changed


class ArrivedPools:
    """Puts pools whose models have come into service, while the gateway runs."""

    def __init__(self, configuration: Configuration, front: Front, engines: EngineProcesses, say: Say) -> None:
        self._configuration = configuration
        self._front = front
        self._engines = engines
        self._say = say

    async def put_into_service(self, pool: PoolSettings) -> None:
        """Start a pool's engine, and wait until it answers or cannot run; why it cannot is said."""
        settings = self._configuration.settings
        [filled] = [each for each in settings.pools if each.name == pool.name]
        try:
            await asyncio.to_thread(checkpoints.check, [pool], settings.models.open())
            await asyncio.to_thread(register_adapters, settings, [pool])
            answers = await self._front.add(filled)
        except (SettingsError, RegistryError) as error:
            log.error("tier cannot be served", extra={"tier": pool.tier, "error": str(error)})
            self._say(f"  the {pool.tier} tier cannot be served: {error}")
            return
        running = self._engines.start(pool)
        connected = asyncio.ensure_future(answers)
        await asyncio.wait([running, connected], return_when=asyncio.FIRST_COMPLETED)
        if connected.done():
            for line in (f"  the {pool.tier} tier answers", *connected.result()):
                self._say(line)
        connected.cancel()
