"""Every op of the specification equals its formula, evaluated in fp64 by other means."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

import kernels
from kernels import reference

DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> torch.device:
    return torch.device(request.param)


def random(*shape: int, device: torch.device, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed + math.prod(shape))
    return torch.randn(*shape, generator=generator).to(device)


def close(actual: torch.Tensor, expected: torch.Tensor, tolerance: float = 1e-5) -> None:
    torch.testing.assert_close(actual.double().cpu(), expected.double().cpu(), rtol=tolerance, atol=tolerance)


def test_embedding_picks_rows(device: torch.device) -> None:
    weight = random(7, 4, device=device)
    tokens = torch.tensor([6, 0, 6], device=device)
    assert torch.equal(kernels.embedding(tokens, weight), weight[tokens])


@pytest.mark.parametrize("weight_shape", [(24,), (3, 24)], ids=["one weight", "a weight per head"])
def test_rms_norm_divides_by_the_root_of_the_mean_square(device: torch.device, weight_shape: tuple[int, ...]) -> None:
    x, weight = random(5, 3, 24, device=device), random(*weight_shape, device=device)
    scale = (x.double().square().mean(-1, keepdim=True) + 1e-5).sqrt()
    close(kernels.rms_norm(x, weight, 1e-5), x.double() / scale * weight.double())


def test_add_rms_norm_adds_into_the_residual_and_normalises_the_sum(device: torch.device) -> None:
    x, residual, weight = random(5, 24, device=device), random(5, 24, device=device, seed=1), random(24, device=device)
    expected = x + residual
    normalised = kernels.add_rms_norm(x, residual, weight, 1e-6)
    assert torch.equal(residual, expected)
    close(normalised, kernels.rms_norm(expected, weight, 1e-6))


def test_silu_and_mul_gates_the_second_half_with_the_first(device: torch.device) -> None:
    x = random(5, 12, device=device)
    gate, up = x[:, :6].double(), x[:, 6:].double()
    close(kernels.silu_and_mul(x), gate / (1 + (-gate).exp()) * up)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_argmax_is_the_first_maximum(device: torch.device, dtype: torch.dtype) -> None:
    x = torch.tensor([[1.0, 3.0, 3.0], [-1.0, -2.0, -1.0]], device=device, dtype=dtype)
    assert kernels.argmax(x).tolist() == [1, 0]


@pytest.mark.parametrize("bias", [False, True])
def test_linear_multiplies_with_the_transposed_weight(device: torch.device, bias: bool) -> None:
    x, weight = random(5, 8, device=device), random(3, 8, device=device)
    offset = random(3, device=device) if bias else None
    expected = x.double() @ weight.double().T + (0 if offset is None else offset.double())
    close(kernels.pack_weight(weight)(x, offset), expected)


def test_moe_sums_the_best_experts_weighted_by_renormalised_probabilities(device: torch.device) -> None:
    experts, width, inner, tokens = 5, 16, 24, 9
    x, router = random(tokens, width, device=device), random(experts, width, device=device)
    gate_up, down = random(experts, 2 * inner, width, device=device), random(experts, width, inner, device=device)
    expected = torch.zeros(tokens, width, dtype=torch.float64)
    for token in range(tokens):
        scores = (router.double() @ x[token].double()).softmax(0)
        best = scores.argsort(descending=True)[:2]
        for expert in best:
            gate, up = (gate_up[expert].double() @ x[token].double()).chunk(2)
            output = down[expert].double() @ (gate * gate.sigmoid() * up)
            expected[token] += (scores[expert] / scores[best].sum() * output).cpu()
    packed = kernels.pack_weight(router), kernels.pack_experts(gate_up), kernels.pack_experts(down)
    close(kernels.moe(x, *packed, 2), expected, tolerance=1e-4)
    close(reference.moe(x, router, gate_up, down, 2), expected, tolerance=1e-4)


@pytest.mark.parametrize("vocabulary", [1, 31, 32, 33, 100])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_token_bitmask_keeps_the_tokens_whose_bit_is_set(
    vocabulary: int, dtype: torch.dtype, device: torch.device
) -> None:
    logits = random(3, vocabulary, device=device).to(dtype)
    bits = np.random.default_rng(vocabulary).integers(-(2**31), 2**31, (3, -(-vocabulary // 32)), dtype=np.int32)
    legal = [[int(row[token // 32]) >> (token % 32) & 1 for token in range(vocabulary)] for row in bits]
    expected = logits.cpu().masked_fill(torch.tensor(legal) == 0, -math.inf)
    kernels.apply_token_bitmask(logits, torch.from_numpy(bits).to(device))
    assert torch.equal(logits.cpu(), expected)
