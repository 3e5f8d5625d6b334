"""The built bodies of the LoRA ops, which read adapters in the arena; their plans come from `kernels.lora.tables`."""

from __future__ import annotations

from typing import Any

import torch

from kernels import library
from kernels.registry import Cost, register


def adapt_linear(
    out: torch.Tensor,
    x: torch.Tensor,
    arena: torch.Tensor,
    tables: torch.Tensor,
    segments: torch.Tensor,
    scratch: torch.Tensor,
    site: int,
) -> None:
    """`kernels.adapt_linear` with the tensors of a `TablePlan`; `site` is a `site_number`."""
    _of(arena).adapt_linear(out, x, arena, tables, segments, scratch, site)


def adapt_embedding(
    out: torch.Tensor,
    tokens: torch.Tensor,
    arena: torch.Tensor,
    tables: torch.Tensor,
    segments: torch.Tensor,
    scratch: torch.Tensor,
    site: int,
) -> None:
    """`kernels.adapt_embedding`, likewise."""
    _of(arena).adapt_embedding(out, tokens, arena, tables, segments, scratch, site)


def adapt_experts(
    out: torch.Tensor,
    x: torch.Tensor,
    arena: torch.Tensor,
    tables: torch.Tensor,
    segments: torch.Tensor,
    scratch: torch.Tensor,
    site: int,
    experts: torch.Tensor,
    places: torch.Tensor,
    split: torch.Tensor,
    count: int,
) -> None:
    """`kernels.adapt_experts`, likewise, with what `expert_tensors` gives for the site's `count` experts."""
    _of(arena).adapt_experts(out, x, arena, tables, segments, scratch, site, experts, places, split, count)


def expert_tensors(
    segments: torch.Tensor, scratch: torch.Tensor, experts: torch.Tensor, count: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Scratch memory, and room for segments of rows, for `segments` and `scratch` of a plan and experts [T, k].

    On the CPU four numbers per segment and each expert, and a row per choice; for the CUDA bodies a tile of the same
    size for each tile and expert.
    """
    if segments.ndim == 2:
        split = segments.new_empty(len(segments) * count, segments.shape[1])
        return scratch.new_empty(experts.numel(), scratch.shape[1]), split
    split = torch.empty(4 * int(segments[0]) * count + experts.numel(), dtype=torch.int64)
    return torch.empty(experts.shape[1] * len(scratch)), split


def _of(arena: torch.Tensor) -> Any:
    body = library.of(arena)
    if body is None:
        raise RuntimeError("no library is built that reads adapters in an arena")
    return body


def adapt_cost(adapters: int, rows: int, ranks: int, width: int, elements: int, columns: int, itemsize: int) -> Cost:
    """Of `rows` rows in all, with `ranks` in all parts of a site and `elements` in its B."""
    weights = ranks * width + elements
    return Cost((adapters * weights + rows * (width + 2 * columns)) * itemsize, 2 * rows * weights)


_TENSORS = "Tensor arena, Tensor tables, Tensor segments, Tensor(b!) scratch, int site"
register(
    f"adapt_linear(Tensor(a!) out, Tensor x, {_TENSORS}) -> ()",
    adapt_linear,
    fake=lambda *_: None,
    cost=adapt_cost,
)
register(
    f"adapt_embedding(Tensor(a!) out, Tensor tokens, {_TENSORS}) -> ()",
    adapt_embedding,
    fake=lambda *_: None,
    cost=adapt_cost,
)
register(
    f"adapt_experts(Tensor(a!) out, Tensor x, {_TENSORS}, "
    "Tensor experts, Tensor places, Tensor(c!) split, int count) -> ()",
    adapt_experts,
    fake=lambda *_: None,
    cost=adapt_cost,
)
