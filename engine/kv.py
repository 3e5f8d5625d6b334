"""Bookkeeping of the paged KV cache: which blocks are used, cached or free, and which prefix each one holds. Pure.

A block is in exactly one of three states. *Used*: some request's block table names it (`references` counts how many).
*Cached*: nobody uses it, but it holds a known prefix and is reused if that prefix comes again. *Free*: its content
means nothing. Only full blocks are ever cached, and a block that has been registered is never written again.

Prefixes are identified by a hash chain, `H(parent, tokens)`, whose root names everything else that KV depends on
(the design is vLLM's automatic prefix caching; its root names the adapter, which serves stale KV after a reload).
"""

from __future__ import annotations

import hashlib
import struct
from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence

BLOCK_SIZE = 16
"""Tokens per block."""


def root_hash(revision: str, adapter: str | None, dtype: str, salt: bytes, regime: int = 0) -> bytes:
    """Start of the chain of one (model revision, adapter version, KV data type, salt, RoPE regime)."""
    hasher = hashlib.blake2b(digest_size=32, person=b"kv root")
    version = b"" if adapter is None else b"+" + adapter.encode()
    for part in (revision.encode(), version, dtype.encode(), salt, str(regime).encode()):
        hasher.update(struct.pack("<Q", len(part)))
        hasher.update(part)
    return hasher.digest()


def block_hash(parent: bytes, tokens: Sequence[int]) -> bytes:
    """Identity of a full block: its tokens after everything before them. 256 bits, the same on every machine."""
    packed = struct.pack(f"<{len(tokens)}I", *tokens)
    return hashlib.blake2b(parent + packed, digest_size=32, person=b"kv block").digest()


class BlockPool:
    """`total` blocks, numbered from 0. Every operation is O(1) per block it touches."""

    def __init__(self, total: int) -> None:
        if total < 1:
            raise ValueError(f"the KV cache needs at least one block, not {total}")
        self.total = total
        self._references = [0] * total
        self._hashes: list[bytes | None] = [None] * total
        self._by_hash: dict[bytes, int] = {}
        self._free = list(range(total - 1, -1, -1))
        # An OrderedDict unlinks from its middle and pops its front in O(1); a dict's front fills with holes.
        self._cached: OrderedDict[int, None] = OrderedDict()
        """Least recently used first."""

    @property
    def free(self) -> int:
        return len(self._free)

    @property
    def cached(self) -> int:
        return len(self._cached)

    @property
    def available(self) -> int:
        """Blocks that `allocate` can hand out: free ones, then cached ones at the price of their content."""
        return len(self._free) + len(self._cached)

    def match(self, hashes: Iterable[bytes]) -> list[int]:
        """Blocks of the longest known prefix of a chain. They must be `share`d before anything is allocated."""
        blocks = []
        for digest in hashes:
            block = self._by_hash.get(digest)
            if block is None:
                break
            blocks.append(block)
        return blocks

    def idle(self, blocks: Iterable[int]) -> int:
        """How many of these are cached, so that sharing them takes away from `available`."""
        return sum(self._references[block] == 0 for block in blocks)

    def share(self, blocks: Iterable[int]) -> None:
        """Add a reference to each matched block."""
        for block in blocks:
            if self._references[block] == 0:
                del self._cached[block]
            self._references[block] += 1

    def allocate(self, count: int) -> list[int]:
        """Take `count` blocks to write to; the content of the least recently used cached ones is given up.

        Raises:
            MemoryError: fewer are available; nothing was taken.
        """
        if count > self.available:
            raise MemoryError(f"{count} KV blocks wanted, {self.available} available")
        blocks = []
        for _ in range(count):
            if self._free:
                block = self._free.pop()
            else:
                block, _ = self._cached.popitem(last=False)
                self._forget(block)
            self._references[block] = 1
            blocks.append(block)
        return blocks

    def release(self, blocks: Sequence[int]) -> None:
        """Drop one reference to each block of a table. Its tail is reused before its head, which more may share."""
        for block in reversed(blocks):
            if self._references[block] < 1:
                raise RuntimeError(f"KV block {block} released more often than taken")
            self._references[block] -= 1
            if self._references[block] == 0:
                if self._hashes[block] is None:
                    self._free.append(block)
                else:
                    self._cached[block] = None

    def register(self, block: int, digest: bytes) -> None:
        """Make a full block findable. If another block already holds that prefix, this one stays private.

        Raises:
            RuntimeError: the block already holds a prefix, which would have been overwritten.
        """
        if self._hashes[block] is not None:
            raise RuntimeError(f"KV block {block} registered twice")
        if digest not in self._by_hash:
            self._by_hash[digest] = block
            self._hashes[block] = digest

    def check_integrity(self, tables: Iterable[Sequence[int]]) -> None:
        """Compare the books with the block tables of all running requests.

        Raises:
            RuntimeError: a block is lost, in two states, or counted wrongly.
        """
        counted = Counter(block for table in tables for block in table)
        used = {block for block in range(self.total) if self._references[block]}
        free, cached = set(self._free), set(self._cached)
        known = {block for block in range(self.total) if self._hashes[block] is not None}
        problems = {
            "blocks are lost or doubled": len(self._free) + len(cached) + len(used) != self.total,
            "a block is in two states": bool(free & cached or free & used or cached & used),
            "references differ from block tables": counted != {block: self._references[block] for block in used},
            "a cached block holds no prefix": not cached <= known,
            "a free block holds a prefix": bool(free & known),
            "the prefix index is stale": self._by_hash != {self._hashes[block]: block for block in known},
        }
        broken = [problem for problem, found in problems.items() if found]
        if broken:
            raise RuntimeError(f"KV bookkeeping is broken: {'; '.join(broken)}")

    def _forget(self, block: int) -> None:
        digest = self._hashes[block]
        if digest is not None:
            del self._by_hash[digest]
            self._hashes[block] = None
