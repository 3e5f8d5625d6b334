"""Judges which gateways are alive, from what one gateway sees of the others whenever it beats itself. Pure.

Two signs tell a gateway that has died from one that is slow: heartbeats, and a connection that the kernel closes when
the process is gone. Silence counts in looks of the gateway that judges, not in seconds: while it is cut off itself, or
Redis stands still, nobody grows older.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping

from msgspec import Struct

GONE = 4
"""Looks in a row without a new heartbeat after which a gateway that has no connection either counts as dead."""
SILENT = 20
"""Looks in a row without a new heartbeat after which any gateway does: its machine is gone, or it stands still."""


class _Sighting(Struct):
    """What was last seen of a gateway."""

    beat: float = math.nan
    missed: int = 0
    connected: bool = True


class Neighbours:
    """The other gateways that are alive, as far as one gateway knows."""

    def __init__(self) -> None:
        self._seen: dict[str, _Sighting] = {}
        self._distrusted = 0
        """Looks for which a missing connection proves nothing, because Redis has lost connections itself."""

    @property
    def living(self) -> frozenset[str]:
        return frozenset(self._seen)

    def doubtful(self, id: str) -> bool:
        """Whether a gateway that counts as alive shows no sign of life."""
        sighting = self._seen.get(id)
        return sighting is not None and sighting.missed > 1 and not sighting.connected

    def disturbed(self) -> None:
        """Record that Redis did not answer: the others may have lost their connections with it."""
        self._distrusted = SILENT

    def look(self, beats: Mapping[str, float], connected: Collection[str] | None) -> dict[str, float]:
        """Take in what Redis holds at one look; return those that have died, with their last heartbeat.

        Args:
            beats: a value for each gateway, which changes with each of its heartbeats.
            connected: those that have a connection; None if that is not known.
        """
        self._distrusted = max(0, self._distrusted - 1)
        known = None if self._distrusted else connected
        for id in beats:
            self._seen.setdefault(id, _Sighting())
        dead = {}
        for id, sighting in self._seen.items():
            sighting.connected = known is None or id in known
            beat = beats.get(id, sighting.beat)
            if beat != sighting.beat:
                sighting.beat, sighting.missed = beat, 0
            else:  # faster for one that has left the index itself
                sighting.missed += 1 if id in beats or sighting.connected else 2
            if sighting.missed >= (SILENT if sighting.connected else GONE):
                dead[id] = sighting.beat
        for id in dead:
            del self._seen[id]
        return dead
