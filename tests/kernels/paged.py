"""Batches over a paged cache for the CUDA bodies, and attention's expected results over them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from kernels import library
from kernels.ops.attention import NO_SCALES
from kernels.reference.kv import quantize_kv

BLOCK, SPLIT = 16, 256


@dataclass(slots=True)
class Batch:
    """Row i runs tokens [starts[i], starts[i] + counts[i]) of its sequence."""

    query: torch.Tensor
    keys: torch.Tensor
    values: torch.Tensor
    tables: torch.Tensor
    starts: torch.Tensor
    counts: torch.Tensor
    window: int = 0
    scales: tuple[torch.Tensor, torch.Tensor] | None = None
    """Scales of keys and values in int8."""

    def run(self, body: library.Library) -> torch.Tensor:
        """Run attention by a library -> [T, H, D]; what must not be read, and what surrounds the output, is NaN."""
        tokens, heads, dim = self.query.shape
        out = torch.full((tokens + 2, heads, dim), math.nan, dtype=self.query.dtype, device=self.query.device)
        most, splits = int(self.counts.max()), -(-int((self.starts + self.counts).max()) // SPLIT)
        size = body.paged_attention_scratch(len(self.counts), heads, self.keys.shape[2], dim, most, splits)
        scratch = torch.full((size,), 255, dtype=torch.uint8, device=out.device)
        tables = (self.tables, self.starts, self.counts)
        caches = (self.keys, self.values, *(self.scales or (NO_SCALES, NO_SCALES)))
        body.paged_attention(out[1:-1], self.query, *caches, *tables, self.window, scratch, most, splits)
        assert out[[0, -1]].isnan().all()
        return out[1:-1]

    def expected(self) -> torch.Tensor:
        """Return the same in fp64, one row after the other."""
        outputs = []
        caches = [cache.cpu().double() for cache in (self.keys, self.values)]
        if self.scales is not None:
            caches = [x * scales.cpu().double().unsqueeze(-1) for x, scales in zip(caches, self.scales, strict=True)]
        group = self.query.shape[1] // self.keys.shape[2]
        queries = self.query.double().cpu().split(self.counts.tolist())
        for query, start, table in zip(queries, self.starts.tolist(), self.tables.cpu(), strict=True):
            end, begin = start + len(query), max(0, start - self.window + 1) if self.window else 0
            keys, values = (
                cache[table.long()].flatten(0, 1)[begin:end].repeat_interleave(group, 1) for cache in caches
            )
            distance = torch.arange(start, end)[:, None] - torch.arange(begin, end)
            visible = (distance >= 0) & (distance < (self.window or end))
            scores = torch.einsum("qhd,khd->hqk", query, keys) / math.sqrt(query.shape[2])
            weights = scores.masked_fill(~visible, -math.inf).softmax(-1)
            outputs.append(torch.einsum("hqk,khd->qhd", weights, values))
        return torch.cat(outputs)


def batch(
    rows: Sequence[tuple[int, int]],
    heads: tuple[int, int, int],
    window: int = 0,
    device: torch.device | None = None,
    seed: int = 0,
    dtype: torch.dtype = torch.bfloat16,
    stored: torch.dtype | None = None,
) -> Batch:
    """Rows of (start, count), of queries in `dtype` over keys and values that are `stored` so, or in `dtype` too.

    `heads`: how many there are for queries, for keys and values, and their length. Blocks lie anywhere, among rows of
    another layer; unused slots are NaN, and so are int8's scales of them.
    """
    torch.manual_seed(seed)
    stored, (query_heads, kv_heads, dim) = stored or dtype, heads
    width = max(1, *(-(-(start + count) // BLOCK) for start, count in rows))
    blocks = 2 * torch.randperm(width * len(rows) + 3)
    shape = (2 * len(blocks), BLOCK, kv_heads, dim)
    caches = [torch.full(shape, 127 if stored == torch.int8 else math.nan).to(stored) for _ in range(2)]
    # In memory a head's tokens are neighbours.
    all_scales = [torch.full((shape[0], kv_heads, BLOCK), math.nan).transpose(1, 2) for _ in range(2)]
    tables = blocks[: width * len(rows)].view(-1, width)
    for (start, count), table in zip(rows, tables, strict=True):
        positions = torch.arange(max(0, start - window + 1) if window else 0, start + count)
        place = table[positions // BLOCK], positions % BLOCK
        for cache, scales in zip(caches, all_scales, strict=True):
            numbers, steps = quantize_kv(torch.randn(len(positions), kv_heads, dim), stored)
            # As bytes: torch has no index_put_ for fp8.
            bits = cache.view(torch.uint8) if stored == torch.float8_e4m3fn else cache
            bits.index_put_(place, numbers.view(bits.dtype))
            if steps is not None:
                scales.index_put_(place, steps)
    # Queries have the keys and values of their tokens behind them.
    query = torch.randn(sum(count for _, count in rows), query_heads + 2 * kv_heads, dim).to(device, dtype)
    keys, values = (cache.to(device) for cache in caches)
    starts, counts = torch.tensor(rows, dtype=torch.int32, device=device).T.contiguous()
    made = Batch(query[:, :query_heads], keys, values, tables.int().to(device), starts, counts, window)
    if stored == torch.int8:
        made.scales = (all_scales[0].to(device), all_scales[1].to(device))
    return made
