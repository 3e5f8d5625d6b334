"""Planning of LoRA: once per step the host says which rows have which adapter, for all layers.

The batch keeps its order, which attention chose. A row without an adapter is computed as if there were none in the
batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from kernels import library
from kernels.lora.layout import LoraAdapter
from kernels.lora.reference import Segments
from kernels.lora.tables import LoraTables, TablePlan, plan_rows

Ints = npt.NDArray[np.int64]

_TYPES = (torch.float32, torch.bfloat16)
"""Types of arenas that built bodies read."""


@dataclass(frozen=True, slots=True)
class SegmentPlan:
    """The rows of each adapter of a batch, as `kernels.lora.reference` takes them."""

    arena: torch.Tensor
    segments: Segments

    def reaches(self, site: str) -> bool:
        """Whether any adapter has something for a layer."""
        return any(site in adapter.layout.sites for adapter, _ in self.segments)


LoraPlan = SegmentPlan | TablePlan
"""What the ops need to know of a batch: tables for built bodies, segments where none is built."""


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

    def plan(self, adapters: Sequence[LoraAdapter | None], counts: Ints, *, lasting: bool = False) -> LoraPlan | None:
        """Plan a batch whose row i has `counts[i]` tokens for `adapters[i]`, all of which are held; None: only base.

        lasting: the plan will be written into a `LastingLoraPlan`.
        """
        if library.of(self._arena, "adapt_linear") is not None and self._arena.dtype in _TYPES:
            return plan_rows(self._arena, self._tables, adapters, counts, small_tiles=lasting)
        rows: dict[LoraAdapter, list[int]] = {}
        for adapter, end, count in zip(adapters, counts.cumsum().tolist(), counts.tolist(), strict=True):
            if adapter is not None:
                rows.setdefault(adapter, []).extend(range(end - count, end))
        segments = [(adapter, torch.tensor(some, device=self._arena.device)) for adapter, some in rows.items()]
        return SegmentPlan(self._arena, segments) if segments else None
