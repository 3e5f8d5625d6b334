"""The states of an adapter, and lists of adapters. Pure.

ABSENT ──► PREPARING ──► HOST ──► INSTALLING ──► RESIDENT
   ▲           │          │ ▲          │            │
   │           ▼          │ └──────────┼────────────┘
   ├──────── FAILED ◄─────┼────────────┘
   └──────────────────────┘
"""

from __future__ import annotations

import enum
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass


class AdapterState(enum.Enum):
    ABSENT = "absent"
    PREPARING = "preparing"
    HOST = "host"
    INSTALLING = "installing"
    RESIDENT = "resident"
    FAILED = "failed"


_ALLOWED = {
    (AdapterState.ABSENT, AdapterState.PREPARING),
    (AdapterState.PREPARING, AdapterState.HOST),
    (AdapterState.PREPARING, AdapterState.FAILED),
    (AdapterState.HOST, AdapterState.INSTALLING),
    (AdapterState.HOST, AdapterState.ABSENT),
    (AdapterState.INSTALLING, AdapterState.RESIDENT),
    (AdapterState.INSTALLING, AdapterState.FAILED),
    (AdapterState.RESIDENT, AdapterState.HOST),
    (AdapterState.FAILED, AdapterState.ABSENT),
}
LOADING = (AdapterState.PREPARING, AdapterState.INSTALLING)
ON_DEVICE = (AdapterState.INSTALLING, AdapterState.RESIDENT)
ON_HOST = (AdapterState.HOST, *ON_DEVICE)


@dataclass(eq=False, slots=True)
class Adapter:
    """What is known of one version."""

    version: str
    state: AdapterState = AdapterState.ABSENT
    sectors: int = 0
    """Known from HOST on."""
    requests: int = 0
    """Live requests that name it."""
    running: int = 0
    """Of these, those that run."""
    pinned: bool = False
    anchored: bool = False
    """Pinned on the device, not only on the host."""
    spared: bool = False
    """It has waited so long that nobody takes its sectors before a request with it runs."""

    @property
    def hosted(self) -> bool:
        """Its copy on the host may go."""
        copied = self.state in (AdapterState.HOST, AdapterState.RESIDENT)
        return copied and not self.requests and not self.pinned

    @property
    def idle(self) -> bool:
        """Its copy on the device may go."""
        return self.state is AdapterState.RESIDENT and not self.requests and not self.anchored

    @property
    def wanted(self) -> bool:
        """Its copy on the device may go if need be."""
        resident = self.state is AdapterState.RESIDENT and not self.anchored and not self.spared
        return resident and self.requests > 0 and not self.running

    def move_to(self, state: AdapterState) -> None:
        if (self.state, state) not in _ALLOWED:
            raise RuntimeError(f"adapter {self.version}: illegal transition {self.state.value} -> {state.value}")
        self.state = state

    def retry(self) -> None:
        """One that has failed may be loaded again."""
        if self.state is AdapterState.FAILED:
            self.move_to(AdapterState.ABSENT)


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
