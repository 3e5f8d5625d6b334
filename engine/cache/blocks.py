"""Bookkeeping of the paged KV cache: which blocks are used, cached or free, and which prefix each one holds. Pure.

A block is in exactly one of four states. *Used*: some request's block table names it (`references` counts how many).
*Cached*: no request uses it, but it holds a known prefix and is reused if that prefix comes again. *Lent*: it holds
something else than KV, an adapter's weights. *Free*: its content means nothing. Only full blocks are ever cached, and a
block that has been registered is never written again. Prefixes that lose their block go to host memory, if there is any
(`engine/cache/host_tier.py`).

The contents of cached blocks and of resting borrowers are in one list, least recently used first: an allocation
takes free blocks, then the head of that list, be it a prefix or an adapter.

Prefixes are identified by a hash chain (`engine/cache/prefix_keys.py`).
"""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from itertools import islice

from engine.cache.host_tier import HostTier
from engine.cache.prefix_keys import BLOCK_SIZE, block_hash, root_hash

__all__ = ["BLOCK_SIZE", "BlockPool", "PrefixMatch", "block_hash", "blocks_of", "root_hash"]


def blocks_of(tokens: int) -> int:
    """Count the blocks that so many tokens fill or begin."""
    return -(-tokens // BLOCK_SIZE)


_REMEMBERED_LOSSES = 4096
"""Number of evicted prefixes that are remembered; a match older than those is looked up anew."""


class PrefixMatch:
    """The longest known prefix of one chain of hashes, for a caller that asks again and again (`BlockPool.rematch`)."""

    __slots__ = ("blocks", "losses", "places")

    def __init__(self) -> None:
        self.blocks: list[int] = []
        """Blocks of the prefix at the last look-up."""
        self.losses = 0
        """Number of prefixes that the pool had evicted by then."""
        self.places: dict[bytes, int] = {}
        """Position of hashes in the chain, as far as that was needed."""


class BlockPool:
    """Tracks `total` blocks, numbered from 0. Every operation is O(1) per block it touches."""

    def __init__(self, total: int, host: HostTier | None = None) -> None:
        if total < 1:
            raise ValueError(f"the KV cache needs at least one block, not {total}")
        self.total = total
        self.host = host or HostTier(0)
        """Tier in host memory below this pool."""
        self._references = [0] * total
        self._holders = [0] * total
        """Sum of the numbers of each block's holders: with one reference, that is its holder."""
        self._shared: dict[int, int] = {}
        """Number of blocks that each holder shares with others; holders that share none are left out."""
        self._hashes: list[bytes | None] = [None] * total
        self._by_hash: dict[bytes, int] = {}
        self._losses = 0
        """Number of prefixes that were evicted since the start."""
        self._lost: deque[bytes] = deque(maxlen=_REMEMBERED_LOSSES)
        self._free = list(range(total - 1, -1, -1))
        # An OrderedDict unlinks from its middle and pops its front in O(1); a dict's front fills with holes.
        self._reusable: OrderedDict[int | str, None] = OrderedDict()
        """Cached blocks and resting borrowers, least recently used first."""
        self._lent: dict[str, list[int]] = {}
        self._resting: set[str] = set()
        self._lent_blocks = self._resting_blocks = 0
        self.on_revoke: Callable[[str], None] = _nobody
        """Called with a resting borrower that has just lost its blocks."""
        self._changes: dict[bytes, bool] | None = None
        """Prefixes that came to be held (True) or are not any more (False), here or below; None if nobody follows."""

    @property
    def free(self) -> int:
        return len(self._free)

    @property
    def cached(self) -> int:
        return len(self._reusable) - len(self._resting)

    @property
    def lent(self) -> int:
        return self._lent_blocks

    @property
    def available(self) -> int:
        """Number of blocks that can be allocated: free ones, then cached and resting ones, which lose their content."""
        return len(self._free) + self.cached + self._resting_blocks

    @property
    def prefixes(self) -> Set[bytes]:
        """All prefixes that can be found, here or in the tier below."""
        return self._by_hash.keys() | self.host.prefixes

    def follow(self, on: bool) -> None:
        """Start or stop recording cache insertions and evictions for `take_changes`."""
        self._changes = {} if on else None

    def take_changes(self) -> dict[bytes, bool]:
        """Return prefixes that can be found since the last call (True), or not any more (False)."""
        if not self._changes:
            return {}
        changes, self._changes = self._changes, {}
        return changes

    def match(self, hashes: Iterable[bytes]) -> list[int]:
        """Return the blocks of the longest known prefix of a chain. They must be `share`d before any allocation."""
        blocks = []
        for digest in hashes:
            block = self._by_hash.get(digest)
            if block is None:
                break
            blocks.append(block)
        return blocks

    def rematch(self, known: PrefixMatch, hashes: Sequence[bytes], most: int) -> list[int]:
        """Match the first `most` hashes of a chain that only grows, starting from its last match, `known`.

        The cost is one look-up plus the changes: prefixes evicted since then, and blocks that are new in the match.
        Only this method may change the list that it returns.
        """
        blocks, lost = known.blocks, self._losses - known.losses
        known.losses = self._losses
        if lost > min(len(self._lost), len(blocks)):
            blocks.clear()
        elif lost:
            for place in range(len(known.places), len(blocks)):
                known.places[hashes[place]] = place
            first = min(known.places.get(digest, most) for digest in islice(reversed(self._lost), lost))
            del blocks[first:]
        del blocks[most:]
        while len(blocks) < most and (block := self._by_hash.get(hashes[len(blocks)])) is not None:
            blocks.append(block)
        return blocks

    def idle(self, blocks: Iterable[int]) -> int:
        """Count those of `blocks` that are cached, so that sharing them takes away from `available`."""
        return list(map(self._references.__getitem__, blocks)).count(0)

    def shared(self, holder: int) -> int:
        """Count a holder's blocks that others have too; releasing all the rest adds to `available`. O(1)."""
        return self._shared.get(holder, 0)

    def share(self, blocks: Iterable[int], holder: int = 0) -> None:
        """Add a holder's reference to each matched block; holder 0 is for callers without a number of their own."""
        for block in blocks:
            references = self._references[block]
            if references == 0:
                del self._reusable[block]
            else:
                if references == 1:
                    self._count_shared(self._holders[block], 1)
                self._count_shared(holder, 1)
            self._references[block] = references + 1
            self._holders[block] += holder

    def allocate(self, count: int, holder: int = 0) -> list[int]:
        """Take `count` blocks to write to; least recently used reusable blocks lose their content.

        Raises:
            MemoryError: fewer are available; nothing was taken.
        """
        blocks = self._take(count)
        for block in blocks:
            self._references[block] = 1
            self._holders[block] = holder
        return blocks

    def release(self, blocks: Sequence[int], holder: int = 0) -> None:
        """Drop a holder's reference to each block of a table. Its tail is reused before its head, which more share."""
        for block in reversed(blocks):
            references = self._references[block]
            if references < 1:
                raise RuntimeError(f"KV block {block} released more often than taken")
            self._references[block] = references - 1
            self._holders[block] -= holder
            if references > 1:
                self._count_shared(holder, -1)
                if references == 2:
                    self._count_shared(self._holders[block], -1)
            elif self._hashes[block] is None:
                self._free.append(block)
            else:
                self._reusable[block] = None

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
            if self._changes is not None:
                self._changes[digest] = True  # said again of one that was below: it has been used just now

    def lend(self, borrower: str, count: int) -> list[int]:
        """Take `count` blocks for something that is not KV, until it is given back or, while it rests, revoked.

        Raises:
            MemoryError: fewer are available; nothing was taken.
            RuntimeError: the borrower has blocks already.
        """
        if borrower in self._lent:
            raise RuntimeError(f"{borrower} borrows KV blocks twice")
        blocks = self._take(count)
        self._lent[borrower] = blocks
        self._lent_blocks += count
        return blocks

    def rest(self, borrower: str) -> None:
        """Mark a borrower's blocks as not in use: they may be taken from it, in its turn."""
        self._resting.add(borrower)
        self._resting_blocks += len(self._lent[borrower])
        self._reusable[borrower] = None

    def wake(self, borrower: str) -> None:
        """Mark a resting borrower's blocks as in use again."""
        self._resting.remove(borrower)
        self._resting_blocks -= len(self._lent[borrower])
        del self._reusable[borrower]

    def give_back(self, borrower: str) -> None:
        """Free a borrower's blocks."""
        if borrower in self._resting:
            self.wake(borrower)
        blocks = self._lent.pop(borrower)
        self._lent_blocks -= len(blocks)
        self._free += reversed(blocks)

    def check_holders(self, tables: Mapping[int, Sequence[int]]) -> None:
        """Check the counts of shared blocks against the block tables of all holders but 0.

        Raises:
            RuntimeError: the count of what a holder shares is wrong.
        """
        shared = {holder: sum(self._references[block] > 1 for block in table) for holder, table in tables.items()}
        known = {holder: count for holder, count in self._shared.items() if holder}
        if known != {holder: count for holder, count in shared.items() if count}:
            raise RuntimeError("KV bookkeeping is broken: shared blocks are counted wrongly")

    def check_integrity(self, tables: Iterable[Sequence[int]]) -> None:
        """Check the state of all blocks against the block tables of all running requests.

        Raises:
            RuntimeError: a block is lost, in two states, or counted wrongly.
        """
        counted = Counter(block for table in tables for block in table)
        used = {block for block in range(self.total) if self._references[block]}
        free, cached = set(self._free), {key for key in self._reusable if isinstance(key, int)}
        lent = {block for blocks in self._lent.values() for block in blocks}
        states = [free, cached, used, lent]
        known = {block for block in range(self.total) if self._hashes[block] is not None}
        problems = {
            "blocks are lost or doubled": len(self._free) + len(cached) + len(used) + self.lent != self.total,
            "a block is in two states": len(set().union(*states)) != sum(map(len, states)),
            "lent blocks are counted wrongly": len(lent) != self.lent
            or sum(len(self._lent[name]) for name in self._resting) != self._resting_blocks,
            "a borrower rests wrongly": self._resting != self._reusable.keys() - cached,
            "references differ from block tables": counted != {block: self._references[block] for block in used},
            "a cached block holds no prefix": not cached <= known,
            "a free or lent block holds a prefix": bool((free | lent) & known),
            "the prefix index is stale": self._by_hash != {self._hashes[block]: block for block in known},
        }
        broken = [problem for problem, found in problems.items() if found]
        if broken:
            raise RuntimeError(f"KV bookkeeping is broken: {'; '.join(broken)}")

    def _count_shared(self, holder: int, more: int) -> None:
        count = self._shared.get(holder, 0) + more
        if count:
            self._shared[holder] = count
        else:
            self._shared.pop(holder, None)

    def _take(self, count: int) -> list[int]:
        if count > self.available:
            raise MemoryError(f"{count} KV blocks wanted, {self.available} available")
        while len(self._free) < count:
            oldest = next(iter(self._reusable))
            if isinstance(oldest, int):
                del self._reusable[oldest]
                self._forget(oldest)
                self._free.append(oldest)
            else:
                self.give_back(oldest)
                self.on_revoke(oldest)
        taken = self._free[len(self._free) - count :]
        del self._free[len(self._free) - count :]
        return taken[::-1]

    def _forget(self, block: int) -> None:
        digest = self._hashes[block]
        if digest is not None:
            del self._by_hash[digest]
            self._hashes[block] = None
            self._losses += 1
            self._lost.append(digest)
            lost = self.host.put(digest, block)
            if self._changes is not None:
                self._changes.update((prefix, False) for prefix in lost if prefix not in self._by_hash)


def _nobody(borrower: str) -> None:
    raise RuntimeError(f"nobody listens that {borrower} lost its KV blocks")
