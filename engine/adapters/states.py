"""The states of an adapter version, the transitions between them, and lists of adapters. Pure.

docs/engine.md draws `TRANSITIONS`, with what causes each.
"""

from __future__ import annotations

import enum
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass


class AdapterVersionState(enum.Enum):
    """Location of a version, and whether requests that name it may start."""

    ABSENT = "absent"
    """The version is neither on the host nor on the device."""
    PREPARING = "preparing"
    """The version is being read and packed into host memory."""
    HOST = "host"
    """The version is in host memory only."""
    INSTALLING = "installing"
    """The version is being copied to the device."""
    RESIDENT = "resident"
    """The version is on the device; requests that wait for it stand aside."""
    OPEN = "open"
    """The version is on the device; its waiting requests stand in line."""
    ENTERING = "entering"
    """The version is open after it starved: its place is kept until the first of its requests runs."""
    DRAINING = "draining"
    """The version is on the device and in use, but closed to more requests, so that a starving adapter gets in."""
    FAILED = "failed"
    """A load failed; the requests that waited for it are being ended."""


_S = AdapterVersionState
TRANSITIONS: dict[AdapterVersionState, tuple[AdapterVersionState, ...]] = {
    _S.ABSENT: (_S.PREPARING,),
    _S.PREPARING: (_S.HOST, _S.FAILED),
    _S.HOST: (_S.INSTALLING, _S.ABSENT),
    _S.INSTALLING: (_S.RESIDENT, _S.FAILED),
    _S.RESIDENT: (_S.OPEN, _S.ENTERING, _S.DRAINING, _S.HOST),
    _S.OPEN: (_S.RESIDENT,),
    _S.ENTERING: (_S.OPEN, _S.RESIDENT),
    _S.DRAINING: (_S.RESIDENT,),
    _S.FAILED: (_S.ABSENT,),
}
LOADING = (_S.PREPARING, _S.INSTALLING)
IN_LINE = (_S.OPEN, _S.ENTERING)
INSTALLED = (_S.RESIDENT, *IN_LINE, _S.DRAINING)
ON_DEVICE = (_S.INSTALLING, *INSTALLED)
ON_HOST = (_S.HOST, *ON_DEVICE)


@dataclass(eq=False, slots=True)
class Adapter:
    """State of one adapter version."""

    version: str
    state: AdapterVersionState = AdapterVersionState.ABSENT
    sectors: int = 0
    """Number of sectors that it needs, known from HOST on."""
    requests: int = 0
    """Number of live requests that name it."""
    running: int = 0
    """Number of running requests that name it."""
    pinned: bool = False
    anchored: bool = False
    """Whether it is pinned on the device, not only on the host."""

    @property
    def hosted(self) -> bool:
        """Whether its copy on the host may go."""
        copied = self.state in (AdapterVersionState.HOST, AdapterVersionState.RESIDENT)
        return copied and not self.requests and not self.pinned

    @property
    def idle(self) -> bool:
        """Whether its copy on the device may go."""
        return self.state is AdapterVersionState.RESIDENT and not self.requests and not self.anchored

    @property
    def wanted(self) -> bool:
        """Whether its copy on the device may go if need be."""
        kept = self.anchored or self.state is AdapterVersionState.ENTERING
        return self.state in INSTALLED and not kept and self.requests > 0 and not self.running

    def move_to(self, state: AdapterVersionState) -> None:
        if state not in TRANSITIONS[self.state]:
            raise RuntimeError(f"adapter {self.version}: illegal transition {self.state.value} -> {state.value}")
        self.state = state

    def retry(self) -> None:
        """Let a version that has failed be loaded again."""
        if self.state is AdapterVersionState.FAILED:
            self.move_to(AdapterVersionState.ABSENT)


class Listed:
    """Adapters in the order of their use, least recently first, and the sum of their sectors."""

    def __init__(self) -> None:
        self.order: OrderedDict[str, Adapter] = OrderedDict()
        self.sectors = 0

    def __contains__(self, adapter: Adapter) -> bool:
        return adapter.version in self.order

    def add(self, adapter: Adapter) -> None:
        self.order[adapter.version] = adapter
        self.sectors += adapter.sectors

    def discard(self, adapter: Adapter) -> None:
        if self.order.pop(adapter.version, None) is not None:
            self.sectors -= adapter.sectors

    def first(self) -> Adapter:
        return next(iter(self.order.values()))

    def holds(self, adapters: Iterable[Adapter]) -> bool:
        """Whether exactly these adapters are listed."""
        found = {each.version: each for each in adapters}
        return found == self.order and sectors_of(found.values()) == self.sectors


def sectors_of(adapters: Iterable[Adapter]) -> int:
    """Return the sum of the adapters' sectors."""
    return sum(adapter.sectors for adapter in adapters)
