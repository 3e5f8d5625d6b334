"""Tracks which replica holds which prefix blocks: from the engines' block events, and from requests on their way.

A block is known by a number of 64 bits, the beginning of the engine's own key for it. Such keys are chains: a block's
key stands for everything before it, and for model, adapter and tenant. The index is a hint. Wrong entries, or two
blocks with the same number, send a request to a replica that has to compute what another one knows, and nothing else:
engines compare whole keys.

Bounded: at most as many blocks of a replica as its engine has room for, of those that it has stored and again of those
that are expected. An engine that tells what it gives up never exceeds that; of one that does not, the blocks that were
least recently stored or asked for are forgotten first.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice

BLOCKS = 65_536
"""Most blocks known of a replica whose engine has not told its capacity."""
_BATCH = 16
"""One in this many blocks of a full replica is forgotten at a time: finding the oldest key of a dictionary takes time
in proportion to the keys that were deleted before it."""


class PrefixIndex:
    """The prefix blocks of one pool's replicas."""

    def __init__(self) -> None:
        self._holders: dict[int, int] = {}
        """Replicas that have a block or will have it soon, one bit for each."""
        self._replicas: dict[str, _Holdings] = {}

    def __len__(self) -> int:
        """Number of blocks that some replica is known to hold."""
        return len(self._holders)

    def knows(self, replica: str) -> bool:
        """Whether anything was told of a replica since it was forgotten."""
        return replica in self._replicas

    def blocks(self, replica: str) -> int:
        """Number of blocks that a replica is known to hold."""
        holdings = self._replicas.get(replica)
        return 0 if holdings is None else len(holdings.stored)

    def resize(self, replica: str, blocks: int) -> None:
        """Set how many blocks a replica has room for."""
        holdings = self._holdings(replica)
        holdings.most = blocks
        self._shrink(holdings)

    def stored(self, replica: str, blocks: Sequence[int]) -> None:
        """Record that a replica holds these blocks of a chain, in its order."""
        holdings = self._holdings(replica)
        stored = holdings.stored
        for block in reversed(blocks):  # a chain is forgotten from its end, where fewer need it
            stored.pop(block, None)
            stored[block] = None
            self._hold(holdings, block)
        self._shrink(holdings)

    def removed(self, replica: str, blocks: Iterable[int]) -> None:
        """Record that a replica holds these blocks no more."""
        holdings = self._holdings(replica)
        for block in blocks:
            if block in holdings.stored:
                del holdings.stored[block]
                self._drop(holdings, block)

    def cleared(self, replica: str) -> None:
        """Record that nothing is known of a replica's blocks any more."""
        holdings = self._holdings(replica)
        stored, holdings.stored = holdings.stored, {}
        for block in stored:
            self._drop(holdings, block)

    def forget(self, replica: str) -> None:
        """Forget a replica that is gone."""
        holdings = self._replicas.pop(replica, None)
        if holdings is not None:
            for block in {*holdings.stored, *holdings.expected}:
                self._lose(block, holdings.bit)

    def expect(self, replica: str, blocks: Sequence[int]) -> Sequence[int]:
        """Record blocks that a request on its way to a replica will store; `settle` takes them back.

        So do others that begin alike and come before it has answered find each other. Those that the replica holds
        already count as used just now. Returns those that `settle` is to be given: not all if as many are expected as
        the replica has room for.
        """
        holdings = self._holdings(replica)
        stored, expected = holdings.stored, holdings.expected
        taken = blocks[: max(0, holdings.most - len(expected))]
        for block in reversed(taken):
            if block in stored:
                del stored[block]
                stored[block] = None
            expected[block] = expected.get(block, 0) + 1
            self._hold(holdings, block)
        return taken

    def settle(self, replica: str, blocks: Sequence[int]) -> None:
        """A request has ended: what its replica now holds is what was `stored`."""
        holdings = self._replicas.get(replica)
        if holdings is None:
            return  # forgotten meanwhile
        for block in blocks:
            count = holdings.expected.get(block, 0) - 1
            if count > 0:
                holdings.expected[block] = count
            elif count == 0:
                del holdings.expected[block]
                self._drop(holdings, block)

    def match(self, chain: Iterable[int]) -> dict[str, int]:
        """How many of a chain's first blocks each replica holds; those that hold none are left out.

        Takes no more of the chain than somebody knows.
        """
        found: dict[str, int] = {}
        alive = -1
        length = 0
        for block in chain:
            holders = self._holders.get(block, 0) & alive
            if holders != alive:
                self._note(found, alive & ~holders, length)
                alive = holders
                if not alive:
                    return found
            length += 1
        self._note(found, alive, length)
        return found

    def check_integrity(self) -> None:
        """Compare the books.

        Raises:
            RuntimeError: they differ.
        """
        expected: dict[int, int] = {}
        for holdings in self._replicas.values():
            for block in {*holdings.stored, *holdings.expected}:
                expected[block] = expected.get(block, 0) | holdings.bit
        if expected != self._holders:
            raise RuntimeError("the prefix index differs from what its replicas hold")

    def _note(self, found: dict[str, int], lost: int, length: int) -> None:
        if length:
            for name, holdings in self._replicas.items():
                if lost & holdings.bit:
                    found[name] = length

    def _holdings(self, replica: str) -> _Holdings:
        holdings = self._replicas.get(replica)
        if holdings is None:
            used = {each.bit for each in self._replicas.values()}
            bit = next(bit for at in range(len(used) + 1) if (bit := 1 << at) not in used)
            holdings = self._replicas[replica] = _Holdings(bit)
        return holdings

    def _hold(self, holdings: _Holdings, block: int) -> None:
        holders = self._holders.get(block, 0)
        if not holders & holdings.bit:
            # A replica's own bit is one object for all of its blocks: most have no other holder.
            self._holders[block] = holders | holdings.bit if holders else holdings.bit

    def _shrink(self, holdings: _Holdings) -> None:
        """Forget the oldest of more blocks than a replica has room for."""
        excess = len(holdings.stored) - holdings.most
        if excess > 0:
            for oldest in list(islice(holdings.stored, max(excess, holdings.most // _BATCH))):
                del holdings.stored[oldest]
                self._drop(holdings, oldest)

    def _drop(self, holdings: _Holdings, block: int) -> None:
        """A replica does not hold a block for one of two reasons any more."""
        if block not in holdings.stored and block not in holdings.expected:
            self._lose(block, holdings.bit)

    def _lose(self, block: int, bit: int) -> None:
        left = self._holders[block] & ~bit
        if left:
            self._holders[block] = left
        else:
            del self._holders[block]


class _Holdings:
    """What one replica holds."""

    __slots__ = ("bit", "expected", "most", "stored")

    def __init__(self, bit: int) -> None:
        self.bit = bit
        self.most = BLOCKS
        self.stored: dict[int, None] = {}
        """Its blocks, the one that was used longest ago first."""
        self.expected: dict[int, int] = {}
        """By block: how many requests will make it store that one."""
