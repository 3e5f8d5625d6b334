"""Moves turns off replicas that operators have drained, where they ask for that and when its time has come.

The engine's process goes on: only this installation's turns leave it, and the operator may take it back.
"""

from __future__ import annotations

import logging
from time import monotonic

from gateway.background import Periodic
from gateway.engines.pools import Engines

log = logging.getLogger("roundhouse.engines")

LOOK_SECONDS = 0.5


class OperatorDrains:
    """Watches what operators have set for replicas."""

    def __init__(self, engines: Engines) -> None:
        self._engines = engines
        self._since: dict[str, float] = {}
        """When this gateway saw that a replica is drained, by name."""
        self._looking = Periodic("drains", self.look, LOOK_SECONDS)

    async def start(self) -> None:
        await self._looking.start()

    async def aclose(self) -> None:
        await self._looking.aclose()

    async def look(self) -> None:
        """Have other engines go on with the turns of replicas whose time is over."""
        now = monotonic()
        drained = {
            engine: engine.control.move_after
            for pool in self._engines.pools
            for engine in pool.engines
            if engine.control.drained
        }
        self._since = {engine.name: self._since.get(engine.name, now) for engine in drained}
        for engine, after in drained.items():
            if after is not None and now - self._since[engine.name] >= after and (moved := engine.hand_on()):
                log.info("turns handed on", extra={"replica": engine.name, "turns": moved})
