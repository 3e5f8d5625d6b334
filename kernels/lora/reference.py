"""What the LoRA ops compute, read from the arena chunk by chunk: the specification that every body must equal."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from kernels.lora.layout import CHUNK, LoraAdapter, LoraSite, read_image, read_vector

Segments = Sequence[tuple[LoraAdapter, torch.Tensor]]
"""Adapters with their rows; no row twice."""


def adapt_linear(x: torch.Tensor, out: torch.Tensor, arena: torch.Tensor, segments: Segments, site: str) -> None:
    """Turn the output `out` [T, columns] of the linear layer `site`, for x [T, width], into that of each row's adapter.

    For every part `out[rows, begin:end] += (x[rows] A^T) B`, then `out[rows] = out[rows] * scale + offset`, each where
    the adapter has it; in fp32, in place. All other rows stay as they are.
    """
    for adapter, rows in segments:
        found = adapter.layout.sites.get(site)
        if found is None:
            continue
        total = out[rows].float()
        for part in found.parts:
            columns = part.end - part.begin
            for rank in range(0, part.rank, CHUNK):
                a = read_image(arena, adapter, part.down + rank * found.width, CHUNK * found.width)
                b = read_image(arena, adapter, part.up + rank * columns, CHUNK * columns)
                shrunk = x[rows].float() @ a.view(CHUNK, -1).float().T
                total[:, part.begin : part.end] += shrunk @ b.view(CHUNK, -1).float()
        out[rows] = _affine(total, arena, adapter, found).to(out.dtype)


def adapt_embedding(tokens: torch.Tensor, out: torch.Tensor, arena: torch.Tensor, segments: Segments) -> None:
    """The same for the embedding `out` [T, width] of tokens [T], with row t of A^T for `x A^T`."""
    for adapter, rows in segments:
        embedding = adapter.layout.embedding
        if embedding is None:
            continue
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
        found = adapter.layout.sites.get(site)
        if found is None:
            continue
        for place, expert in zip(places[rows].flatten().tolist(), experts[rows].flatten().tolist(), strict=True):
            for part in found.parts:
                columns = part.end - part.begin
                a = read_image(arena, adapter, part.down, found.experts * part.rank * found.width)
                b = read_image(arena, adapter, part.up, found.experts * part.rank * columns)
                a, b = a.view(found.experts, part.rank, -1)[expert], b.view(found.experts, part.rank, -1)[expert]
                out[place, part.begin : part.end] += ((a.float() @ x[place].float()) @ b.float()).to(out.dtype)


def _affine(total: torch.Tensor, arena: torch.Tensor, adapter: LoraAdapter, site: LoraSite) -> torch.Tensor:
    if site.scale is not None:
        total = total * read_vector(arena, adapter, site.scale, site.columns)
    if site.offset is not None:
        total = total + read_vector(arena, adapter, site.offset, site.columns)
    return total
