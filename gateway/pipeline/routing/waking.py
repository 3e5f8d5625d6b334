"""Has turns wait for tiers that sleep, until one of their engines is connected."""

from __future__ import annotations

import asyncio
import math
from time import monotonic

from gateway.engines.pools import Engines
from gateway.engines.wanted import WantedPools
from gateway.errors import Unavailable
from gateway.pipeline.values import Admitted, Assessment
from gateway.protocol.stream import Routed
from router.options import options
from router.route import RouteReason

_POLL = 0.05
"""Seconds between looks for an engine."""


class WaitCancelled(Exception):
    """The turn was cancelled while it waited."""


class Waking:
    """Waits for engines of sleeping tiers under one configuration."""

    def __init__(self, engines: Engines, wanted: WantedPools, timeout: float | None) -> None:
        """Args: timeout: seconds for which a turn waits at most; None: as long as it takes."""
        self._engines = engines
        self._wanted = wanted
        self._timeout = math.inf if timeout is None else timeout

    async def wait(self, admitted: Admitted, assessment: Assessment, model: str, began: float) -> None:
        """Return when a pool has an engine; the turn's viewers are told that it waits.

        Args:
            model: public name of the pool's model.
            began: when the turn began to wait.

        Raises:
            Unavailable: it has waited for too long.
            WaitCancelled: see there.
        """
        turn, pool = admitted.turn, self._engines.pool(model)
        tier = pool.tier
        if not turn.log.items:
            turn.append(
                Routed(
                    tier=tier,
                    model=admitted.adapter.name if admitted.adapter else pool.name,
                    replica="",
                    reason=str(RouteReason.WAKING),
                    complexity=assessment.complexity.score,
                    reasons=(f"the {tier} tier is asleep; the turn waits for an engine",),
                    options=options(assessment.choice, {tier: "is asleep"}),
                    cache=admitted.cache.outcome,
                    cache_reason=admitted.cache.found.reason,
                    input_tokens=len(admitted.prompts[pool.name]),
                    service_tier=admitted.share.tier,
                    base_model=pool.name if admitted.adapter else None,
                    defaults=pool.defaults,
                )
            )
        with self._wanted.wait(tier, turn.id):
            while pool.asleep and not turn.cancelled:
                if monotonic() - began > self._timeout:
                    message = f"no engine of '{pool.name}' has started in time; try again in a few seconds"
                    raise Unavailable(message, headers={"retry-after": "5"})
                await asyncio.sleep(_POLL)
        if turn.cancelled:
            raise WaitCancelled

    def missed(self, tier: str, turn: str) -> None:
        """Record that another tier answers a turn because this one sleeps."""
        self._wanted.missed(tier, turn)
