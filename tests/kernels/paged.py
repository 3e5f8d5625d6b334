"""Batches over a paged bf16 cache for the CUDA bodies, and what attention over them should be."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from kernels import library

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

    def run(self, body: library.Library) -> torch.Tensor:
        """Attention by a library -> [T, H, D]; what is not to be read is NaN, and so is what surrounds the output."""
        tokens, heads, dim = self.query.shape
        out = torch.full((tokens + 2, heads, dim), math.nan, dtype=torch.bfloat16, device=self.query.device)
        most, splits = int(self.counts.max()), -(-int((self.starts + self.counts).max()) // SPLIT)
        size = body.paged_attention_scratch(len(self.counts), heads, self.keys.shape[2], dim, most, splits)
        scratch = torch.full((size,), 255, dtype=torch.uint8, device=out.device)
        tables = (self.tables, self.starts, self.counts)
        caches = (self.keys, self.values)
        body.paged_attention(out[1:-1], self.query, *caches, *tables, self.window, scratch, most, splits)
        assert out[[0, -1]].isnan().all()
        return out[1:-1]

    def expected(self) -> torch.Tensor:
        """The same in fp64, one row after the other."""
        outputs = []
        group = self.query.shape[1] // self.keys.shape[2]
        queries = self.query.double().cpu().split(self.counts.tolist())
        for query, start, table in zip(queries, self.starts.tolist(), self.tables.cpu(), strict=True):
            end, begin = start + len(query), max(0, start - self.window + 1) if self.window else 0
            keys, values = (
                cache.cpu()[table.long()].flatten(0, 1)[begin:end].double().repeat_interleave(group, 1)
                for cache in (self.keys, self.values)
            )
            distance = torch.arange(start, end)[:, None] - torch.arange(begin, end)
            visible = (distance >= 0) & (distance < (self.window or end))
            scores = torch.einsum("qhd,khd->hqk", query, keys) / math.sqrt(query.shape[2])
            weights = scores.masked_fill(~visible, -math.inf).softmax(-1)
            outputs.append(torch.einsum("hqk,khd->qhd", weights, values))
        return torch.cat(outputs)


def batch(
    rows: Sequence[tuple[int, int]],
    heads: int,
    kv_heads: int,
    dim: int,
    window: int = 0,
    device: torch.device | None = None,
    seed: int = 0,
) -> Batch:
    """Rows of (start, count). Blocks lie anywhere, among rows of another layer; unused slots are NaN."""
    torch.manual_seed(seed)
    width = max(1, *(-(-(start + count) // BLOCK) for start, count in rows))
    blocks = 2 * torch.randperm(width * len(rows) + 3)
    keys, values = (torch.full((2 * len(blocks), BLOCK, kv_heads, dim), math.nan) for _ in range(2))
    tables = blocks[: width * len(rows)].view(-1, width)
    for (start, count), table in zip(rows, tables, strict=True):
        positions = torch.arange(max(0, start - window + 1) if window else 0, start + count)
        slots = table[positions // BLOCK] * BLOCK + positions % BLOCK
        for cache in (keys, values):
            cache.view(-1, kv_heads, dim)[slots] = torch.randn(len(slots), kv_heads, dim)
    # Queries have the keys and values of their tokens behind them.
    query = torch.randn(sum(count for _, count in rows), heads + 2 * kv_heads, dim)
    floats = [x.to(device, torch.bfloat16) for x in (query, keys, values)]
    starts, counts = torch.tensor(rows, dtype=torch.int32, device=device).T.contiguous()
    return Batch(floats[0][:, :heads], floats[1], floats[2], tables.int().to(device), starts, counts, window)
