"""How paged attention's fast path in plain torch serves a batch: in groups of rows that share one call of torch's.

Two kinds of groups exist: fresh rows, which have no computed prefix and need no mask, and paged rows. Keys and values
of both are gathered from the cache by block.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

Ints = npt.NDArray[np.int64]

SHORT = 16
"""Most tokens of a paged row that shares calls: decodes, and drafts that are verified. Prompts' chunks are longer."""
_PADDING_FACTOR = 2
"""Paged rows share a group while the longest has at most twice the blocks of the shortest."""
_PADDING_BLOCKS = 4
"""They also share one at up to this many blocks more: an extra call costs more than gathering a few in vain."""
_GATHERED_BYTES = 2 * 1024 * 1024
"""On the CPU, keys and values gathered at a time: they are read again at once, and should still be in the L2 cache."""
_MASK_ELEMENTS = 1 << 24
"""Most elements of one mask: a long chunk behind a long prefix is run in pieces instead of with a mask of gigabytes."""


@dataclass(frozen=True, slots=True)
class Fresh:
    """Rows without a computed prefix: `rows` sequences of `count` tokens each, from batch token `begin` on."""

    begin: int
    end: int
    rows: int
    count: int
    blocks: torch.Tensor
    """[rows * width] block ids, row-major."""
    mask: torch.Tensor | None
    """Additive [1, 1, count, count]; None is causal."""


@dataclass(frozen=True, slots=True)
class Paged:
    """Rows that attend to the cache: `rows` sequences of `count` tokens each, from batch token `begin` on."""

    begin: int
    end: int
    rows: int
    count: int
    blocks: torch.Tensor
    """[rows * width] block ids, row-major, padded with block 0."""
    mask: torch.Tensor | None
    """Additive [rows, 1, count, width * block_size]; None when every query sees every gathered key."""


Groups = tuple[Fresh | Paged, ...]


def group_rows(
    starts: Ints,
    counts: Ints,
    tables: Ints,
    window: int | None,
    key_cache: torch.Tensor,
    dtype: torch.dtype,
) -> Groups:
    """Group a batch whose row i runs tokens `[starts[i], starts[i] + counts[i])` of its sequence.

    Args:
        starts, counts: [rows], in the order in which the rows' tokens lie in the batch. Neighbours with equal counts
            and similar lengths share a call, so decodes and drafts should come sorted by length.
        tables: [rows, width] block ids of the cache; entries past a row's length are ignored.
        window: how many positions a query sees, itself included; None is all.
        key_cache: [blocks, block_size, kv_heads, head_dim].
        dtype: type of the additive masks, which must be that of the queries.
    """
    block_size, device = key_cache.shape[1], key_cache.device
    block_bytes = 2 * key_cache[0].numel() * key_cache.itemsize
    starts, counts, tables = _split_long(starts, counts, tables, window)
    first_block = np.zeros_like(starts) if window is None else np.maximum(starts - window + 1, 0) // block_size
    widths = -(-(starts + counts) // block_size) - first_block
    most_blocks = _GATHERED_BYTES // block_bytes if device.type == "cpu" else None
    groups: list[Fresh | Paged] = []
    begin = 0
    for low, high in _runs(starts, counts, widths, most_blocks):
        rows, count = high - low, int(counts[low])
        end = begin + rows * count
        first, width = first_block[low:high], int(widths[low:high].max())
        if _is_fresh(int(starts[low]), count):
            mask = None
            if window is not None and count > window:
                mask = _mask(starts[low : low + 1], count, first[:1], count, window, dtype)
            blocks = torch.from_numpy(tables[low:high, : -(-count // block_size)].reshape(-1)).to(device)
            groups.append(Fresh(begin, end, rows, count, blocks, _to(device, mask)))
        else:
            blocks = _blocks(tables[low:high], first, widths[low:high], width).to(device)
            mask = _mask(starts[low:high], count, first * block_size, width * block_size, window, dtype)
            groups.append(Paged(begin, end, rows, count, blocks, _to(device, mask)))
        begin = end
    return tuple(groups)


def _to(device: torch.device, mask: torch.Tensor | None) -> torch.Tensor | None:
    return None if mask is None else mask.to(device)


def _split_long(starts: Ints, counts: Ints, tables: Ints, window: int | None) -> tuple[Ints, Ints, Ints]:
    """Split rows whose mask would be too large into rows of fewer tokens, with the same blocks."""
    masked = (starts > 0) if window is None else (starts > 0) | (counts > window)
    pieces = np.where(masked, -(-counts * (starts + counts) // _MASK_ELEMENTS), 1)
    if (pieces <= 1).all():
        return starts, counts, tables
    split = [
        (start + offset, min(size, count - offset), row)
        for row, (start, count, size) in enumerate(zip(starts, counts, -(-counts // pieces), strict=True))
        for offset in range(0, count, size)
    ]
    split_starts, split_counts, rows = np.array(split).T
    return split_starts, split_counts, tables[rows]


def _runs(starts: Ints, counts: Ints, widths: Ints, most_blocks: int | None) -> Iterator[tuple[int, int]]:
    """Half-open ranges of neighbouring rows that may share a call: fresh rows of one length, or similar short ones."""
    rows = list(zip(starts.tolist(), counts.tolist(), widths.tolist(), strict=True))
    low = 0
    for index, row in enumerate(rows):
        if index and not _alike(rows[low], row, index + 1 - low, most_blocks):
            yield low, index
            low = index
    yield low, len(rows)


def _is_fresh(start: int, count: int) -> bool:
    """One-token rows are paged: they then share a call with the decodes."""
    return start == 0 and count > 1


def _alike(one: tuple[int, int, int], other: tuple[int, int, int], rows: int, most_blocks: int | None) -> bool:
    """Whether two rows (start, count, width) may share a call, as `rows` rows of the larger width."""
    (start, count, width), (other_start, other_count, other_width) = one, other
    if count != other_count:
        return False
    if _is_fresh(start, count) or _is_fresh(other_start, count) or count > SHORT:
        return start == other_start == 0
    narrow, wide = sorted((width, other_width))
    if most_blocks is not None and rows * wide > most_blocks:
        return False
    return wide <= max(_PADDING_FACTOR * narrow, narrow + _PADDING_BLOCKS)


def _blocks(tables: Ints, first_block: Ints, widths: Ints, width: int) -> torch.Tensor:
    """Ids [rows * width] of the blocks from each row's first visible one on, padded with block 0."""
    columns = np.minimum(first_block[:, None] + np.arange(width), tables.shape[1] - 1)
    inside = np.arange(width) < widths[:, None]
    return torch.from_numpy(np.where(inside, np.take_along_axis(tables, columns, axis=1), 0).reshape(-1))


def _mask(
    starts: Ints, count: int, first_key: Ints, keys: int, window: int | None, dtype: torch.dtype
) -> torch.Tensor | None:
    """Additive mask [rows, 1, count, keys] for queries from `starts` on over keys from `first_key` on."""
    query = (starts[:, None] + np.arange(count))[:, :, None]
    key = (first_key[:, None] + np.arange(keys))[:, None, :]
    visible = key <= query
    if window is not None:
        visible &= key > query - window
    if visible.all():
        return None
    hidden = torch.from_numpy(~visible[:, None])
    return torch.zeros(hidden.shape, dtype=dtype).masked_fill_(hidden, float("-inf"))
