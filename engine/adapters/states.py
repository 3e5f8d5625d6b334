"""The states of an adapter version and which may follow which, and lists of adapters. Pure.

docs/engine.md draws `TRANSITIONS`, with what causes each.
"""

from __future__ import annotations

import enum
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass


class AdapterVersionState(enum.Enum):
    """Where a version is, and whether requests that name it may start."""

    ABSENT = "absent"
    """Neither on the host nor on the device."""
    PREPARING = "preparing"
    """Being read and packed into host memory."""
    HOST = "host"
    """In host memory only."""
    INSTALLING = "installing"
    """Being copied to the device."""
    RESIDENT = "resident"
    """On the device; requests that wait for it stand aside."""
    OPEN = "open"
    """On the device; its waiting requests stand in line."""
    ENTERING = "entering"
    """Open after it had starved: its place is kept until the first of its requests runs."""
    DRAINING = "draining"
    """On the device and in use, but closed to further requests, so that a starving adapter gets in."""
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
    """What is known of one version."""

    version: str
    state: AdapterVersionState = AdapterVersionState.ABSENT
    sectors: int = 0
    """Known from HOST on."""
    requests: int = 0
    """Live requests that name it."""
    running: int = 0
    """Of these, those that run."""
    pinned: bool = False
    anchored: bool = False
    """Pinned on the device, not only on the host."""

    @property
    def hosted(self) -> bool:
        """Its copy on the host may go."""
        copied = self.state in (AdapterVersionState.HOST, AdapterVersionState.RESIDENT)
        return copied and not self.requests and not self.pinned

    @property
    def idle(self) -> bool:
        """Its copy on the device may go."""
        return self.state is AdapterVersionState.RESIDENT and not self.requests and not self.anchored

    @property
    def wanted(self) -> bool:
        """Its copy on the device may go if need be."""
        kept = self.anchored or self.state is AdapterVersionState.ENTERING
        return self.state in INSTALLED and not kept and self.requests > 0 and not self.running

    def move_to(self, state: AdapterVersionState) -> None:
        if state not in TRANSITIONS[self.state]:
            raise RuntimeError(f"adapter {self.version}: illegal transition {self.state.value} -> {state.value}")
        self.state = state

    def retry(self) -> None:
        """One that has failed may be loaded again."""
        if self.state is AdapterVersionState.FAILED:
            self.move_to(AdapterVersionState.ABSENT)


class Listed:
    """Adapters in the order in which they were used, least recently first, and their sectors in all."""

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
        """Whether exactly these are listed."""
        found = {each.version: each for each in adapters}
        return found == self.order and sectors_of(found.values()) == self.sectors


def sectors_of(adapters: Iterable[Adapter]) -> int:
    """Sectors of these in all."""
    return sum(adapter.sectors for adapter in adapters)
