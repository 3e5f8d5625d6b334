"""Mixtures of experts with every built library, against fp64."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import kernels
from kernels import library, reference
from kernels.ops.moe import combine_experts, route_tokens

DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
every_shape = settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@DTYPES
@every_shape
@given(tokens=st.integers(0, 40), experts=st.integers(1, 17), k=st.integers(1, 4), seed=st.integers(0, 999))
def test_tokens_go_where_the_specification_sends_them(
    built: str, dtype: torch.dtype, tokens: int, experts: int, k: int, seed: int
) -> None:
    k = min(k, experts)
    logits = torch.stack([torch.randperm(experts) for _ in range(tokens)]) if tokens else torch.empty(0, experts)
    # All different, also in bf16: which of equal experts wins is not specified by a sort.
    logits = (logits / 4 - seed % 7).to(dtype)
    found, wanted = route_tokens(logits, k), reference.route_tokens(logits, k)
    torch.testing.assert_close(found.weights, wanted.weights, rtol=1e-5, atol=1e-7)
    for mine, theirs in zip(found[1:], wanted[1:], strict=True):
        assert torch.equal(mine, theirs)


def test_of_equal_experts_the_first_wins(built: str) -> None:
    routing = route_tokens(torch.tensor([[1.0, 2.0, 2.0, 2.0]]), 2)
    assert routing.experts.tolist() == [[1, 2]]
    assert routing.weights.tolist() == [[0.5, 0.5]]


@DTYPES
@every_shape
@given(tokens=st.integers(0, 9), k=st.integers(1, 4), width=st.integers(1, 70) | st.just(1000), seed=st.integers(0, 99))
def test_experts_are_combined_as_in_fp64(
    built: str, dtype: torch.dtype, tokens: int, k: int, width: int, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    outputs = torch.randn(tokens * k, width, generator=generator).to(dtype)
    weights = torch.rand(tokens, k, generator=generator)
    places = torch.randperm(tokens * k, generator=generator).view(tokens, k)
    wanted = (outputs.double()[places.flatten()].view(tokens, k, width) * weights.double()[:, :, None]).sum(1)
    tolerance = {torch.float32: 1e-6, torch.bfloat16: 2**-8}[dtype]
    found = combine_experts(outputs, weights, places)
    torch.testing.assert_close(found.double(), wanted, rtol=tolerance, atol=tolerance)


@DTYPES
def test_a_token_does_not_depend_on_its_batch(isa: str, dtype: torch.dtype) -> None:
    """Nor on which other tokens its experts have."""
    torch.manual_seed(0)
    x, router = torch.randn(50, 40).to(dtype), torch.randn(6, 40).to(dtype)
    gate_up, down = (0.1 * torch.randn(6, 2 * 72, 40)).to(dtype), (0.1 * torch.randn(6, 40, 72)).to(dtype)
    packed = kernels.pack_weight(router), kernels.pack_experts(gate_up), kernels.pack_experts(down)
    together = kernels.moe(x, *packed, 2)
    for row in (0, 17, 49):
        assert torch.equal(kernels.moe(x[row : row + 1], *packed, 2)[0], together[row])
    order = torch.randperm(50)
    assert torch.equal(kernels.moe(x[order], *packed, 2), together[order])


def test_experts_can_be_quantised(built: str) -> None:
    torch.manual_seed(0)
    x, router = torch.randn(20, 128).bfloat16(), torch.randn(4, 128).bfloat16()
    gate_up, down = (0.1 * torch.randn(4, 256, 128)).bfloat16(), (0.1 * torch.randn(4, 128, 128)).bfloat16()
    wanted = reference.moe(x, router, gate_up, down, 2).double()
    for quantize, error in (("int8", 0.03), ("w8a16", 0.02), ("int4", 0.2)):
        experts = kernels.pack_experts(gate_up, quantize), kernels.pack_experts(down, quantize)  # type: ignore[arg-type]
        found = kernels.moe(x, kernels.pack_weight(router), *experts, 2).double()
        assert (found - wanted).norm() / wanted.norm() < error


def test_the_ops_keep_torchs_rules(built: str) -> None:
    logits = torch.randn(5, 4)
    torch.library.opcheck(torch.ops.roundhouse.route_tokens.default, (logits, 2))
    routing = route_tokens(logits, 2)
    combined = (torch.randn(10, 8), routing.weights, routing.places)
    torch.library.opcheck(torch.ops.roundhouse.combine_experts.default, combined)


def test_a_wrong_argument_is_named(isa: str) -> None:
    body = library.cpu
    assert body is not None
    routing = route_tokens(torch.randn(5, 4), 2)
    with pytest.raises(ValueError, match="ends has 4 elements instead of 3"):
        body.route_tokens(*routing, torch.randn(5, 3))
    with pytest.raises(ValueError, match="places has a row that outputs does not have"):
        combine_experts(torch.randn(10, 8), routing.weights, routing.places + 1)
