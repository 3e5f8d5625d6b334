"""Decides which adapters are loaded before a request waits for them: pinned and announced ones. Pure."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable

from engine.adapters.loads import Job
from engine.adapters.residency import AdapterFit, Residency
from engine.adapters.states import LOADING, AdapterVersionState

MAX_ANNOUNCED = 256
"""Most announcements that are kept; further ones push out the oldest."""


class Prefetch:
    """Pinned adapters are loaded as far as there is room, announced ones onto the host, if there is room at once."""

    def __init__(self, residency: Residency) -> None:
        self._residency = residency
        self._pins: deque[str] = deque()
        self._announced: OrderedDict[str, None] = OrderedDict()

    def announce(self, version: str) -> None:
        """Remember that a request for this version is about to arrive."""
        self._announced[version] = None
        self._announced.move_to_end(version)
        if len(self._announced) > MAX_ANNOUNCED:
            self._announced.popitem(last=False)

    def pin(self, versions: Iterable[str]) -> None:
        """Load these versions without waiting for a request, and keep them and no others."""
        versions = list(dict.fromkeys(versions))
        self._residency.pin(versions)
        self._pins = deque(versions)

    def next_load(self, growth: int) -> Job | None:
        """Begin the load that is due next and return it. `growth`: blocks to be left to running requests."""
        return self._next_pinned(growth) or self._next_announced()

    def _next_pinned(self, growth: int) -> Job | None:
        residency = self._residency
        while self._pins:
            version = self._pins[0]
            state = residency.state(version)
            if state is AdapterVersionState.ABSENT:
                return residency.prepare(version) if residency.may_prepare() else None
            if state is AdapterVersionState.HOST and residency.may_anchor(version):
                return residency.install(version) if residency.room(version, growth) is AdapterFit.YES else None
            if state in LOADING:
                return None
            self._pins.popleft()  # it is already where it can be
        return None

    def _next_announced(self) -> Job | None:
        while self._announced:
            version, _ = self._announced.popitem(last=False)
            if self._residency.state(version) is AdapterVersionState.ABSENT and self._residency.may_prepare():
                return self._residency.prepare(version)
        return None
