"""Tracks where each adapter is: on disk only, on the host, on the device. Pure bookkeeping; a `Bank` acts on it.

An adapter on the device lives in *sectors*: blocks borrowed from the KV cache's pool, so that memory moves between KV
and adapters as the load does. Who may lose its sectors depends on who needs it:

* *in use*, by requests that run: never;
* *wanted*, by requests that wait: to a running request's KV, and to an adapter that has waited too long;
* *idle*: to anybody, least recently used first, in one line with the prefixes that the KV cache keeps.

Adapters together hold at most a share of the blocks, and no request is longer than what is left. So the request first
in line always finds its blocks. Copies on the host stay until their number of bytes exceeds a budget; then idle ones
go, least recently used first.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass

from engine.adapters.loads import Install, Prepare
from engine.adapters.states import (
    IN_LINE,
    INSTALLED,
    LOADING,
    ON_DEVICE,
    ON_HOST,
    Adapter,
    AdapterVersionState,
    Listed,
    sectors_of,
)
from engine.cache.blocks import BlockPool


@dataclass(frozen=True, slots=True)
class ResidencyConfig:
    """Bounds of what adapters may hold.

    `share`: most of the KV blocks that adapters hold together; `host_bytes`: bytes of host copies above which idle
    ones go; `step_bytes`: most bytes of distinct adapters in one step (None: no limit); `wait`: seconds after which an
    adapter that cannot get in makes another one drain; `loads`: most loads under way, those queued for the loader
    included; `sector_bytes`: bytes of one block, over all layers.
    """

    share: float = 0.5
    host_bytes: int = 1 << 30
    step_bytes: int | None = None
    wait: float = 2.0
    loads: int = 8
    sector_bytes: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.share < 1:
            raise ValueError(f"the adapters' share must be from 0 to below 1, not {self.share}")
        positive = [self.loads, self.sector_bytes, 1 if self.step_bytes is None else self.step_bytes]
        if min(self.host_bytes, self.wait) < 0 or min(positive) < 1:
            raise ValueError("host_bytes and wait must not be negative; loads, step_bytes and sector_bytes be positive")


BASE_ONLY = ResidencyConfig(share=0.0)
"""Configuration of an engine without adapters."""


class AdapterFit(enum.Enum):
    """Whether an adapter can be brought in."""

    YES = "yes"
    BYTES = "a step would read too many bytes of adapters"
    SHARE = "what others use fills the adapters' share"
    BLOCKS = "too few blocks are free"
    NEVER = "it is larger than what pinned adapters leave of the share"


class Residency:
    """Location of every adapter that a request or a pin needs or that is still loaded."""

    def __init__(self, pool: BlockPool, config: ResidencyConfig) -> None:
        self.share = int(pool.total * config.share)
        """Most blocks that adapters hold together."""
        self.host_bytes = 0
        """Bytes of all copies on the host."""
        self.loading = self.loads = self.evictions = 0
        """Counts of loads under way, and since the start of copies to the device and copies lost from it."""
        self._pool = pool
        pool.on_revoke = self._lost
        self._config = config
        self._adapters: dict[str, Adapter] = {}
        self._hosted = Listed()
        """Adapters on the host (and maybe the device), not pinned, named by no request."""
        self._idle = Listed()
        """Adapters on the device that no request names and no pin keeps there: the resting borrowers of the pool."""
        self._wanted = Listed()
        """Adapters on the device that only waiting requests name."""
        self._anchored_sectors = 0
        self._removed: list[str] = []
        self._forgotten: list[str] = []

    # Questions.

    def state(self, version: str) -> AdapterVersionState:
        return self._known(version).state

    def size(self, version: str) -> int:
        """Return an adapter's bytes on the device, 0 while they are not known."""
        return self.sectors(version) * self._config.sector_bytes

    def sectors(self, version: str) -> int:
        """Return the number of sectors that an adapter needs, 0 while it is not known."""
        return self._known(version).sectors

    def anchored(self, version: str) -> bool:
        """Whether an adapter is pinned on the device."""
        return self._known(version).anchored

    @property
    def resident(self) -> list[str]:
        """Return the versions on the device, the one that was asked for last at the end."""
        return [each.version for each in self._adapters.values() if each.state in INSTALLED]

    @property
    def used_share(self) -> float:
        """Share of the blocks for adapters that those hold which are not idle."""
        return (self._pool.lent - self._idle.sectors) / self.share if self.share else 0.0

    @property
    def next_wanted(self) -> str | None:
        """The wanted adapter to evict first: the one that waits the shortest."""
        return next(reversed(self._wanted.order), None)

    # Requests.

    def hold(self, version: str) -> None:
        """Register a request that names this version; it makes a version that has failed be tried again."""
        adapter = self._adapters[version] = self._adapters.pop(version, Adapter(version))
        self._lift(adapter)
        adapter.retry()
        adapter.requests += 1
        self._settle(adapter)

    def release(self, version: str) -> None:
        """Register that a request that named this version and does not run has ended."""
        adapter = self._adapters[version]
        self._lift(adapter)
        adapter.requests -= 1
        self._settle(adapter)
        self._trim()

    def start(self, version: str) -> None:
        """Register that a held request begins to run."""
        adapter = self._adapters[version]
        if adapter.state not in IN_LINE:
            raise RuntimeError(f"adapter {version}: a request starts while it is {adapter.state.value}")
        self._lift(adapter)
        adapter.running += 1
        if adapter.state is AdapterVersionState.ENTERING:
            adapter.move_to(AdapterVersionState.OPEN)
        self._settle(adapter)

    def stop(self, version: str) -> None:
        """Register that a request does not run any more; it is still held."""
        adapter = self._adapters[version]
        self._lift(adapter)
        adapter.running -= 1
        self._settle(adapter)

    def pin(self, versions: Iterable[str]) -> None:
        """Pin these versions and no others: they stay on the host, and on the device as far as half the share goes.

        The other half is left to the others, so that no choice of pins can starve them all.
        """
        wanted = dict.fromkeys(versions)
        unpinned = [each.version for each in self._adapters.values() if each.pinned and each.version not in wanted]
        for version in (*unpinned, *wanted):
            adapter = self._adapters.setdefault(version, Adapter(version))
            self._lift(adapter)
            adapter.retry()
            adapter.pinned = version in wanted
            self._settle(adapter)
        self._trim()

    # Loads.

    def may_prepare(self) -> bool:
        """Whether there is room for one more copy on the host once idle ones are gone."""
        return (self.host_bytes - self._hosted.sectors * self._config.sector_bytes) < self._config.host_bytes

    def prepare(self, version: str) -> Prepare:
        """Begin to load an adapter onto the host."""
        adapter = self._adapters.setdefault(version, Adapter(version))
        adapter.move_to(AdapterVersionState.PREPARING)
        self.loading += 1
        return Prepare(version)

    def prepared(self, version: str, sectors: int) -> None:
        """Register that `prepare` is done."""
        adapter = self._adapters[version]
        self.loading -= 1
        adapter.sectors = sectors
        adapter.move_to(AdapterVersionState.HOST)
        self.host_bytes += sectors * self._config.sector_bytes
        self._settle(adapter)
        self._trim()

    def room(self, version: str, growth: int, *, urgent: bool = False) -> AdapterFit:
        """Whether an adapter on the host can be installed, leaving `growth` blocks to running requests.

        `urgent`: also at the cost of adapters that are wanted but not in use.
        """
        adapter = self._adapters[version]
        yielding = self._wanted.sectors if urgent else 0
        if adapter.sectors > self.share - self._anchored_sectors:
            return AdapterFit.NEVER
        if self._pool.lent - self._idle.sectors - yielding + adapter.sectors > self.share:
            return AdapterFit.SHARE
        if adapter.sectors + growth > self._pool.available + yielding:
            return AdapterFit.BLOCKS
        return AdapterFit.YES

    def may_anchor(self, version: str) -> bool:
        """Whether an adapter on the host is pinned and can be pinned on the device too."""
        return self._can_anchor(self._known(version))

    def install(self, version: str) -> Install:
        """Begin to copy an adapter to the device; `room` must have said yes without `urgent`."""
        adapter = self._adapters[version]
        self._lift(adapter)
        adapter.move_to(AdapterVersionState.INSTALLING)
        while self._pool.lent + adapter.sectors > self.share:
            self._evict(self._idle.first())
        sectors = self._pool.lend(version, adapter.sectors)
        self.loading += 1
        self._settle(adapter)
        return Install(version, sectors)

    def installed(self, version: str) -> None:
        """Register that `install` is done."""
        adapter = self._adapters[version]
        self.loading -= 1
        self.loads += 1
        self._lift(adapter)
        adapter.move_to(AdapterVersionState.RESIDENT)
        self._settle(adapter)
        self._trim()

    def failed(self, version: str) -> None:
        """Register that a load failed; its copy is dropped, and what it may have written is among `take_removed`.

        All requests that wait for it must be ended.
        """
        adapter = self._adapters[version]
        self.loading -= 1
        self._lift(adapter)
        if adapter.state is AdapterVersionState.INSTALLING:
            self._pool.give_back(version)
            self._removed.append(version)
            self._forgotten.append(version)
            self.host_bytes -= adapter.sectors * self._config.sector_bytes
        adapter.move_to(AdapterVersionState.FAILED)
        adapter.sectors = 0
        self._settle(adapter)

    def move(self, version: str, state: AdapterVersionState) -> None:
        """Open, close or drain an adapter on the device."""
        adapter = self._adapters[version]
        if AdapterVersionState.ENTERING in (adapter.state, state):
            self._lift(adapter)
            adapter.move_to(state)
            self._settle(adapter)
        else:
            adapter.move_to(state)  # no list changes by this

    def evict(self, version: str) -> None:
        """Take the sectors of an adapter on the device that is not used, and whose requests stand aside."""
        self._evict(self._adapters[version])

    def take_removed(self) -> list[str]:
        """Return versions that have lost their place on the device since the last call."""
        removed, self._removed = self._removed, []
        return removed

    def take_forgotten(self) -> list[str]:
        """Return versions that have lost their place on the host since the last call."""
        forgotten, self._forgotten = self._forgotten, []
        return forgotten

    def check_integrity(self) -> None:
        """Check the bookkeeping against itself and the pool's.

        Raises:
            RuntimeError: they differ; the message says where.
        """
        adapters = self._adapters.values()
        hosted = [each for each in adapters if each.state in ON_HOST]
        seated = [each for each in adapters if each.state in ON_DEVICE]
        problems = {
            "requests are counted wrongly": any(not 0 <= each.running <= each.requests for each in adapters),
            "a request runs without its adapter": any(
                each.running and each.state not in INSTALLED for each in adapters
            ),
            "host bytes are counted wrongly": self.host_bytes != sectors_of(hosted) * self._config.sector_bytes,
            "lent blocks differ from sectors": self._pool.lent != sectors_of(seated) or self._pool.lent > self.share,
            "loads are counted wrongly": self.loading != sum(each.state in LOADING for each in adapters),
            "an idle copy on the host is lost": not self._hosted.holds(each for each in adapters if each.hosted),
            "an idle adapter is lost": not self._idle.holds(each for each in adapters if each.idle),
            "a wanted adapter is lost": not self._wanted.holds(each for each in adapters if each.wanted),
            "anchors are counted wrongly": self._anchored_sectors
            != sectors_of(each for each in adapters if each.anchored),
        }
        broken = [problem for problem, found in problems.items() if found]
        if broken:
            raise RuntimeError(f"adapter bookkeeping is broken: {'; '.join(broken)}")

    def _known(self, version: str) -> Adapter:
        return self._adapters.get(version) or Adapter(version)

    # All attributes that decide an adapter's lists change between `_lift` and `_settle`.

    def _lift(self, adapter: Adapter) -> None:
        """Take an adapter out of all lists."""
        if adapter in self._idle:
            self._pool.wake(adapter.version)
        for listed in (self._hosted, self._idle, self._wanted):
            listed.discard(adapter)
        if adapter.anchored:
            adapter.anchored = False
            self._anchored_sectors -= adapter.sectors

    def _settle(self, adapter: Adapter) -> None:
        """Put an adapter into its lists, as the one that was used last; drop it if nothing keeps it."""
        if adapter.state in ON_DEVICE and self._can_anchor(adapter):
            adapter.anchored = True
            self._anchored_sectors += adapter.sectors
        if adapter.hosted:
            self._hosted.add(adapter)
        if adapter.wanted:
            self._wanted.add(adapter)
        if adapter.idle:
            self._idle.add(adapter)
            self._pool.rest(adapter.version)
        if (
            not adapter.requests
            and not adapter.pinned
            and adapter.state in (AdapterVersionState.FAILED, AdapterVersionState.ABSENT)
        ):
            del self._adapters[adapter.version]

    def _can_anchor(self, adapter: Adapter) -> bool:
        return adapter.pinned and self._anchored_sectors + adapter.sectors <= self.share // 2

    def _evict(self, adapter: Adapter) -> None:
        self._pool.give_back(adapter.version)
        self._lost(adapter.version)

    def _lost(self, version: str) -> None:
        """Register that an adapter is not on the device any more. Among those idle on the host it keeps its place."""
        adapter = self._adapters[version]
        self._idle.discard(adapter)
        self._wanted.discard(adapter)
        adapter.move_to(AdapterVersionState.HOST)
        self.evictions += 1
        self._removed.append(version)

    def _trim(self) -> None:
        """Drop idle copies until the host's budget is kept."""
        while self._hosted.order and self.host_bytes > self._config.host_bytes:
            adapter = self._hosted.first()
            if adapter.state is AdapterVersionState.RESIDENT:
                self._evict(adapter)
            self._lift(adapter)
            self.host_bytes -= adapter.sectors * self._config.sector_bytes
            adapter.move_to(AdapterVersionState.ABSENT)
            adapter.sectors = 0
            self._forgotten.append(adapter.version)
            self._settle(adapter)
