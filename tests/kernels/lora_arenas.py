"""Adapters with random weights in an arena, for the tests of the LoRA ops."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import torch

from kernels import LoraAdapter, LoraEmbedding, LoraLayout, LoraPart, LoraSite
from kernels.lora import reference
from kernels.lora.layout import CHUNK

SECTOR = 13 * CHUNK
"""Elements of a sector, at whose end neither a part nor a row of one ends."""
WIDTH, SIZES, VOCABULARY, EXPERTS = 24, (16, 8, 8), 11, 3


def layout(
    dtype: torch.dtype, ranks: Sequence[int], embedding: int = 0, experts: int = 0, scale: bool = False
) -> LoraLayout:
    """One linear layer "a" of three parts, "e" with experts, and the embedding; a rank of 0 is no part."""
    end = 0

    def take(count: int) -> int:
        nonlocal end
        end += count
        return end - count

    begins = np.cumsum((0, *SIZES)).tolist()
    columns = sum(SIZES)
    downs = [take(rank * WIDTH) for rank in ranks]
    parts = tuple(
        LoraPart(begin, begin + size, rank, down, take(rank * size))
        for begin, size, rank, down in zip(begins, SIZES, ranks, downs, strict=False)
        if rank
    )
    sites = {"a": LoraSite(WIDTH, columns, parts, *((0, columns) if scale else (None, None)))}
    if experts:
        down = take(EXPERTS * experts * WIDTH)
        part = LoraPart(0, columns, experts, down, take(EXPERTS * experts * columns))
        sites["e"] = LoraSite(WIDTH, columns, (part,), experts=EXPERTS)
    lookup = None
    if embedding:
        part = LoraPart(0, WIDTH, embedding, 0, take(embedding * WIDTH))
        lookup = LoraSite(0, WIDTH, (part,), scale=2 * columns if scale else None)
    factors, vectors = end, 3 * columns
    take(vectors * 4 // dtype.itemsize)
    rows = take(VOCABULARY * embedding)
    return LoraLayout(sites, factors, vectors, LoraEmbedding(lookup, rows) if lookup else None, end)


class Arena:
    """Adapters with random weights in shuffled sectors; all others are NaN."""

    def __init__(self, layouts: Sequence[LoraLayout], dtype: torch.dtype, seed: int, sector: int = SECTOR) -> None:
        generator = torch.Generator().manual_seed(seed)
        counts = [-(-one.elements // sector) for one in layouts]
        self.memory = torch.full((sum(counts) + 2, sector), torch.nan, dtype=dtype)
        self.magnitudes = self.memory.clone()
        """The arena's memory with every number's magnitude."""
        free = random.Random(seed).sample(range(len(self.memory)), sum(counts))
        self.adapters = []
        for one, count in zip(layouts, counts, strict=True):
            image = torch.zeros(count * sector, dtype=dtype)
            image[: one.elements] = torch.randn(one.elements, generator=generator).to(dtype)
            width = 4 // dtype.itemsize
            vectors = image[one.factors : one.factors + width * one.vectors].view(torch.float32)
            vectors.copy_(torch.randn(one.vectors, generator=generator))
            sectors = torch.tensor([free.pop() for _ in range(count)])
            self.memory[sectors] = image.view(count, sector)
            vectors.abs_()
            image[: one.factors].abs_()
            image[one.factors + width * one.vectors :].abs_()
            self.magnitudes[sectors] = image.view(count, sector)
            self.adapters.append(LoraAdapter(one, sectors))


def segments(adapters: Sequence[LoraAdapter | None], counts: Sequence[int]) -> reference.Segments:
    """Return the rows by adapter."""
    owners = [adapter for adapter, count in zip(adapters, counts, strict=True) for _ in range(count)]
    return [
        (adapter, torch.tensor([row for row, owner in enumerate(owners) if owner is adapter]))
        for adapter in dict.fromkeys(adapters)
        if adapter is not None
    ]
