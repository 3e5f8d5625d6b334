"""The LoRA ops over slots equal the specification, which reads every chunk in the arena."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import kernels
from kernels import LoraAdapter, LoraEmbedding, LoraLayout, LoraPart, LoraSite, LoraWorkspace
from kernels.lora import reference
from kernels.lora.layout import CHUNK
from kernels.lora.plan import Batched, Single, best_depth
from kernels.lora.slots import LoraSlots

SECTOR = 13 * CHUNK
"""Elements: neither a part nor a row of one ends with a sector."""
WIDTH, SIZES, VOCABULARY, EXPERTS = 24, (16, 8, 8), 11, 3
DTYPES = pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 3e-2)], ids=["fp32", "bf16"]
)


def layout(
    dtype: torch.dtype, ranks: Sequence[int], embedding: int = 0, experts: int = 0, scale: bool = False
) -> LoraLayout:
    """One linear layer "a" of three parts, "e" with experts, and the embedding; a rank of 0 is no part."""
    end = 0

    def take(count: int) -> int:
        nonlocal end
        end += count
        return end - count

    begins = np.cumsum((0, *SIZES)).tolist()
    columns = sum(SIZES)
    downs = [take(rank * WIDTH) for rank in ranks]
    parts = tuple(
        LoraPart(begin, begin + size, rank, down, take(rank * size))
        for begin, size, rank, down in zip(begins, SIZES, ranks, downs, strict=False)
        if rank
    )
    sites = {"a": LoraSite(WIDTH, columns, parts, *((0, columns) if scale else (None, None)))}
    if experts:
        down = take(EXPERTS * experts * WIDTH)
        part = LoraPart(0, columns, experts, down, take(EXPERTS * experts * columns))
        sites["e"] = LoraSite(WIDTH, columns, (part,), experts=EXPERTS)
    lookup = None
    if embedding:
        part = LoraPart(0, WIDTH, embedding, 0, take(embedding * WIDTH))
        lookup = LoraSite(0, WIDTH, (part,), scale=2 * columns if scale else None)
    factors, vectors = end, 3 * columns
    take(vectors * 4 // dtype.itemsize)
    rows = take(VOCABULARY * embedding)
    return LoraLayout(sites, factors, vectors, LoraEmbedding(lookup, rows) if lookup else None, end)


class Arena:
    """Adapters with random weights in shuffled sectors."""

    def __init__(self, layouts: Sequence[LoraLayout], dtype: torch.dtype, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        counts = [-(-one.elements // SECTOR) for one in layouts]
        self.memory = torch.full((sum(counts) + 2, SECTOR), 7.0, dtype=dtype)
        free = random.Random(seed).sample(range(len(self.memory)), sum(counts))
        self.adapters = []
        for one, count in zip(layouts, counts, strict=True):
            image = torch.zeros(count * SECTOR, dtype=dtype)
            image[: one.elements] = torch.randn(one.elements, generator=generator).to(dtype)
            width = 4 // dtype.itemsize
            vectors = image[one.factors : one.factors + width * one.vectors].view(torch.float32)
            vectors.copy_(torch.randn(one.vectors, generator=generator))
            sectors = torch.tensor([free.pop() for _ in range(count)])
            self.memory[sectors] = image.view(count, SECTOR)
            self.adapters.append(LoraAdapter(one, sectors))


def segments(adapters: Sequence[LoraAdapter | None], counts: Sequence[int]) -> reference.Segments:
    """Rows by adapter."""
    owners = [adapter for adapter, count in zip(adapters, counts, strict=True) for _ in range(count)]
    return [
        (adapter, torch.tensor([row for row, owner in enumerate(owners) if owner is adapter]))
        for adapter in dict.fromkeys(adapters)
        if adapter is not None
    ]


def random_layouts(dtype: torch.dtype) -> list[LoraLayout]:
    return [
        layout(dtype, (8, 16, 8)),
        layout(dtype, (8, 0, 16), embedding=16),
        layout(dtype, (0, 8, 24), scale=True, embedding=8),
        layout(dtype, (), scale=True),
        layout(dtype, (8, 8, 8), experts=8),
    ]


@DTYPES
@given(
    seed=st.integers(0, 2**20), steps=st.lists(st.lists(st.tuples(st.integers(0, 9), st.integers(1, 90)), min_size=1))
)
def test_adapted_rows_equal_the_specification(
    dtype: torch.dtype, tolerance: float, seed: int, steps: list[list[tuple[int, int]]]
) -> None:
    """Over steps with ever other adapters, ranks and numbers of tokens, in one workspace."""
    arena = Arena([one for one in random_layouts(dtype) for _ in range(2)], dtype, seed)
    people: list[LoraAdapter | None] = [*arena.adapters[:9], None]
    workspace = LoraWorkspace(arena.memory)
    generator = torch.Generator().manual_seed(seed)
    for step in steps:
        adapters = [people[index] for index, _ in step]
        counts = [count for _, count in step]
        tokens = sum(counts)
        workspace.hold(adapters)
        plan = workspace.plan(adapters, np.array(counts))
        x, out, embedded = (
            torch.randn(tokens, width, generator=generator).to(dtype) for width in (WIDTH, sum(SIZES), WIDTH)
        )
        ids = torch.randint(VOCABULARY, (tokens,), generator=generator)
        expected, expected_embedded = out.clone(), embedded.clone()
        reference.adapt_linear(x, expected, arena.memory, segments(adapters, counts), "a")
        reference.adapt_embedding(ids, expected_embedded, arena.memory, segments(adapters, counts))
        if plan is None:
            assert not any(adapters)
            continue
        kernels.adapt_linear(x, out, plan, "a")
        kernels.adapt_embedding(ids, embedded, plan)
        torch.testing.assert_close(out, expected, rtol=tolerance, atol=10 * tolerance)
        torch.testing.assert_close(embedded, expected_embedded, rtol=tolerance, atol=10 * tolerance)


@DTYPES
@given(seed=st.integers(0, 2**20), counts=st.lists(st.integers(1, 9), min_size=3, max_size=8))
def test_adapted_experts_equal_the_specification(
    dtype: torch.dtype, tolerance: float, seed: int, counts: list[int]
) -> None:
    arena = Arena([layout(dtype, (), experts=rank) for rank in (8, 8, 16)], dtype, seed)
    people = [*arena.adapters, None]
    adapters = [people[index % 4] for index in range(len(counts))]
    generator = torch.Generator().manual_seed(seed)
    tokens = sum(counts)
    experts = torch.stack([torch.randperm(EXPERTS, generator=generator)[:2] for _ in range(tokens)])
    places = torch.randperm(2 * tokens, generator=generator).view(tokens, 2)
    x, out = (torch.randn(2 * tokens, width, generator=generator).to(dtype) for width in (WIDTH, sum(SIZES)))
    expected = out.clone()
    reference.adapt_experts(x, expected, arena.memory, segments(adapters, counts), "e", experts, places)
    workspace = LoraWorkspace(arena.memory)
    workspace.hold(adapters)
    plan = workspace.plan(adapters, np.array(counts))
    assert plan is not None
    kernels.adapt_experts(x, out, plan, "e", experts, places)
    torch.testing.assert_close(out, expected, rtol=tolerance, atol=10 * tolerance)


def test_rows_of_the_base_are_not_touched() -> None:
    arena = Arena([layout(torch.float32, (8, 8, 8), scale=True)], torch.float32, 0)
    adapters = [None, arena.adapters[0], None]
    workspace = LoraWorkspace(arena.memory)
    workspace.hold(adapters)
    plan = workspace.plan(adapters, np.array([3, 2, 4]))
    assert plan is not None
    x, out = torch.randn(9, WIDTH), torch.randn(9, sum(SIZES))
    before = out.clone()
    kernels.adapt_linear(x, out, plan, "a")
    changed = (out != before).any(dim=1)
    assert changed.tolist() == [False] * 3 + [True] * 2 + [False] * 4


def test_a_batch_without_adapters_has_no_plan() -> None:
    workspace = LoraWorkspace(torch.zeros(1, SECTOR))
    workspace.hold([None, None])
    assert workspace.plan([None, None], np.array([3, 1])) is None


def test_a_layer_that_no_adapter_has_is_left_alone() -> None:
    arena = Arena([layout(torch.float32, (8, 8, 8))], torch.float32, 0)
    workspace = LoraWorkspace(arena.memory)
    workspace.hold(arena.adapters)
    plan = workspace.plan(arena.adapters, np.array([2]))
    assert plan is not None
    assert plan.reaches("a")
    assert not plan.reaches("b")
    out = torch.ones(2, 5)
    kernels.adapt_linear(torch.ones(2, WIDTH), out, plan, "b")
    assert (out == 1).all()


def test_an_adapter_that_moved_in_the_arena_is_read_where_it_is_now() -> None:
    one = layout(torch.float32, (8, 0, 0), embedding=8)
    arena = Arena([one, one], torch.float32, 0)
    workspace = LoraWorkspace(arena.memory)
    for adapter in arena.adapters:
        again = LoraAdapter(one, adapter.sectors.clone())
        for each in (adapter, again):
            workspace.hold([each])
            plan = workspace.plan([each], np.array([2]))
            assert plan is not None
            ids, out = torch.tensor([3, 10]), torch.zeros(2, WIDTH)
            expected = out.clone()
            kernels.adapt_embedding(ids, out, plan)
            reference.adapt_embedding(ids, expected, arena.memory, [(each, torch.arange(2))])
            torch.testing.assert_close(out, expected)


def test_the_memory_of_a_workspace_follows_the_step() -> None:
    one = layout(torch.float32, (8, 8, 8))
    arena = Arena([one] * 20, torch.float32, 0)
    workspace = LoraWorkspace(arena.memory)
    for count in (1, 20, 9, 3, 5, 1):
        workspace.hold(arena.adapters[:count])
        (slots,) = workspace._slots.values()
        assert sorted(slots.slot.values()) == list(range(count))
        assert count <= len(slots._factors) <= 4 * count
    workspace.hold([None])
    assert not workspace._slots


@given(st.lists(st.integers(1, 600), min_size=1, max_size=64))
def test_batching_never_pads_more_than_calls_would_cost(counts: list[int]) -> None:
    depth = best_depth(counts)
    padding = len(counts) * depth - sum(count for count in counts if count <= depth)
    assert depth == 0 or padding <= 16 * sum(count <= depth for count in counts)


def test_decodes_share_one_product_and_a_prompt_goes_alone() -> None:
    one = layout(torch.float32, (8, 8, 8))
    arena = Arena([one] * 4, torch.float32, 0)
    first, *_ = arena.adapters
    workspace = LoraWorkspace(arena.memory)
    workspace.hold(arena.adapters)
    plan = workspace.plan([*arena.adapters, first, None], np.array([1, 1, 1, 1, 100, 5]))
    assert plan is not None
    ((_, (prompt, decodes)),) = plan.groups
    assert isinstance(prompt, Single)
    assert prompt.rows == slice(4, 104)
    assert isinstance(decodes, Batched)
    assert (decodes.lanes, decodes.depth, decodes.rows.tolist()) == (4, 1, [0, 1, 2, 3])


def test_padding_is_worth_a_call_as_long_as_it_is_short() -> None:
    assert best_depth([1] * 64) == 1
    assert best_depth([1, 1, 1, 60]) == 1
    assert best_depth([3, 1, 2, 3]) == 3


def test_an_adapter_that_could_not_be_copied_is_copied_the_next_time(monkeypatch: pytest.MonkeyPatch) -> None:
    one = layout(torch.float32, (8, 8, 8))
    arena = Arena([one, one], torch.float32, 0)
    workspace = LoraWorkspace(arena.memory)
    workspace.hold(arena.adapters[:1])
    with monkeypatch.context() as broken, pytest.raises(MemoryError):
        broken.setattr(LoraSlots, "_load", lambda *_: (_ for _ in ()).throw(MemoryError))
        workspace.hold(arena.adapters)
    workspace.hold(arena.adapters)
    plan = workspace.plan(arena.adapters, np.array([2, 2]))
    assert plan is not None
    x, out = torch.randn(4, WIDTH), torch.zeros(4, sum(SIZES))
    expected = out.clone()
    kernels.adapt_linear(x, out, plan, "a")
    reference.adapt_linear(x, expected, arena.memory, segments(arena.adapters, [2, 2]), "a")
    torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-4)
