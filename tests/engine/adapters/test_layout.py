"""Layouts put every matrix, vector and row somewhere of its own."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from engine.adapters.layout import SiteShape, lay_out, place, shape
from engine.adapters.manifest import BaseBias, LoraTarget, Module
from engine.checkpoint.config import ModelConfig
from kernels import LoraLayout
from kernels.lora.layout import CHUNK, EMBEDDING
from tests.engine.conftest import Checkpoint

DENSE: tuple[Module, ...] = (
    "q_proj",
    "k_proj",
    "v_proj",
    "o_proj",
    "gate_proj",
    "up_proj",
    "down_proj",
)
MIXTURE: tuple[Module, ...] = ("router", "experts.gate_proj", "experts.up_proj", "experts.down_proj")


@pytest.fixture(scope="module")
def configs(checkpoint: Checkpoint) -> dict[bool, ModelConfig]:
    """By whether it has experts."""
    return {
        mixture: ModelConfig.from_directory(checkpoint("mixtral" if mixture else "llama-bias")) for mixture in (0, 1)
    }


def regions(layout: LoraLayout, dtype: torch.dtype) -> Iterator[tuple[int, int]]:
    """[begin, end) of everything, in elements of the image."""
    width = 4 // dtype.itemsize
    sites = [*layout.sites.values()]
    if layout.embedding is not None:
        sites.append(layout.embedding.site)
    for site in sites:
        for part in site.parts:
            if site.width:
                yield part.down, part.down + site.experts * part.rank * site.width
            yield part.up, part.up + site.experts * part.rank * (part.end - part.begin)
        for vector in (site.scale, site.offset):
            if vector is not None:
                begin = layout.factors + width * vector
                yield begin, begin + width * site.columns


@given(
    mixture=st.booleans(),
    wanted=st.lists(
        st.tuples(st.integers(0, 9), st.integers(0, 2), st.integers(1, 40), st.booleans(), st.booleans()), min_size=1
    ),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
)
def test_nothing_overlaps_and_everything_is_aligned(
    configs: dict[bool, ModelConfig],
    mixture: bool,
    wanted: list[tuple[int, int, int, bool, bool]],
    dtype: torch.dtype,
) -> None:
    config = configs[mixture]
    modules: list[Module] = [*(DENSE[:4] + MIXTURE if mixture else DENSE), "embed_tokens", "lm_head"]
    targets: dict[tuple[Module, int | None], LoraTarget] = {}
    biases: dict[tuple[Module, int | None], BaseBias] = {}
    for index, layer, rank, dora, bias in wanted:
        module = modules[index % len(modules)]
        where = None if module in ("embed_tokens", "lm_head") else layer
        targets[module, where] = LoraTarget(module, where, rank, 1.0, ("a",), ("b",), magnitude="m" if dora else None)
        if bias and module in DENSE:
            biases[module, layer] = BaseBias(module, layer, "bias")
    shapes = shape(config, [*targets.values()], [*biases.values()])
    layout = lay_out(shapes, dtype)
    taken = sorted(regions(layout, dtype))
    if layout.embedding is not None:
        rank = layout.embedding.site.parts[0].rank
        taken.append((layout.elements - config.vocabulary * rank, layout.elements))
    assert all(before <= after for (_, before), (after, _) in pairwise(taken))
    assert taken[-1][1] <= layout.elements
    assert all(begin % CHUNK == 0 for begin, _ in taken)
    assert {site: sum(part.rank for part in found.parts) for site, found in layout.sites.items()} == ranks(shapes)


def ranks(shapes: tuple[SiteShape, ...]) -> dict[str, int]:
    return {one.site: sum(rank for *_, rank in one.ranks) for one in shapes if one.site != EMBEDDING}


def test_parts_of_one_layer_are_side_by_side(configs: dict[bool, ModelConfig]) -> None:
    config = configs[False]
    ends = [place(config, module, 0) for module in ("q_proj", "k_proj", "v_proj")]
    assert [(one.begin, one.end) for one in ends] == [(0, 64), (64, 80), (80, 96)]
    assert {one.site for one in ends} == {"0.qkv"}


def test_the_order_in_which_modules_are_named_does_not_matter(configs: dict[bool, ModelConfig]) -> None:
    targets = [LoraTarget(module, 1, 8, 1.0, ("a",), ("b",)) for module in DENSE]
    assert shape(configs[False], targets) == shape(configs[False], targets[::-1])
