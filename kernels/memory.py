"""Memory for tensors on the CPU that are read from end to end at every step."""

from __future__ import annotations

import math
import mmap
import threading

import torch

_HUGE_PAGE = 2 * 1024 * 1024


def empty_in_huge_pages(size: int) -> torch.Tensor:
    """`size` bytes as uint8, in pages of 2 MB where the system gives them: reading is then about a fifth faster.

    Small tensors get ordinary memory. Both begin at a multiple of 64 bytes.
    """
    if size < _HUGE_PAGE or not hasattr(mmap, "MADV_HUGEPAGE"):
        return torch.empty(size, dtype=torch.uint8)
    # Not MAP_SHARED, Python's default: that is shared memory, which has huge pages only where the system is told so.
    memory = mmap.mmap(-1, size + _HUGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    whole = torch.frombuffer(memory, dtype=torch.uint8)
    offset = -whole.data_ptr() % _HUGE_PAGE
    memory.madvise(mmap.MADV_HUGEPAGE, offset, math.ceil(size / mmap.PAGESIZE) * mmap.PAGESIZE)
    return whole[offset : offset + size]


def zeros_in_huge_pages(size: int, taken: int = 0) -> torch.Tensor:
    """`size` zeros as uint8 in such memory; the first `taken` bytes are taken up now, the others when they are written.

    The first write to a huge page has cost up to 5 ms in a virtual machine, whose host has to find the memory too.

    Raises:
        OSError, OverflowError: there is not so much memory.
    """
    memory = empty_in_huge_pages(size)
    if size < _HUGE_PAGE or not hasattr(mmap, "MADV_HUGEPAGE"):
        return memory.zero_()
    # What is mapped is zeros, and writing them takes it up, page by page.
    memory[: min(taken, size) : mmap.PAGESIZE] = 0
    return memory


class Workspace(threading.local):
    """Scratch memory of an op: one per thread, which grows and is used again."""

    def __init__(self) -> None:
        self._memory = torch.empty(0, dtype=torch.uint8)
        self._size = 0

    def of(self, size: int) -> torch.Tensor:
        """At least `size` bytes, whose content is undefined."""
        if self._size < size:
            self._memory, self._size = empty_in_huge_pages(size), size
        return self._memory
