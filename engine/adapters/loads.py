"""The loads that bring adapters to host and device, and the interface that executes them. Free of torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


class Bank(Protocol):
    """Holds the weights of adapters on host and device. Versions are immutable; each call is about one of them.

    `remove` and `forget` do nothing for a version that is not there. An `install` that failed may have written to some
    of its sectors; the caller then calls `remove`, as for one that succeeded.
    """

    @property
    def sector_bytes(self) -> int:
        """Bytes of one sector, over all layers."""
        ...

    def prepare(self, version: str) -> int:
        """Read, check and pack an adapter on the host; return the sectors it needs. Called by the loader's thread.

        Raises:
            AdapterError: it cannot be served; the message is for the client.
        """
        ...

    def install(self, version: str, sectors: Sequence[int]) -> None:
        """Copy a prepared adapter to these sectors of the device. Called by the loader's thread."""
        ...

    def remove(self, version: str) -> None:
        """Remove the copy on the device, or what a failed one has written: leave nothing of it there.

        Called by the core's thread, before its sectors are reused.
        """
        ...

    def forget(self, version: str) -> None:
        """Drop the copy on the host. Called by the core's thread."""
        ...


@dataclass(frozen=True, slots=True)
class Prepare:
    """A load from disk to the host."""

    version: str


@dataclass(frozen=True, slots=True)
class Install:
    """A load from the host to the device."""

    version: str
    sectors: Sequence[int]


Job = Prepare | Install
