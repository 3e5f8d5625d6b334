"""Plans which rows of a step use which adapters."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from engine.adapters.bank import AdapterBank
from engine.adapters.layout import HEAD
from engine.execution.step_buffers import Ints
from engine.plan import Row
from engine.request import Request
from kernels import LoraAdapter, LoraPlan, LoraWorkspace


class LoraPlanner:
    """Makes the LoRA plans of one runner's steps; without a `bank` no request may name an adapter."""

    def __init__(self, sectors: torch.Tensor, bank: AdapterBank | None) -> None:
        self._bank = bank
        self._workspace = LoraWorkspace(sectors)
        self._last: tuple[list[LoraAdapter | None], list[int], LoraPlan | None] | None = None
        """Adapters and tokens of the rows of the last step that had any adapter, and its plan."""

    def begin(self, rows: Sequence[Row]) -> LoraPlan | None:
        """Return the plan of a step; the same object as before if nothing changed, as in most steps of decodes."""
        if not any([row.request.adapter for row in rows]):
            return None
        adapters, counts = self._adapters([row.request for row in rows]), [row.tokens for row in rows]
        if self._last is None or (adapters, counts) != self._last[:2]:
            self._workspace.hold(adapters)
            self._last = adapters, counts, self._workspace.plan(adapters, np.array(counts))
        return self._last[2]

    def part(self, requests: Sequence[Request], counts: Ints, *, buffered: bool = False) -> LoraPlan | None:
        """Return the plan for tokens of some requests of the step that was begun last, `counts` of each.

        buffered: the plan will be written into `LoraPlanBuffers`.
        """
        return self._workspace.plan(self._adapters(requests), counts, buffered=buffered)

    def head(self, step: LoraPlan | None, requests: Sequence[Request], counts: Ints) -> LoraPlan | None:
        """Return the plan for logits of some requests of a step, if one of their adapters changes them."""
        return None if step is None or not step.reaches(HEAD) else self.part(requests, counts)

    def clear(self) -> None:
        """Drop what is kept of the last step's adapters."""
        self._workspace.hold(())
        self._last = None

    def _adapters(self, requests: Sequence[Request]) -> list[LoraAdapter | None]:
        return [None if request.adapter is None else self._adapter(request.adapter) for request in requests]

    def _adapter(self, version: str) -> LoraAdapter:
        if self._bank is None:
            raise RuntimeError("this runner has no adapters")
        return self._bank.adapter(version)
