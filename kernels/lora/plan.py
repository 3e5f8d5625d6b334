"""Planning of LoRA: once per step the host says which rows have which adapter, for all layers.

The batch keeps its order, which attention chose. A row without an adapter is computed as if there were none in the
batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from kernels import library
from kernels.lora.layout import LoraAdapter
from kernels.lora.reference import Segments
from kernels.lora.tables import Ints, LoraTables, TablePlan, plan_rows


@dataclass(frozen=True, slots=True)
class SegmentPlan:
    """The rows of each adapter of a batch, as `kernels.lora.reference` takes them."""

    arena: torch.Tensor
    segments: Segments

    def reaches(self, site: str) -> bool:
        """Whether an adapter of the batch changes the layer `site`."""
        return any(site in adapter.layout.sites for adapter, _ in self.segments)


LoraPlan = SegmentPlan | TablePlan
"""Which rows of a batch have which adapter: tables for built bodies, segments where none is built."""


class LoraWorkspace:
    """Plans batches whose adapters lie in an arena [sectors, elements]."""

    def __init__(self, arena: torch.Tensor) -> None:
        self._arena = arena
        self._tables = LoraTables.of((), arena.dtype, arena.device)

    def hold(self, adapters: Sequence[LoraAdapter | None]) -> None:
        """Describe the adapters of a step, None being the base model, and forget all others."""
        distinct = {adapter: None for adapter in adapters if adapter is not None}
        if distinct.keys() != self._tables.adapters.keys():
            self._tables = LoraTables.of(distinct, self._arena.dtype, self._arena.device)

    def plan(self, adapters: Sequence[LoraAdapter | None], counts: Ints, *, buffered: bool = False) -> LoraPlan | None:
        """Plan a batch whose row i has `counts[i]` tokens for `adapters[i]`, all of which are held; None: only base.

        buffered: the plan will be written into `LoraPlanBuffers`.
        """
        if library.of(self._arena, "adapt_linear") is not None and self._arena.dtype in library.TYPES:
            return plan_rows(self._arena, self._tables, adapters, counts, small_tiles=buffered)
        rows: dict[LoraAdapter, list[int]] = {}
        for adapter, end, count in zip(adapters, counts.cumsum().tolist(), counts.tolist(), strict=True):
            if adapter is not None:
                rows.setdefault(adapter, []).extend(range(end - count, end))
        segments = [(adapter, torch.tensor(some, device=self._arena.device)) for adapter, some in rows.items()]
        return SegmentPlan(self._arena, segments) if segments else None
