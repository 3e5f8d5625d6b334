"""What a controller asks of whoever starts and ends the engines of a pool: `serve` itself, or a cluster."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Literal, Protocol

from msgspec import Struct


class StartedReplica(Struct, frozen=True, kw_only=True):
    """One engine that an actuator has started."""

    name: str
    """Name by which the actuator knows it, from its start to its end."""
    pool: str
    id: str = ""
    """Id of its engine's process, which its lease has too; empty while it has told none."""
    state: Literal["starting", "ready", "draining", "failed"]
    """failed: it never answered, and does not run any more; it is listed until it is stopped."""
    since: float
    """When this state began, in seconds since 1970."""
    reason: str = ""
    """Why it failed."""
    stays: bool = False
    """Whether it was asked for on a machine that stays."""


class Actuator(Protocol):
    """Starts and ends engines that announce themselves. No method waits until an engine is ready, or has ended.

    An engine that dies after it was ready is the actuator's to start again.
    """

    @property
    def pools(self) -> Collection[str]:
        """Pools whose engines it starts; for others a controller publishes its decisions only."""

    async def replicas(self) -> Sequence[StartedReplica]:
        """Return all that were started and have not ended."""

    async def start(self, pool: str, *, stays: bool = False) -> None:
        """Begin to start one more engine of a pool.

        Args:
            stays: whether its machine must not be one that may be taken away at short notice.
        """

    async def stop(self, name: str, seconds: float) -> None:
        """Begin to end an engine: no new requests, running ones have so many seconds, the rest goes on elsewhere.

        One that has failed is forgotten. A name that is not known is ignored: the engine has just ended.
        """


class NoActuator:
    """For controllers that publish only, because something else follows what they publish."""

    pools: Collection[str] = ()

    async def replicas(self) -> Sequence[StartedReplica]:
        return ()

    async def start(self, pool: str, *, stays: bool = False) -> None:
        raise NotImplementedError(f"nobody here starts engines of the {pool} pool")

    async def stop(self, name: str, seconds: float) -> None:
        """See `Actuator`."""
