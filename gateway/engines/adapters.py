"""The adapters that clients may name as `model`, as the registry had them a moment ago.

A request's name is resolved once, when it arrives; from then on it is a version, whatever the name leads to next. The
registry is asked again and again whether anything has changed, in a thread, so that a slow object store delays no
request. One that cannot be reached leaves everything as it was.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from msgspec import Struct

from engine.adapters.registry import AdapterRegistry, Pointer, RegistryError
from gateway.background import Periodic
from gateway.config.settings import Settings
from gateway.engines.pool import Pool
from gateway.errors import Unavailable

_START_SECONDS = 5.0
"""Seconds for which a gateway waits for the names before it starts without them."""

log = logging.getLogger("roundhouse.adapters")


class ResolvedAdapter(Struct, frozen=True):
    """The version that an adapter's name meant when a request arrived."""

    name: str
    version: str
    model: str
    """Public name of the base model."""


def registry_url(settings: Settings) -> str:
    """Return the URL of the configured registry, or of the one in the data folder."""
    return settings.adapters.registry or str((Path(settings.redis.data) / "adapters").absolute())


class AdapterNames:
    """Public names of the adapters on the models of these pools."""

    def __init__(self, registry: AdapterRegistry, pools: Sequence[Pool], poll: float) -> None:
        """Args: pools: those that there are now; more may come."""
        self.registry = registry
        self._pools = pools
        self._seen: tuple[str | None, list[str]] | None = None
        """Stamp of the registry and names of the pools, when names were read."""
        self._names: dict[str, Pointer] = {}
        self._trouble = ""
        self._reading = asyncio.Lock()
        """One at a time: what a slow read finds must not take the place of what a later one has found."""
        self._watching = Periodic("adapters", self.refresh, poll)

    async def start(self) -> None:
        """Read all names, then watch them. A slow registry does not hold up the start."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_START_SECONDS):
                await self.refresh()
        await self._watching.start()

    async def aclose(self) -> None:
        await self._watching.aclose()

    def resolve(self, name: str, tenant: str) -> ResolvedAdapter | None:
        """Return the version that a name means now for this tenant; None if it is no adapter's, or not for this tenant.

        Raises:
            Unavailable: it is being taken out of service.
        """
        pointer = self._names.get(name)
        if pointer is None or not pointer.allows(tenant):
            return None
        if pointer.drained:
            raise Unavailable(f"the adapter '{name}' is being taken out of service", code="adapter_drained")
        return ResolvedAdapter(name, pointer.version, pointer.model)

    @property
    def names(self) -> Collection[str]:
        """Names of all tenants."""
        return self._names.keys()

    def visible(self, tenant: str) -> dict[str, Pointer]:
        """Names that this tenant may use."""
        return {name: each for name, each in self._names.items() if each.allows(tenant) and not each.drained}

    async def refresh(self) -> None:
        """Read the names again if they have changed."""
        async with self._reading:
            await self._refresh()

    async def _refresh(self) -> None:
        try:
            # The stamp first: a change in between is found the next time.
            seen = await asyncio.to_thread(self.registry.stamp), [pool.name for pool in self._pools]
            if seen == self._seen:
                return
            names = await asyncio.to_thread(self.registry.names)
        except RegistryError as error:
            if str(error) != self._trouble:
                self._trouble = str(error)
                log.error("adapters cannot be read", extra={"error": self._trouble})
            return
        self._seen, self._trouble = seen, ""
        self._names = self._usable(names)
        self.pin()

    def _usable(self, names: Mapping[str, Pointer]) -> dict[str, Pointer]:
        usable, pools = {}, {pool.name for pool in self._pools}
        for name, pointer in sorted(names.items()):
            if name in pools:
                log.error("adapter has the name of a model", extra={"adapter": name})
            elif pointer.model not in pools:
                log.warning("adapter of an unknown model", extra={"adapter": name, "model": pointer.model})
            else:
                usable[name] = pointer
        return usable

    def pin(self) -> None:
        """Tell every engine which adapters of its model to keep loaded; again when there are new engines."""
        for pool in self._pools:
            kept = [each for each in self._names.values() if each.pinned and not each.drained]
            pinned = [each.version for each in kept if each.model == pool.name]
            for engine in pool.engines:
                engine.client.pin(list(dict.fromkeys(pinned)))
