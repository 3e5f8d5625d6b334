"""Host memory for the ledger runner: host blocks that hold what its cells hold."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from engine.cache.blocks import BLOCK_SIZE
from engine.cache.host_tier import Save
from tests.engine.ledger_runner import LedgerRunner


class LedgerHost:
    """Copies cells of a `LedgerRunner`. Implements `engine.cache.host_tier.HostMemory`."""

    block_bytes = 100

    def __init__(self, runner: LedgerRunner, blocks: int) -> None:
        self.blocks = blocks
        self._runner = runner
        self._host_blocks: list[list[tuple[object, ...] | None]] = [[] for _ in range(blocks)]

    def save(self, saves: Sequence[Save]) -> None:
        for save in saves:
            self._host_blocks[save.host_block] = self._runner.cells[_cells(save.block)]

    def begin_load(self, host_blocks: Sequence[int], blocks: Sequence[int]) -> Callable[[], None]:
        for block in blocks:  # whoever reads them before the load has ended finds nothing
            self._runner.cells[_cells(block)] = [None] * BLOCK_SIZE

        def load() -> None:
            for host_block, block in zip(host_blocks, blocks, strict=True):
                self._runner.cells[_cells(block)] = self._host_blocks[host_block]

        return load


def _cells(block: int) -> slice:
    return slice(block * BLOCK_SIZE, (block + 1) * BLOCK_SIZE)
