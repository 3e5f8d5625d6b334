"""The CUDA bodies of mixtures of experts, under the emulator and on CUDA, against fp64."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import kernels
from kernels import reference
from kernels.ops.moe import GroupedExperts, StackedExperts, grouped_linear, route_tokens
from tests.kernels.conftest import Body

every_shape = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def experts_of(counts: list[int], outputs: int, inputs: int, seed: int) -> tuple[torch.Tensor, ...]:
    """Rows of experts with so many each, weights and ends; what a product must be, and how far its sums reach."""
    torch.manual_seed(seed)
    x = torch.randn(sum(counts), inputs).bfloat16()
    weights = torch.randn(len(counts), outputs, inputs).bfloat16()
    parts = list(zip(x.double().split(counts), weights.double(), strict=True))
    wanted = torch.cat([rows @ weight.T for rows, weight in parts])
    reach = torch.cat([rows.abs() @ weight.abs().T for rows, weight in parts])
    return x, weights, torch.tensor(counts).cumsum(0), wanted, reach


def run(body: Body, x: torch.Tensor, weights: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    """In the midst of memory that is no number, and stays so."""
    rows, outputs = len(x), weights.shape[1]
    memory = torch.full((rows * outputs + 128,), torch.nan, dtype=torch.bfloat16, device=body[1])
    out = memory[64 : 64 + rows * outputs].view(rows, outputs)
    body[0].grouped_linear(out, x.to(body[1]), weights.to(body[1]), ends.to(body[1]))
    assert memory[:64].isnan().all() and memory[64 + rows * outputs :].isnan().all()
    return out.cpu()


@every_shape
@given(
    counts=st.lists(st.sampled_from([0, 0, 1, 15, 16, 17, 63, 64, 65, 130]), min_size=1, max_size=5)
    | st.lists(st.integers(0, 3), min_size=31, max_size=40),
    outputs=st.sampled_from([2, 62, 64, 66, 128, 130]),
    inputs=st.sampled_from([8, 56, 64, 72, 400, 520]),
    seed=st.integers(0, 99),
)
def test_products_of_experts_are_those_of_fp64(
    body: Body, counts: list[int], outputs: int, inputs: int, seed: int
) -> None:
    x, weights, ends, wanted, reach = experts_of(counts, outputs, inputs, seed)
    found = run(body, x, weights, ends)
    assert ((found.double() - wanted).abs() <= 2**-8 * wanted.abs() + 1e-6 * reach).all()


def test_what_other_experts_have_does_not_matter(body: Body) -> None:
    """Not even how many rows there are: tiles of few and of many rows take the same sums. Nor what is no number."""
    x, weights, ends, _, _ = experts_of([70, 0, 20, 90], 130, 200, 0)
    together = run(body, x, weights, ends)
    for expert, rows in [(0, slice(0, 1)), (0, slice(3, 40)), (2, slice(70, 90)), (3, slice(95, 180))]:
        alone = torch.tensor([0] * expert + [rows.stop - rows.start] * (4 - expert))
        assert torch.equal(run(body, x[rows], weights, alone), together[rows])
    order = torch.cat([torch.randperm(70), 70 + torch.randperm(20), 90 + torch.randperm(90)])
    assert torch.equal(run(body, x[order], weights, ends), together[order])
    x[5], weights[2] = torch.nan, torch.nan
    damaged = run(body, x, weights, ends)
    same = torch.ones(180, dtype=torch.bool)
    same[5], same[70:90] = False, False
    assert torch.equal(damaged[same], together[same]) and damaged[~same].isnan().all()


@pytest.mark.parametrize("quantize", ["int8", "w8a16", "int4"])
@pytest.mark.parametrize("counts", [[1, 0, 3, 8], [9, 0, 40, 64], [0, 33, 0, 0], [0] * 40 + [2, 1]], ids=str)
def test_quantised_products_have_the_bits_of_each_experts(
    body: Body, quantize: kernels.Quantization, counts: list[int]
) -> None:
    x, weights, ends, _, _ = (tensor.to(body[1]) for tensor in experts_of(counts, 70, 200, 0))
    packed = kernels.pack_experts(weights, quantize)
    assert isinstance(packed, GroupedExperts)
    found = packed(x, ends)
    parts = zip(x.split(counts), weights, strict=True)
    alone = [kernels.pack_weight(weight, quantize)(rows) for rows, weight in parts]
    assert torch.equal(found, torch.cat(alone))


@every_shape
@given(
    tokens=st.sampled_from([0, 1, 3, 31, 33, 300]),
    experts=st.sampled_from([1, 2, 8, 33, 64, 100]),
    seed=st.integers(0, 99),
)
def test_tokens_are_sorted_by_expert(body: Body, tokens: int, experts: int, seed: int) -> None:
    torch.manual_seed(seed)
    k = min(experts, 1 + seed % 4)
    logits = torch.rand(tokens, experts).argsort(1).float().to(body[1])  # no two alike
    found, wanted = route_tokens(logits, k), reference.route_tokens(logits, k)
    torch.testing.assert_close(found.weights, wanted.weights, rtol=1e-5, atol=1e-7)
    for mine, theirs in zip(found[1:], wanted[1:], strict=True):
        assert torch.equal(mine, theirs)


def test_logits_that_are_no_numbers_are_chosen_last(body: Body) -> None:
    nan = torch.nan
    routing = route_tokens(torch.tensor([[nan, 1.0, -torch.inf, nan], [nan, nan, nan, nan]], device=body[1]), 3)
    assert routing.experts.tolist() == [[1, 2, 0], [0, 1, 2]]
    assert sorted(routing.places.flatten().tolist()) == list(range(6))


def test_a_mixture_is_the_specifications(body: Body) -> None:
    torch.manual_seed(0)
    x, router = torch.randn(40, 64).bfloat16(), torch.randn(8, 64).bfloat16()
    gate_up, down = (0.1 * torch.randn(8, 2 * 96, 64)).bfloat16(), (0.1 * torch.randn(8, 64, 96)).bfloat16()
    wanted = reference.moe(x, router, gate_up, down, 2)
    x, router, gate_up, down = (tensor.to(body[1]) for tensor in (x, router, gate_up, down))
    packed = kernels.pack_weight(router), kernels.pack_experts(gate_up), kernels.pack_experts(down)
    assert isinstance(packed[1], StackedExperts) and isinstance(packed[2], StackedExperts)
    torch.testing.assert_close(kernels.moe(x, *packed, 2).cpu(), wanted, rtol=2**-6, atol=2**-6)


def test_rows_that_are_not_whole_are_left_to_torch(body: Body) -> None:
    """fp32 is never rounded to bf16."""
    x, weights = torch.randn(3, 16, device=body[1]), torch.randn(2, 8, 16, device=body[1])
    found = grouped_linear(x, weights, torch.tensor([1, 3], device=body[1]))
    wanted = torch.cat((x[:1] @ weights[0].T, x[1:] @ weights[1].T))
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)


def test_a_wrong_argument_is_named(body: Body) -> None:
    x, weights, ends, _, _ = (tensor.to(body[1]) for tensor in experts_of([2, 1], 4, 16, 0))
    out = torch.empty(3, 4, device=body[1]).bfloat16()
    with pytest.raises(ValueError, match="x has another type"):
        body[0].grouped_linear(out, x.float(), weights, ends)
    with pytest.raises(ValueError, match="ends has 1 elements instead of 2"):
        body[0].grouped_linear(out, x, weights, ends[:1])
    with pytest.raises(ValueError, match="weights must have rows of 16 bytes"):
        body[0].grouped_linear(out, x[:, :12].contiguous(), weights[..., :12].contiguous(), ends)
    with pytest.raises(ValueError, match="x must be aligned to 16 bytes"):
        body[0].grouped_linear(out, torch.empty(49, device=body[1]).bfloat16()[1:].view(3, 16), weights, ends)
    with pytest.raises(ValueError, match="logits must be of at most 1024 experts"):
        route_tokens(torch.zeros(1, 1025, device=body[1]), 1)
    experts = kernels.pack_experts(weights, "int8")
    assert isinstance(experts, GroupedExperts)
    packed = experts.weights
    digits, scales = torch.empty(3, 2, 128, dtype=torch.int8, device=body[1]), torch.empty(3, device=body[1])
    with pytest.raises(ValueError, match="tiles has 4096 elements instead of 2048"):
        body[0].grouped_linear_int8(out, x, packed.data, packed.scales, ends[:1], digits, scales, 127)
    with pytest.raises(ValueError, match="ends has another type"):
        body[0].grouped_linear_int8(out, x, packed.data, packed.scales, ends.int(), digits, scales, 127)
