"""Places adapters' targets in a model and lays out their images. Pure.

A *site* is one linear layer as the engine runs it: q, k and v are parts of one, gate and up of another. Adapters that
have the same ranks at the same sites share a `LoraLayout`, so that one product can serve them together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from engine.adapters.manifest import BaseBias, LoraTarget, Module
from engine.checkpoint.config import ModelConfig
from kernels import LoraEmbedding, LoraLayout, LoraPart, LoraSite
from kernels.lora.layout import CHUNK, EMBEDDING

HEAD = "head"


@dataclass(frozen=True, slots=True)
class Place:
    """Location of one module in a model: columns [begin, end) of a site."""

    site: str
    width: int
    """Width of the site's inputs; the vocabulary for the embedding."""
    columns: int
    """Number of the site's output columns."""
    begin: int
    end: int
    experts: int = 1


@dataclass(frozen=True, slots=True)
class SiteShape:
    """Shape of an adapter at one site; width, columns and experts are those of `Place`."""

    site: str
    width: int
    columns: int
    experts: int
    ranks: tuple[tuple[int, int, int], ...]
    """(begin, end, rank) of the adapter's parts, by column; ranks are multiples of CHUNK."""
    scale: bool
    offset: bool


def place(config: ModelConfig, module: Module, layer: int | None) -> Place:
    """Return the location of a module, by the model's shape."""
    hidden, inner = config.hidden_size, config.intermediate_size
    queries, keys = config.heads * config.head_dim, config.kv_heads * config.head_dim
    match module:
        case "embed_tokens":
            return Place(EMBEDDING, config.vocabulary, hidden, 0, hidden)
        case "lm_head":
            return Place(HEAD, hidden, config.vocabulary, 0, config.vocabulary)
        case "q_proj" | "k_proj" | "v_proj":
            begins = {"q_proj": 0, "k_proj": queries, "v_proj": queries + keys}
            begin, size = begins[module], queries if module == "q_proj" else keys
            return Place(f"{layer}.qkv", hidden, queries + 2 * keys, begin, begin + size)
        case "qkv_proj":
            return Place(f"{layer}.qkv", hidden, queries + 2 * keys, 0, queries + 2 * keys)
        case "o_proj":
            return Place(f"{layer}.output", queries, hidden, 0, hidden)
        case "gate_proj" | "up_proj":
            begin = 0 if module == "gate_proj" else inner
            return Place(f"{layer}.gate_up", hidden, 2 * inner, begin, begin + inner)
        case "gate_up_proj":
            return Place(f"{layer}.gate_up", hidden, 2 * inner, 0, 2 * inner)
        case "down_proj":
            return Place(f"{layer}.down", inner, hidden, 0, hidden)
        case "router":
            return Place(f"{layer}.router", hidden, config.experts, 0, config.experts)
        case "experts.gate_up_proj" | "experts.gate_proj" | "experts.up_proj":
            begin = inner if module == "experts.up_proj" else 0
            end = inner if module == "experts.gate_proj" else 2 * inner
            return Place(f"{layer}.experts.gate_up", hidden, 2 * inner, begin, end, config.experts)
        case "experts.down_proj":
            return Place(f"{layer}.experts.down", inner, hidden, 0, hidden, config.experts)


def shape(config: ModelConfig, targets: Sequence[LoraTarget], biases: Sequence[BaseBias] = ()) -> tuple[SiteShape, ...]:
    """Return an adapter's shape, site by site; adapters of one shape can share a layout."""
    places: dict[str, Place] = {}
    ranks: dict[str, list[tuple[int, int, int]]] = {}
    scaled, shifted = set(), set()
    for target in targets:
        where = place(config, target.module, target.layer)
        places[where.site] = where
        ranks.setdefault(where.site, []).append((where.begin, where.end, -(-target.rank // CHUNK) * CHUNK))
        if target.magnitude is not None:
            scaled.add(where.site)
            # An output's bias was multiplied too, if there is one: the offset undoes that.
            shifted.add(where.site)
        if target.b_bias is not None:
            shifted.add(where.site)
    for bias in biases:
        where = place(config, bias.module, bias.layer)
        places.setdefault(where.site, where)
        shifted.add(where.site)
    return tuple(
        SiteShape(
            site,
            where.width,
            where.columns,
            where.experts,
            tuple(sorted(ranks.get(site, ()))),
            site in scaled,
            site in shifted,
        )
        for site, where in sorted(places.items())
    )


def lay_out(shapes: Sequence[SiteShape], dtype: torch.dtype) -> LoraLayout:
    """Lay out everything one behind another: factors, then vectors, then the embedding's rows."""
    taken = 0

    def take(count: int) -> int:
        nonlocal taken
        begin = taken
        taken += -(-count // CHUNK) * CHUNK
        return begin

    parts: list[tuple[LoraPart, ...]] = []
    for one in shapes:
        width = 0 if one.site == EMBEDDING else one.width
        downs = [take(one.experts * rank * width) for _, _, rank in one.ranks]
        parts.append(
            tuple(
                LoraPart(begin, end, rank, down, take(one.experts * rank * (end - begin)))
                for (begin, end, rank), down in zip(one.ranks, downs, strict=True)
            )
        )
    factors, taken = taken, 0
    sites: dict[str, LoraSite] = {}
    for one, some in zip(shapes, parts, strict=True):
        width = 0 if one.site == EMBEDDING else one.width
        scale, offset = (take(one.columns) if wanted else None for wanted in (one.scale, one.offset))
        sites[one.site] = LoraSite(width, one.columns, some, scale, offset, one.experts)
    vectors, taken = taken, factors + taken * torch.float32.itemsize // dtype.itemsize
    embedding = sites.pop(EMBEDDING, None)
    rows = 0
    for one in shapes:
        if one.site == EMBEDDING:
            rows = take(one.width * one.ranks[0][2])
    return LoraLayout(sites, factors, vectors, None if embedding is None else LoraEmbedding(embedding, rows), taken)
