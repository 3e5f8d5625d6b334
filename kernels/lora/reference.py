"""What the LoRA ops compute, in plain torch: the specification that built bodies equal, and what runs without them."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from kernels.lora.layout import LoraAdapter, LoraPart, LoraSite, read_image, read_vector

Segments = Sequence[tuple[LoraAdapter, torch.Tensor]]
"""Adapters with their rows; no row twice."""


def adapt_linear(x: torch.Tensor, out: torch.Tensor, arena: torch.Tensor, segments: Segments, site: str) -> None:
    """Turn the output `out` [T, columns] of the linear layer `site`, for x [T, width], into that of each row's adapter.

    For every part `out[rows, begin:end] += (x[rows] A^T) B`, then `out[rows] = out[rows] * scale + offset`, each where
    the adapter has it; in fp32, in place. All other rows stay as they are.
    """
    for adapter, rows in segments:
        if (found := adapter.layout.sites.get(site)) is not None:
            total = out[rows].float()
            for part in found.parts:
                (a,), (b,) = _factors(arena, adapter, found, part)
                total[:, part.begin : part.end] += x[rows].float() @ a.T @ b
            out[rows] = _affine(total, arena, adapter, found).to(out.dtype)


def adapt_embedding(tokens: torch.Tensor, out: torch.Tensor, arena: torch.Tensor, segments: Segments) -> None:
    """The same for the embedding `out` [T, width] of tokens [T], with row t of A^T for `x A^T`."""
    for adapter, rows in segments:
        if (embedding := adapter.layout.embedding) is not None:
            (part,) = embedding.site.parts
            begins = [embedding.rows + part.rank * token for token in tokens[rows].tolist()]
            shrunk = torch.stack([read_image(arena, adapter, begin, part.rank) for begin in begins]).float()
            up = read_image(arena, adapter, part.up, part.rank * part.end).view(part.rank, -1).float()
            out[rows] = _affine(out[rows].float() + shrunk @ up, arena, adapter, embedding.site).to(out.dtype)


def adapt_experts(
    x: torch.Tensor,
    out: torch.Tensor,
    arena: torch.Tensor,
    segments: Segments,
    site: str,
    experts: torch.Tensor,
    places: torch.Tensor,
) -> None:
    """The same for a layer with experts: row `places[t, j]` of x and out is token t's in expert `experts[t, j]`."""
    for adapter, rows in segments:
        if (found := adapter.layout.sites.get(site)) is not None:
            for part in found.parts:
                for expert, (a, b) in enumerate(zip(*_factors(arena, adapter, found, part), strict=True)):
                    chosen = places[rows][experts[rows] == expert]
                    out[chosen, part.begin : part.end] += (x[chosen].float() @ a.T @ b).to(out.dtype)


def _factors(
    arena: torch.Tensor, adapter: LoraAdapter, site: LoraSite, part: LoraPart
) -> tuple[torch.Tensor, torch.Tensor]:
    """A [experts, rank, width] and B [experts, rank, columns] of a part, in fp32."""
    columns, ranks = part.end - part.begin, site.experts * part.rank
    a = read_image(arena, adapter, part.down, ranks * site.width).view(site.experts, part.rank, -1)
    b = read_image(arena, adapter, part.up, ranks * columns).view(site.experts, part.rank, -1)
    return a.float(), b.float()


def _affine(total: torch.Tensor, arena: torch.Tensor, adapter: LoraAdapter, site: LoraSite) -> torch.Tensor:
    if site.scale is not None:
        total = total * read_vector(arena, adapter, site.scale, site.columns)
    if site.offset is not None:
        total = total + read_vector(arena, adapter, site.offset, site.columns)
    return total
