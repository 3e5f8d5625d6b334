"""Copies of KV blocks between a device and host memory; `engine.cache.host_tier` knows which host block holds what."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch

from engine.cache.host_tier import HostMemory, Save

_PIECE_BYTES = 1 << 30
"""Bytes of one piece of pinned memory. torch rounds up to a power of two: one large piece could waste half of it."""


def host_memory(sectors: torch.Tensor, size: int) -> HostMemory:
    """Allocate host memory of at most `size` bytes for the blocks of a KV cache [blocks, elements].

    Raises:
        ValueError: not even one block fits, or there is not so much memory.
    """
    block_bytes = sectors.shape[1] * sectors.element_size()
    blocks = size // block_bytes
    if blocks < 1:
        raise ValueError(f"host memory for KV: {size} bytes hold no block of {block_bytes}; give it more, or none")
    try:
        return _PinnedMemory(sectors, blocks) if sectors.device.type == "cuda" else _PlainMemory(sectors, blocks)
    except (MemoryError, RuntimeError) as error:  # numpy's and torch's exceptions
        raise ValueError(f"host memory for KV: {size} bytes cannot be had ({error}); give it fewer") from error


class _PlainMemory:
    """Host memory beside a KV cache that is in host memory itself.

    numpy copies, because torch would split a copy among threads, which the steps of the model need. Memory is taken
    from the operating system when a host block is first written.
    """

    def __init__(self, sectors: torch.Tensor, blocks: int) -> None:
        self.blocks = blocks
        self._sectors = sectors.view(torch.uint8).numpy()
        self.block_bytes = self._sectors.shape[1]
        self._host_blocks = np.empty((blocks, self.block_bytes), np.uint8)

    def save(self, saves: Sequence[Save]) -> None:
        for save in saves:
            np.copyto(self._host_blocks[save.host_block], self._sectors[save.block])

    def begin_load(self, host_blocks: Sequence[int], blocks: Sequence[int]) -> Callable[[], None]:
        def load() -> None:
            for host_block, block in zip(host_blocks, blocks, strict=True):
                np.copyto(self._sectors[block], self._host_blocks[host_block])

        return load


class _PinnedMemory:
    """Host memory beside the KV cache of a GPU: pinned pages, which the GPU reads and writes by itself."""

    def __init__(self, sectors: torch.Tensor, blocks: int) -> None:
        self.blocks = blocks
        self.block_bytes = sectors.shape[1] * sectors.element_size()
        self._sectors = sectors
        self._piece = max(1, _PIECE_BYTES // self.block_bytes)
        sizes = [min(self._piece, blocks - first) for first in range(0, blocks, self._piece)]
        self._pieces = [torch.empty(size, sectors.shape[1], dtype=sectors.dtype, pin_memory=True) for size in sizes]
        self._loading = torch.cuda.Stream(sectors.device)  # type: ignore[no-untyped-call]

    def save(self, saves: Sequence[Save]) -> None:
        # In the stream of the steps: the new owner of a block writes to it in the next step, which would have to wait.
        for save in saves:
            self._host_block(save.host_block).copy_(self._sectors[save.block], non_blocking=True)

    def begin_load(self, host_blocks: Sequence[int], blocks: Sequence[int]) -> Callable[[], None]:
        # Behind the steps that are launched, which may still write to the blocks for a request that has ended, and
        # behind all saves; beside the steps that follow.
        self._loading.wait_stream(torch.cuda.current_stream(self._sectors.device))
        with torch.cuda.stream(self._loading):
            for host_block, block in zip(host_blocks, blocks, strict=True):
                self._sectors[block].copy_(self._host_block(host_block), non_blocking=True)
            done = torch.cuda.Event()  # type: ignore[no-untyped-call]
            done.record()
        return done.synchronize

    def _host_block(self, host_block: int) -> torch.Tensor:
        return self._pieces[host_block // self._piece][host_block % self._piece]
