"""Batches of sequences in a paged cache, and attention's expected results over them."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch

from kernels import AttentionPlan, LayerCache, plan_attention
from kernels.reference.kv import dequantize_kv, quantize_kv

BLOCK = 16


@dataclass
class Paged:
    """Random sequences with their keys and values in blocks here and there, and queries for the last tokens of each.

    `rows` are (start, count). What no sequence has written is `unused`. Keys and values are stored as `stored`, if that
    is given; `sequences` are what one then reads of them.
    """

    rows: list[tuple[int, int]]
    heads: int = 4
    kv_heads: int = 2
    dim: int = 32
    window: int | None = None
    dtype: torch.dtype = torch.float32
    seed: int = 0
    unused: float = math.nan
    device: str = "cpu"
    stored: torch.dtype | None = None

    def __post_init__(self) -> None:
        generator = torch.Generator().manual_seed(self.seed)
        widths = [-(-(start + count) // BLOCK) for start, count in self.rows]
        ids = torch.randperm(sum(widths) + 3, generator=generator).tolist()
        self.tables = np.full((len(self.rows), max(widths, default=0)), ids.pop(), np.int32)
        shape = (sum(widths) + 3, self.kv_heads, BLOCK, self.dim)
        # A head's tokens are neighbours, as in the engine; the ops see [blocks, BLOCK, heads, dim].
        stored_type = self.stored or self.dtype
        fill = 127 if stored_type == torch.int8 else self.unused
        caches = [torch.full(shape, fill, dtype=stored_type).transpose(1, 2) for _ in range(2)]
        self.scales: tuple[torch.Tensor, ...] = ()
        if stored_type == torch.int8:
            self.scales = tuple(torch.full(shape[:3], self.unused).transpose(1, 2) for _ in range(2))
        self.sequences = []
        for (start, count), table, width in zip(self.rows, self.tables, widths, strict=True):
            table[:width] = [ids.pop() for _ in range(width)]
            positions = np.arange(start + count)
            place = torch.from_numpy(table[positions // BLOCK]).long(), torch.from_numpy(positions % BLOCK)
            pair = [torch.randn(start + count, self.kv_heads, self.dim, generator=generator) for _ in range(2)]
            read = []
            for index, (cache, x) in enumerate(zip(caches, pair, strict=True)):
                stored, scales = quantize_kv(x, stored_type)
                bits = cache.view(torch.uint8) if stored_type == torch.float8_e4m3fn else cache
                bits.index_put_(place, stored.view(bits.dtype))
                if scales is not None:
                    self.scales[index].index_put_(place, scales)
                read.append(dequantize_kv(stored, scales, torch.float32))
            self.sequences.append((read[0], read[1]))
        tokens = sum(count for _, count in self.rows)
        # A strided view, as the packed projection gives it.
        heads = torch.randn(tokens, self.heads + 1, self.dim, generator=generator).to(self.dtype, copy=True)
        self.query = heads.to(self.device)[:, : self.heads]
        self.key_cache, self.value_cache = (cache.to(self.device) for cache in caches)

    @property
    def cache(self) -> LayerCache:
        return LayerCache(self.key_cache, self.value_cache, *self.scales)

    @property
    def plan(self) -> AttentionPlan:
        starts, counts = np.array(self.rows, np.int32).reshape(-1, 2).T.copy()
        return plan_attention(starts, counts, self.tables, window=self.window, device=torch.device(self.device))

    def expected(self) -> torch.Tensor:
        """Return attention in fp64 [tokens, heads * dim]."""
        outputs, begin = [torch.empty(0, self.heads * self.dim, dtype=torch.float64)], 0
        query = self.query.cpu().double()
        for (start, count), pair in zip(self.rows, self.sequences, strict=True):
            keys, values = (x.double().repeat_interleave(self.heads // self.kv_heads, 1) for x in pair)
            scores = torch.einsum("qhd,khd->hqk", query[begin : begin + count], keys) / math.sqrt(self.dim)
            distance = torch.arange(start, start + count)[:, None] - torch.arange(start + count)
            visible = (distance >= 0) & (distance < (self.window or start + count))
            weights = scores.masked_fill(~visible, -math.inf).softmax(-1)
            outputs.append(torch.einsum("hqk,khd->qhd", weights, values).flatten(1))
            begin += count
        return torch.cat(outputs)
