"""The LoRA ops equal the specification, which reads every chunk in the arena, with every body that there is."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import kernels
from kernels import LoraAdapter, LoraLayout, LoraWorkspace, library
from kernels.lora import reference
from kernels.lora.plan import Batched, Single, best_depth
from kernels.lora.slots import LoraSlots
from tests.kernels.conftest import load
from tests.kernels.lora_arenas import EXPERTS, SECTOR, SIZES, VOCABULARY, WIDTH, Arena, layout, segments

DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
_SUMMANDS = WIDTH + 40 + 3
"""Of a number of an output: of both products, with the output itself, its scale and its offset."""


@pytest.fixture(params=["slots", *library.ISAS, library.EMULATOR])
def body(request: pytest.FixtureRequest) -> Iterator[str]:
    """Copies in slots, as where no library is built, or each library for tensors of the CPU."""
    name: str = request.param
    with library.using(None if name == "slots" else load(name)):
        yield name


@pytest.fixture
def slots() -> Iterator[None]:
    with library.using(None):
        yield


def random_layouts(dtype: torch.dtype) -> list[LoraLayout]:
    return [
        layout(dtype, (8, 16, 8)),
        layout(dtype, (8, 0, 16), embedding=16),
        layout(dtype, (0, 8, 24), scale=True, embedding=8),
        layout(dtype, (), scale=True),
        layout(dtype, (8, 8, 8), experts=8),
    ]


def assert_rounded(found: torch.Tensor, exact: torch.Tensor, magnitudes: torch.Tensor) -> None:
    """A number is off by no more than what rounding allows, whatever cancels out (Higham, 2002, section 3.1).

    In bf16 a body may round three times: between the products, after them, and when it has added. In fp32 it rounds
    each sum, and so does the specification, which gives `exact`; `magnitudes` is what that makes of all magnitudes.
    """
    roundings = 3 * 2**-8 * (1 + 2**-6) if found.dtype == torch.bfloat16 else 2 * _SUMMANDS * 2**-24
    assert ((found.float() - exact).abs() <= roundings * magnitudes).all()


@DTYPES
@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    seed=st.integers(0, 2**20), steps=st.lists(st.lists(st.tuples(st.integers(0, 9), st.integers(1, 90)), min_size=1))
)
def test_adapted_rows_equal_the_specification(
    body: str, dtype: torch.dtype, seed: int, steps: list[list[tuple[int, int]]]
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
        rows = segments(adapters, counts)
        (exact, most), (exact_embedded, most_embedded) = ((one.float(), one.float().abs()) for one in (out, embedded))
        for numbers, total, total_embedded, memory in (
            (x, exact, exact_embedded, arena.memory),
            (x.abs(), most, most_embedded, arena.magnitudes),
        ):
            reference.adapt_linear(numbers, total, memory, rows, "a")
            reference.adapt_embedding(ids, total_embedded, memory, rows)
        if plan is None:
            assert not any(adapters)
            continue
        kernels.adapt_linear(x, out, plan, "a")
        kernels.adapt_embedding(ids, embedded, plan)
        assert_rounded(out, exact, most)
        assert_rounded(embedded, exact_embedded, most_embedded)


@DTYPES
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**20), counts=st.lists(st.integers(1, 9), min_size=3, max_size=8))
def test_adapted_experts_equal_the_specification(body: str, dtype: torch.dtype, seed: int, counts: list[int]) -> None:
    arena = Arena([layout(dtype, (), experts=rank) for rank in (8, 8, 16)], dtype, seed)
    people = [*arena.adapters, None]
    adapters = [people[index % 4] for index in range(len(counts))]
    generator = torch.Generator().manual_seed(seed)
    tokens = sum(counts)
    experts = torch.stack([torch.randperm(EXPERTS, generator=generator)[:2] for _ in range(tokens)])
    places = torch.randperm(2 * tokens, generator=generator).view(tokens, 2)
    x, out = (torch.randn(2 * tokens, width, generator=generator).to(dtype) for width in (WIDTH, sum(SIZES)))
    exact, most = out.float(), out.float().abs()
    rows = segments(adapters, counts)
    reference.adapt_experts(x, exact, arena.memory, rows, "e", experts, places)
    reference.adapt_experts(x.abs(), most, arena.magnitudes, rows, "e", experts, places)
    workspace = LoraWorkspace(arena.memory)
    workspace.hold(adapters)
    plan = workspace.plan(adapters, np.array(counts))
    assert plan is not None
    kernels.adapt_experts(x, out, plan, "e", experts, places)
    assert_rounded(out, exact, most)


def test_rows_of_the_base_are_not_touched(body: str) -> None:
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


def test_a_batch_without_adapters_has_no_plan(body: str) -> None:
    workspace = LoraWorkspace(torch.zeros(1, SECTOR))
    workspace.hold([None, None])
    assert workspace.plan([None, None], np.array([3, 1])) is None
    assert workspace.plan([], np.array([], np.int64)) is None


def test_a_layer_that_no_adapter_has_is_left_alone(body: str) -> None:
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


def test_an_adapter_that_moved_in_the_arena_is_read_where_it_is_now(body: str) -> None:
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


def test_the_memory_of_a_workspace_follows_the_step(slots: None) -> None:
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


def test_decodes_share_one_product_and_a_prompt_goes_alone(slots: None) -> None:
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


def test_an_adapter_that_could_not_be_copied_is_copied_the_next_time(
    slots: None, monkeypatch: pytest.MonkeyPatch
) -> None:
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
