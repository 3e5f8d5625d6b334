"""How training takes memory from the system, and gives it back."""

from __future__ import annotations

import ctypes


def keep_memory() -> None:
    """Tells glibc to keep freed memory: handing large buffers back and forth costs a quarter of the time."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        trim_threshold, mmap_max = -1, -4
        mallopt(trim_threshold, 2**31 - 1)
        mallopt(mmap_max, 0)


def release_memory() -> None:
    """Gives freed memory back after all: kept for ever, its holes add up to several times what training needs."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
