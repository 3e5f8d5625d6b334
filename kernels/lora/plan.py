"""Planning of LoRA: once per step the host groups tokens by adapter, and adapters that one batched product can serve.

The batch keeps its order, which attention chose: tokens are gathered for each layer's LoRA and their results added
where they belong. So a row without an adapter is computed as if there were none in the batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from kernels import library
from kernels.lora.layout import LoraAdapter, LoraLayout
from kernels.lora.slots import LoraSlots
from kernels.lora.tables import LoraTables, TablePlan, plan_rows

Ints = npt.NDArray[np.int64]

_TYPES = (torch.float32, torch.bfloat16)
"""Of arenas that built bodies read."""
_CALL_ROWS = 16
"""What a product of its own costs, in rows of padding that it spares."""
_LONG = 64
"""Tokens from which an adapter, or one row, always has products of its own."""

Rows = torch.Tensor | slice
"""Tokens of the batch; a slice where they are neighbours."""


@dataclass(frozen=True, slots=True)
class Single:
    """The adapter in one slot, by itself."""

    slot: int
    rows: Rows


@dataclass(frozen=True, slots=True)
class Batched:
    """Adapters in neighbouring slots [first, first + lanes) with `depth` tokens each, some of them padding."""

    first: int
    lanes: int
    depth: int
    gather: torch.Tensor
    """[lanes * depth] tokens of the batch."""
    rows: torch.Tensor
    """The same without padding."""
    valid: torch.Tensor | None
    """Where in `gather` the rows are; None: everywhere."""
    slots: torch.Tensor
    """Of each row."""


@dataclass(frozen=True, slots=True)
class SlotPlan:
    """What the bodies over slots need to know of a batch: for each layout its slots and how they are served."""

    groups: tuple[tuple[LoraSlots, tuple[Single | Batched, ...]], ...]

    def reaches(self, site: str) -> bool:
        """Whether any adapter has something for a layer."""
        return any(site in slots.layout.sites for slots, _ in self.groups)


LoraPlan = SlotPlan | TablePlan
"""What the ops need to know of a batch."""


class LoraWorkspace:
    """What the current step needs of the adapters in an arena [sectors, elements].

    Where a built body serves, that is where they lie. Elsewhere it is copies: its memory follows the distinct adapters
    of a step, at most four times their size, in the type of the copies.
    """

    def __init__(self, arena: torch.Tensor) -> None:
        self._arena = arena
        self._slots: dict[LoraLayout, LoraSlots] = {}
        self._tables = LoraTables.of((), arena.dtype, arena.device)

    def hold(self, adapters: Sequence[LoraAdapter | None]) -> None:
        """Have the adapters of a step, None being the base model, and nothing else."""
        if self._reads_arena():
            self._slots = {}
            distinct = {adapter: None for adapter in adapters if adapter is not None}
            if distinct.keys() != self._tables.adapters.keys():
                self._tables = LoraTables.of(distinct, self._arena.dtype, self._arena.device)
            return
        wanted: dict[LoraLayout, dict[LoraAdapter, None]] = {}
        for adapter in dict.fromkeys(adapters):
            if adapter is not None:
                wanted.setdefault(adapter.layout, {})[adapter] = None
        self._slots = {layout: slots for layout, slots in self._slots.items() if layout in wanted}
        for layout, some in wanted.items():
            if layout not in self._slots:
                self._slots[layout] = LoraSlots(layout, self._arena)
            self._slots[layout].hold(some)

    def plan(self, adapters: Sequence[LoraAdapter | None], counts: Ints, *, lasting: bool = False) -> LoraPlan | None:
        """Plan a batch whose row i has `counts[i]` tokens for `adapters[i]`, all of which are held; None: only base.

        lasting: it is to be written into a `LastingLoraPlan`.
        """
        if self._reads_arena():
            return plan_rows(self._arena, self._tables, adapters, counts, few=lasting)
        if all([adapter is None for adapter in adapters]):
            return None
        segments = _segments(adapters, counts)
        groups = []
        for slots in self._slots.values():
            found = sorted(
                ((slots.slot[adapter], tokens) for adapter, tokens in segments if adapter in slots.slot),
                key=lambda segment: segment[0],
            )
            if found:
                batched = all(site.experts == 1 for site in slots.layout.sites.values())
                groups.append((slots, tuple(_runs(found, batched, self._arena.device))))
        return SlotPlan(tuple(groups))

    def _reads_arena(self) -> bool:
        return library.of(self._arena, "adapt_linear") is not None and self._arena.dtype in _TYPES


def _segments(adapters: Sequence[LoraAdapter | None], counts: Ints) -> list[tuple[LoraAdapter, Ints]]:
    """The tokens of each long row, and those of all other rows of an adapter together."""
    numbers = {adapter: number for number, adapter in enumerate(dict.fromkeys(adapters))}
    known = list(numbers)
    owners = np.repeat(np.array([numbers[adapter] for adapter in adapters]), counts)
    ends = counts.cumsum()
    segments = [
        (adapters[row], np.arange(ends[row] - counts[row], ends[row]))
        for row in np.flatnonzero(counts >= _LONG).tolist()
    ]
    short = np.flatnonzero(np.repeat(counts < _LONG, counts))
    order = short[np.argsort(owners[short], kind="stable")]
    bounds = np.bincount(owners[short], minlength=len(known)).cumsum()[:-1]
    segments += zip(known, np.split(order, bounds), strict=True)
    return [(adapter, tokens) for adapter, tokens in segments if adapter is not None and len(tokens)]


def _runs(segments: list[tuple[int, Ints]], batched: bool, device: torch.device) -> list[Single | Batched]:
    """Runs that cover segments (slot, tokens), by slot: one over all with few tokens, and one for each other."""
    depth = best_depth([len(tokens) for _, tokens in segments if len(tokens) < _LONG]) if batched else 0
    few = [(slot, tokens) for slot, tokens in segments if len(tokens) <= depth]
    runs: list[Single | Batched] = [_single(slot, tokens, device) for slot, tokens in segments if len(tokens) > depth]
    if few:
        runs.append(_batched(few, depth, device))
    return runs


def best_depth(counts: Sequence[int]) -> int:
    """Up to how many tokens an adapter joins the batched product, which pads all to the longest; 0: none does."""

    def cost(depth: int) -> int:
        alone = [count for count in counts if count > depth]
        batched = _CALL_ROWS + len(counts) * depth if depth else 0
        return batched + sum(alone) + _CALL_ROWS * len(alone)

    return min({0, *counts}, key=lambda depth: (cost(depth), -depth))


def _single(slot: int, tokens: Ints, device: torch.device) -> Single:
    begin, end = int(tokens[0]), int(tokens[-1]) + 1
    return Single(slot, slice(begin, end) if end - begin == len(tokens) else torch.from_numpy(tokens).to(device))


def _batched(segments: list[tuple[int, Ints]], depth: int, device: torch.device) -> Batched:
    first, lanes = segments[0][0], segments[-1][0] - segments[0][0] + 1
    gather = np.zeros((lanes, depth), np.int64)
    used = np.zeros((lanes, depth), bool)
    for slot, tokens in segments:
        gather[slot - first, : len(tokens)] = tokens
        used[slot - first, : len(tokens)] = True
    valid = np.flatnonzero(used)
    gathered = torch.from_numpy(gather.reshape(-1)).to(device)
    slots = torch.from_numpy(first + valid // depth).to(device)
    if len(valid) == used.size:
        return Batched(first, lanes, depth, gathered, gathered, None, slots)
    where = torch.from_numpy(valid).to(device)
    return Batched(first, lanes, depth, gathered, gathered.index_select(0, where), where, slots)
