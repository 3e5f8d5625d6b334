"""Tracks which replica holds which prefix blocks: from the engines' block events, and from requests on their way.

A block is known by a number of 64 bits, the beginning of the engine's own key for it. Such keys are chains: a block's
key stands for everything before it, and for model, adapter and tenant. The index is a hint. Wrong entries, or two
blocks with the same number, send a request to a replica that has to compute what another one knows, and nothing else:
engines compare whole keys.

Bounded: at most `blocks` per replica, of those that its engine has stored and again of those that are expected. What
is beyond that is forgotten, least recently stored first.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence

BLOCKS = 65_536
"""Most blocks known of one replica: a million tokens where a block has 16. They take about 15 MB."""


class PrefixIndex:
    """The prefix blocks of one pool's replicas."""

    def __init__(self, *, blocks: int = BLOCKS) -> None:
        self._most = blocks
        self._holders: dict[int, int] = {}
        """Replicas that have a block or will have it soon, one bit for each."""
        self._replicas: dict[str, _Holdings] = {}

    def __len__(self) -> int:
        """Number of blocks that some replica is known to hold."""
        return len(self._holders)

    def blocks(self, replica: str) -> int:
        """Number of blocks that a replica is known to hold."""
        holdings = self._replicas.get(replica)
        return 0 if holdings is None else len(holdings.stored)

    def stored(self, replica: str, blocks: Sequence[int]) -> None:
        """Record that a replica holds these blocks of a chain, in its order."""
        holdings = self._holdings(replica)
        for block in reversed(blocks):  # a chain is forgotten from its end, where fewer need it
            holdings.stored[block] = None
            holdings.stored.move_to_end(block)
            self._holders[block] = self._holders.get(block, 0) | holdings.bit
        while len(holdings.stored) > self._most:
            oldest, _ = holdings.stored.popitem(last=False)
            self._drop(holdings, oldest)

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
        stored, holdings.stored = holdings.stored, OrderedDict()
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

        So do others that begin alike and come before it has answered find each other. Returns those that `settle` is
        to be given: not all if the index is full.
        """
        holdings = self._holdings(replica)
        taken = blocks[: max(0, self._most - len(holdings.expected))]
        for block in taken:
            holdings.expected[block] = holdings.expected.get(block, 0) + 1
            self._holders[block] = self._holders.get(block, 0) | holdings.bit
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

    __slots__ = ("bit", "expected", "stored")

    def __init__(self, bit: int) -> None:
        self.bit = bit
        self.stored: OrderedDict[int, None] = OrderedDict()
        self.expected: dict[int, int] = {}
        """By block: how many requests will make it store that one."""
