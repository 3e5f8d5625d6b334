"""The LoRA ops: built bodies read the adapters in the arena, and `kernels.lora.reference` runs where there are none."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from kernels import library
from kernels.lora import reference
from kernels.lora.layout import EMBEDDING
from kernels.lora.plan import LoraPlan
from kernels.lora.tables import TablePlan, site_number
from kernels.registry import Cost, register


def adapt_linear(x: torch.Tensor, out: torch.Tensor, plan: LoraPlan, site: str) -> None:
    """Turn the output `out` [T, columns] of the linear layer `site`, for x [T, width], into that of each row's adapter.

    In place; rows without an adapter are not touched. With R ranks in all parts, r_p and c_p ranks and columns of part
    p: moves (R width + sum r_p c_p) e bytes per adapter and (width + 2 sum c_p) e per row; twice as many FLOPs per row
    as an adapter has elements.
    """
    if isinstance(plan, TablePlan):
        library.required(plan.arena).adapt_linear(out, x, *plan.tensors, site_number(site))
    else:
        reference.adapt_linear(x, out, plan.arena, plan.segments, site)


def adapt_embedding(tokens: torch.Tensor, out: torch.Tensor, plan: LoraPlan) -> None:
    """The same for the embedding `out` [T, width] of tokens [T]: row t of A^T is gathered.

    With rank r: moves r width e bytes per adapter and (r + 2 width) e per row; 2 r width FLOPs per row.
    """
    if isinstance(plan, TablePlan):
        library.required(plan.arena).adapt_embedding(out, tokens, *plan.tensors, site_number(EMBEDDING))
    else:
        reference.adapt_embedding(tokens, out, plan.arena, plan.segments)


def adapt_experts(
    x: torch.Tensor, out: torch.Tensor, plan: LoraPlan, site: str, experts: torch.Tensor, places: torch.Tensor
) -> None:
    """The same for a layer with experts: x and out have one row for each of the experts [T, k] of a token.

    The k rows of token t are at `places[t]` ([T, k]). Moves what `adapt_linear` does, of the experts that are hit only.
    """
    if not isinstance(plan, TablePlan):
        reference.adapt_experts(x, out, plan.arena, plan.segments, site, experts, places)
        return
    layouts = {adapter.layout for adapter in plan.tables.adapters}
    count = max(layout.sites[site].experts for layout in layouts if site in layout.sites)
    arena, table, segments, scratch = plan.tensors
    scratch, split = expert_tensors(segments, scratch, experts, count)
    tensors = (arena, table, segments, scratch, site_number(site), experts, places, split, count)
    library.required(arena).adapt_experts(out, x, *tensors)


def expert_tensors(
    segments: torch.Tensor, scratch: torch.Tensor, experts: torch.Tensor, count: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Scratch memory, and room for segments of rows, for a plan's `segments` and `scratch` and experts [T, k].

    On the CPU four numbers per segment and each of the site's `count` experts, and a row per choice; for the CUDA
    bodies a tile of the same size for each tile and expert.
    """
    if segments.ndim == 2:
        split = segments.new_empty(len(segments) * count, segments.shape[1])
        return scratch.new_empty(experts.numel(), scratch.shape[1]), split
    split = torch.empty(4 * int(segments[0]) * count + experts.numel(), dtype=torch.int64)
    return torch.empty(experts.shape[1] * len(scratch)), split


@dataclass(frozen=True, slots=True)
class LoraExperts:
    """A plan for the three layers of a mixture of experts, whose rows are sorted by expert.

    `order` [T * k] says of each row which of the T * k pairs (token, choice) it is.
    """

    plan: LoraPlan
    router: str
    gate_up: str
    down: str

    def adapt_router(self, x: torch.Tensor, logits: torch.Tensor) -> None:
        adapt_linear(x, logits, self.plan, self.router)

    def adapt_gate_up(self, x: torch.Tensor, out: torch.Tensor, experts: torch.Tensor, order: torch.Tensor) -> None:
        self._adapt(x, out, self.gate_up, experts, order)

    def adapt_down(self, x: torch.Tensor, out: torch.Tensor, experts: torch.Tensor, order: torch.Tensor) -> None:
        self._adapt(x, out, self.down, experts, order)

    def _adapt(self, x: torch.Tensor, out: torch.Tensor, site: str, experts: torch.Tensor, order: torch.Tensor) -> None:
        if self.plan.reaches(site):
            adapt_experts(x, out, self.plan, site, experts, order.argsort().view(experts.shape))


def adapt_cost(adapters: int, rows: int, ranks: int, width: int, elements: int, columns: int, itemsize: int) -> Cost:
    """Cost for `rows` rows in all, with `ranks` in all parts of a site and `elements` in its B."""
    weights = ranks * width + elements
    return Cost((adapters * weights + rows * (width + 2 * columns)) * itemsize, 2 * rows * weights)


def _register(name: str, inputs: str, more: str = "") -> None:
    """Register an op that calls the built body with the tensors of a `TablePlan`."""

    def run(out: torch.Tensor, *others: Any) -> None:
        getattr(library.required(out), name)(out, *others)

    tensors = "Tensor arena, Tensor tables, Tensor segments, Tensor(b!) scratch, int site"
    signature = f"{name}(Tensor(a!) out, Tensor {inputs}, {tensors}{more}) -> ()"
    register(signature, run, fake=lambda *_: None, cost=adapt_cost)


_register("adapt_linear", "x")
_register("adapt_embedding", "tokens")
_register("adapt_experts", "x", ", Tensor experts, Tensor places, Tensor(c!) split, int count")
