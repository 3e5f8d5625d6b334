"""Brings prefixes back from host memory for requests that are about to compute them. Pure: others do the copies.

A request is admitted as if its prefix were not cached, with blocks for all its tokens, and gets no row while the load
of its prefix fills the first of them. Others run on. When the load has ended the blocks are published as if
the request had computed them, and it goes on behind them.

A load holds a reference to each block that it writes to. Should the request lose its blocks meanwhile, they stay out
of anybody's reach until the copy has ended, and are cached then.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from engine.cache.blocks import BLOCK_SIZE, BlockPool
from engine.request import Request
from engine.scheduling.prefixes import Prefixes


@dataclass(frozen=True, slots=True, eq=False)
class HostLoad:
    """One copy from host memory to the device."""

    request: Request
    digests: list[bytes]
    """Keys of the prefixes that it brings back, neighbours in a chain."""
    host_blocks: list[int]
    """Host blocks that hold the prefixes."""
    blocks: list[int]
    """Blocks of the device that they are copied to."""


class HostLoads:
    """Loads for the requests of one scheduler. `least`: fewest tokens that are loaded rather than computed again."""

    def __init__(self, pool: BlockPool, prefixes: Prefixes, least: int) -> None:
        self.hit_tokens = self.loaded = 0
        """Prompt tokens of first admissions, and blocks in all, that were loaded since the start."""
        self._pool = pool
        self._host = pool.host
        self._prefixes = prefixes
        self._least = max(1, -(-least // BLOCK_SIZE))
        self._in_flight: dict[HostLoad, None] = {}
        self._due: list[HostLoad] = []

    def __len__(self) -> int:
        """Number of loads that have not ended."""
        return len(self._in_flight)

    def __iter__(self) -> Iterator[HostLoad]:
        return iter(self._in_flight)

    def found(self, request: Request, hits: int) -> list[bytes]:
        """Return prefixes worth loading for a request, behind its `hits` blocks on the device.

        They must be held before anything is allocated.
        """
        wanted = self._prefixes.missing(request, hits)
        count = self._host.match(wanted)
        return wanted[:count] if count >= self._least else []

    def begin(self, request: Request, digests: list[bytes], host_blocks: list[int]) -> None:
        """Load prefixes from host blocks that are held into the blocks behind those that a request has computed."""
        first = request.computed // BLOCK_SIZE
        load = HostLoad(request, digests, host_blocks, request.block_table[first : first + len(digests)])
        self._pool.share(load.blocks)
        self._in_flight[load] = None
        self._due.append(load)
        request.load = load
        self.loaded += len(host_blocks)
        if request.preemptions == 0:
            self.hit_tokens += len(host_blocks) * BLOCK_SIZE

    def take_due(self) -> list[HostLoad]:
        """Return loads decided on since the last call; the copies of `HostTier.take_saves` must be made first."""
        due, self._due = self._due, []
        return due

    def end(self, load: HostLoad, *, failed: bool = False) -> None:
        """End a load. If it failed, its request computes what it did not get."""
        del self._in_flight[load]
        request = load.request
        waiting = request.load is load
        if waiting:
            request.load = None
        if waiting and not failed:
            self._prefixes.publish(request, request.computed + len(load.blocks) * BLOCK_SIZE)
        elif not failed:
            for block, digest in zip(load.blocks, load.digests, strict=True):
                self._pool.register(block, digest)
        self._host.release(load.digests)
        self._pool.release(load.blocks)

    def check_integrity(self) -> None:
        """
        Raises:
            RuntimeError: the host tier's bookkeeping is wrong.
        """
        self._host.check_integrity(load.digests for load in self._in_flight)
