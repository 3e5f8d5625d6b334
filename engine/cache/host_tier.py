"""Bookkeeping of the KV blocks in host memory that the device has given up: which prefix each host block holds. Pure.

A host block is *free* (its content means nothing), *used* (a load reads it, so it must keep its content) or *cached*
(it holds a known prefix that nobody reads). Blocks that the device evicts come here, the least recently
used make room for them, and what is loaded back stays here too: its content never changes, so that it need not be
copied again when the device gives it up the next time.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, KeysView, Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Save:
    """A copy that is due: a block of the device is copied to a host block before anybody writes to it again."""

    block: int
    host_block: int


class HostMemory(Protocol):
    """Holds `blocks` host blocks, each as large as a block of the device. The core's thread calls both methods."""

    @property
    def blocks(self) -> int: ...

    @property
    def block_bytes(self) -> int: ...

    def save(self, saves: Sequence[Save]) -> None:
        """Copy blocks to host blocks, in this order, before anything that is begun later writes to the blocks."""
        ...

    def begin_load(self, host_blocks: Sequence[int], blocks: Sequence[int]) -> Callable[[], None]:
        """Copy host blocks to blocks, which belong to this load alone. What is returned does it, or waits for it, and
        may be called in any thread; when it has returned, steps that begin later see the blocks' content.
        """
        ...


class HostTier:
    """Tracks `total` host blocks, numbered from 0; with none the tier is off. Every operation is O(1) per block."""

    def __init__(self, total: int) -> None:
        if total < 0:
            raise ValueError(f"host memory cannot hold {total} KV blocks")
        self.total = total
        self.saved = 0
        """Blocks copied from the device since the start."""
        self._host_blocks: dict[bytes, int] = {}
        self._free = list(range(total - 1, -1, -1))
        self._readers: Counter[bytes] = Counter()
        self._idle: OrderedDict[bytes, None] = OrderedDict()
        """Cached prefixes, least recently used first."""
        self._saves: list[Save] = []

    @property
    def free(self) -> int:
        return len(self._free)

    @property
    def cached(self) -> int:
        return len(self._idle)

    @property
    def used(self) -> int:
        return len(self._readers)

    @property
    def prefixes(self) -> KeysView[bytes]:
        """All prefixes that are held."""
        return self._host_blocks.keys()

    def match(self, digests: Iterable[bytes]) -> int:
        """Count these prefixes as far as they are held, up to the first that is not."""
        count = 0
        for digest in digests:
            if digest not in self._host_blocks:
                break
            count += 1
        return count

    def put(self, digest: bytes, block: int) -> Sequence[bytes]:
        """Take a block that the device evicts, whose copy is due unless held. Return the prefixes that are lost.

        If every host block is being read, the block's own prefix is lost.
        """
        if digest in self._host_blocks:
            if digest in self._idle:
                self._idle.move_to_end(digest)
            return ()
        lost: tuple[bytes, ...] = ()
        if not self._free:
            if not self._idle:
                return (digest,)
            oldest, _ = self._idle.popitem(last=False)
            self._free.append(self._host_blocks.pop(oldest))
            lost = (oldest,)
        host_block = self._host_blocks[digest] = self._free.pop()
        self._idle[digest] = None
        self._saves.append(Save(block, host_block))
        self.saved += 1
        return lost

    def take_saves(self) -> list[Save]:
        """Return copies that have become due since the last call, in the order in which they must be made."""
        saves, self._saves = self._saves, []
        return saves

    def hold(self, digests: Sequence[bytes]) -> list[int]:
        """Return the host blocks of held prefixes, which keep their content until they are `release`d."""
        for digest in digests:
            self._idle.pop(digest, None)
            self._readers[digest] += 1
        return [self._host_blocks[digest] for digest in digests]

    def release(self, digests: Sequence[bytes]) -> None:
        """End a load. The tail of a prefix is evicted before its head, which more requests may share.

        Raises:
            RuntimeError: one of them is not being read.
        """
        for digest in reversed(digests):
            if digest not in self._readers:
                raise RuntimeError("a KV block in host memory was released more often than held")
            self._readers[digest] -= 1
            if self._readers[digest] == 0:
                del self._readers[digest]
                self._idle[digest] = None

    def check_integrity(self, loads: Iterable[Sequence[bytes]]) -> None:
        """Check the state of all host blocks against the prefixes of all loads that have not ended.

        Raises:
            RuntimeError: a host block is lost, in two states, or read by nobody.
        """
        host_blocks = [*self._free, *self._host_blocks.values()]
        problems = {
            "host blocks are lost or doubled": self.free + self.cached + self.used != self.total
            or sorted(host_blocks) != list(range(self.total)),
            "a prefix is in two states": bool(self._idle.keys() & self._readers.keys()),
            "a prefix is in no state": self._host_blocks.keys() != self._idle.keys() | self._readers.keys(),
            "readers differ from loads": self._readers != Counter(digest for load in loads for digest in load),
        }
        broken = [problem for problem, found in problems.items() if found]
        if broken:
            raise RuntimeError(f"bookkeeping of KV in host memory is broken: {'; '.join(broken)}")
