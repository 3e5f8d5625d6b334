"""The LoRA ops equal the specification with every body that there is, and the specification equals fp64."""

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
from kernels.lora.layout import read_image
from kernels.lora.plan import SegmentPlan
from tests.amounts import examples
from tests.kernels.conftest import load
from tests.kernels.lora_arenas import EXPERTS, SECTOR, SIZES, VOCABULARY, WIDTH, Arena, layout, segments
from tests.kernels.test_lora_bodies import expected, wide

DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
_SUMMANDS = WIDTH + 40 + 3
"""Of a number of an output: of both products, with the output itself, its scale and its offset."""


@pytest.fixture(params=[library.REFERENCE, *library.ISAS, library.EMULATOR])
def body(request: pytest.FixtureRequest) -> Iterator[str]:
    """The specification, as where no library is built, or each library for tensors of the CPU."""
    name: str = request.param
    with library.using(None if name == library.REFERENCE else load(name)):
        yield name


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
@settings(max_examples=examples(8), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
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
@settings(max_examples=examples(12), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
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


def test_without_a_library_the_segments_of_a_plan_are_the_rows_of_each_adapter() -> None:
    one, two = Arena([layout(torch.float32, (8, 8, 8))] * 2, torch.float32, 0).adapters
    with library.using(None):
        plan = LoraWorkspace(torch.zeros(1, SECTOR)).plan([one, None, two, one], np.array([2, 1, 1, 3]))
    assert isinstance(plan, SegmentPlan)
    assert [(adapter, rows.tolist()) for adapter, rows in plan.segments] == [(one, [0, 1, 4, 5, 6]), (two, [3])]


@DTYPES
@pytest.mark.parametrize("affine", [False, True])
def test_the_specification_is_the_sum_of_fp64(dtype: torch.dtype, affine: bool) -> None:
    arena = Arena([wide(dtype, 100, (40, 16, 8), (24, 0, 8), affine)], dtype, 0)
    generator = torch.Generator().manual_seed(1)
    x, out = (torch.randn(9, size, generator=generator).to(dtype) for size in (100, 64))
    wanted = expected(x[2:7], out[2:7], arena, arena.adapters[0])
    reference.adapt_linear(x, out, arena.memory, [(arena.adapters[0], torch.arange(2, 7))], "a")
    tolerance = {torch.float32: 1e-6 * 3 * (100 * 24) ** 0.5, torch.bfloat16: 2**-8}[dtype]
    torch.testing.assert_close(out[2:7].double(), wanted, rtol=tolerance, atol=tolerance)


def test_the_specification_of_experts_is_the_sum_of_fp64() -> None:
    arena = Arena([layout(torch.float32, (), experts=8)], torch.float32, 0)
    (adapter,), (part,) = arena.adapters, arena.adapters[0].layout.sites["e"].parts
    a, b = (
        read_image(arena.memory, adapter, begin, EXPERTS * 8 * columns).view(EXPERTS, 8, columns).double()
        for begin, columns in ((part.down, WIDTH), (part.up, sum(SIZES)))
    )
    experts, places = torch.tensor([[0, 2], [2, 1]]), torch.tensor([[3, 0], [1, 2]])
    generator = torch.Generator().manual_seed(1)
    x, out = (torch.randn(4, size, generator=generator) for size in (WIDTH, sum(SIZES)))
    chosen = torch.tensor([2, 2, 1, 0])
    wanted = out.double() + torch.stack([row @ a[e].T @ b[e] for row, e in zip(x.double(), chosen, strict=True)])
    reference.adapt_experts(x, out, arena.memory, [(adapter, torch.arange(2))], "e", experts, places)
    tolerance = 1e-6 * 3 * (WIDTH * 8) ** 0.5
    torch.testing.assert_close(out.double(), wanted, rtol=tolerance, atol=tolerance)
