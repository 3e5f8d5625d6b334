"""Planning of paged attention: once per step the host sorts the rows of a batch into groups that one call can serve.

A plan is computed from host arrays and reused by every layer with the same window, so that the layers' loop runs no
Python per row (the plan/run split of FlashInfer). Two kinds of groups exist: fresh rows, whose keys are all in the
batch itself, and paged rows, whose keys are gathered from the cache by block.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

Ints = npt.NDArray[np.int64]

_PADDING_FACTOR = 2
"""Paged rows share a group while the longest has at most twice the blocks of the shortest."""
_PADDING_BLOCKS = 4
"""... or at most this many more: an extra call costs more than gathering a few blocks in vain."""
_GATHERED_BYTES = 2 * 1024 * 1024
"""On the CPU, keys and values gathered at a time: they are read again at once, and should still be in the L2 cache."""


@dataclass(frozen=True, slots=True)
class Fresh:
    """Rows without a computed prefix: `rows` sequences of `count` tokens each, from batch token `begin` on."""

    begin: int
    end: int
    rows: int
    count: int
    mask: torch.Tensor | None
    """Additive [count, count]; None is causal."""


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


@dataclass(frozen=True, slots=True)
class AttentionPlan:
    """What `paged_attention` needs to know of a batch, for layers of one window."""

    groups: tuple[Fresh | Paged, ...]


def plan_attention(
    starts: Ints,
    counts: Ints,
    tables: Ints,
    *,
    block_size: int,
    block_bytes: int,
    window: int | None,
    device: torch.device,
    dtype: torch.dtype,
) -> AttentionPlan:
    """Plan a batch whose row i runs tokens `[starts[i], starts[i] + counts[i])` of its sequence.

    Args:
        starts, counts: [rows], in the order in which the rows' tokens lie in the batch. Neighbours with equal counts
            and similar lengths share a call, so decodes should come sorted by length.
        tables: [rows, width] block ids of the cache; entries past a row's length are ignored.
        block_bytes: size of a block's keys and values in one layer.
        window: how many positions a query sees, itself included; None is all.
        dtype: of the additive masks, which must equal that of the queries.
    """
    groups: list[Fresh | Paged] = []
    ends = starts + counts
    first_block = np.zeros_like(starts) if window is None else np.maximum(starts - window + 1, 0) // block_size
    widths = -(-ends // block_size) - first_block
    begin = 0
    most_blocks = _GATHERED_BYTES // block_bytes if device.type == "cpu" else None
    for low, high in _runs(starts, counts, widths, most_blocks):
        rows, count = high - low, int(counts[low])
        end = begin + rows * count
        if _is_fresh(starts, counts, low):
            mask = None
            if window is not None and count > window:
                mask = _mask(np.zeros(1, np.int64), count, np.zeros(1, np.int64), count, window, dtype)
                mask = None if mask is None else mask[0, 0].to(device)
            groups.append(Fresh(begin, end, rows, count, mask))
        else:
            blocks, mask = _gather(
                starts[low:high],
                count,
                tables[low:high],
                first_block[low:high],
                widths[low:high],
                block_size,
                window,
                dtype,
            )
            groups.append(Paged(begin, end, rows, count, blocks.to(device), None if mask is None else mask.to(device)))
        begin = end
    return AttentionPlan(tuple(groups))


def _is_fresh(starts: Ints, counts: Ints, row: int) -> bool:
    """One-token rows are paged: they then share a call with the decodes."""
    return bool(starts[row] == 0 and counts[row] > 1)


def _runs(starts: Ints, counts: Ints, widths: Ints, most_blocks: int | None) -> Iterator[tuple[int, int]]:
    """Half-open ranges of neighbouring rows that may share a call."""
    low = 0
    for row in range(1, len(starts) + 1):
        if row < len(starts) and counts[row] == counts[low]:
            fresh = _is_fresh(starts, counts, low)
            if fresh == _is_fresh(starts, counts, row) and (
                fresh or _may_be_padded(int(widths[low]), int(widths[row]), row + 1 - low, most_blocks)
            ):
                continue
        yield low, row
        low = row


def _may_be_padded(one: int, other: int, rows: int, most_blocks: int | None) -> bool:
    """Whether rows of these widths may be gathered together, as `rows` rows of the larger width."""
    narrow, wide = sorted((one, other))
    if most_blocks is not None and rows * wide > most_blocks:
        return False
    return wide <= max(_PADDING_FACTOR * narrow, narrow + _PADDING_BLOCKS)


def _gather(
    starts: Ints,
    count: int,
    tables: Ints,
    first_block: Ints,
    widths: Ints,
    block_size: int,
    window: int | None,
    dtype: torch.dtype,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Block ids [rows * width] from each row's first visible block on, and the mask over the gathered keys."""
    width = int(widths.max())
    columns = first_block[:, None] + np.arange(width)
    inside = np.arange(width) < widths[:, None]
    blocks = np.where(inside, np.take_along_axis(tables, np.minimum(columns, tables.shape[1] - 1), axis=1), 0)
    mask = _mask(starts, count, first_block * block_size, width * block_size, window, dtype)
    return torch.from_numpy(blocks.reshape(-1)), mask


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
