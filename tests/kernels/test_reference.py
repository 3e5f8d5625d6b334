"""Every op of the specification equals its formula, evaluated in fp64 by other means."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import kernels
from kernels import reference

DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
BLOCK = 16


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


def test_rotary_embedding_turns_pairs_of_dimensions(device: torch.device) -> None:
    """As complex numbers, dimensions i and i + D/2 are multiplied by exp(i angle)."""
    # A strided view, as the packed projection gives it.
    heads = random(5, 4, 16, device=device)[:, :3]
    angles = random(5, 1, 8, device=device)
    cos, sin = angles.cos(), angles.sin()
    turned = torch.complex(heads[..., :8], heads[..., 8:]) * torch.complex(cos, sin)
    kernels.rotary_embedding(heads, torch.cat((cos, cos), -1), torch.cat((-sin, sin), -1))
    close(heads, torch.cat((turned.real, turned.imag), -1))


def test_store_kv_writes_only_its_slots(device: torch.device) -> None:
    key, value = random(3, 2, 8, device=device), random(3, 2, 8, device=device, seed=1)
    caches = [torch.full((4, BLOCK, 2, 8), 7.0, device=device) for _ in range(2)]
    slots = torch.tensor([63, 0, 17], device=device)
    kernels.store_kv(key, value, caches[0], caches[1], slots)
    for cache, stored in zip(caches, (key, value), strict=True):
        flat = cache.flatten(0, 1)
        assert torch.equal(flat[slots], stored)
        assert int((flat == 7.0).all(-1).all(-1).sum()) == 61


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
    close(kernels.linear(x, kernels.pack_weight(weight), offset), expected)


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
    close(kernels.moe(x, router, gate_up, down, 2), expected, tolerance=1e-4)


@st.composite
def batches(draw: st.DrawFn) -> tuple[list[tuple[int, int]], int | None, tuple[int, int], int]:
    """Rows of (start, count), a window, (heads, kv heads) and a seed."""
    start = st.sampled_from([0, 1, 15, 16, 17, 31, 40]) | st.integers(0, 70)
    count = st.sampled_from([1, 1, 1, 2, 15, 16, 17]) | st.integers(1, 40)
    rows = draw(st.lists(st.tuples(start, count), min_size=1, max_size=6))
    window = draw(st.none() | st.integers(1, 50))
    heads = draw(st.sampled_from([(4, 4), (4, 2), (6, 1)]))
    return rows, window, heads, draw(st.integers(0, 1000))


@given(batches())
@settings(max_examples=60)
def test_paged_attention_equals_softmax_over_what_each_query_may_see(
    batch: tuple[list[tuple[int, int]], int | None, tuple[int, int], int],
) -> None:
    """For any mix of decodes, chunks and fresh prompts, with blocks in any order and unused slots full of numbers."""
    rows, window, (heads, kv_heads), seed = batch
    for device in map(torch.device, DEVICES):
        check_attention(rows, window, heads, kv_heads, seed, device)


def test_paged_attention_of_split_rows_is_the_same(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels.attention, "_MASK_ELEMENTS", 500)
    check_attention([(40, 1), (33, 40), (0, 70)], None, 4, 2, 0, device)
    check_attention([(40, 1), (33, 40), (0, 70)], 20, 4, 2, 0, device)


def check_attention(
    rows: list[tuple[int, int]], window: int | None, heads: int, kv_heads: int, seed: int, device: torch.device
) -> None:
    generator = torch.Generator().manual_seed(seed)
    dim, tokens = 8, sum(count for _, count in rows)
    widths = [-(-(start + count) // BLOCK) for start, count in rows]
    ids = torch.randperm(sum(widths) + 3, generator=generator)[3:].tolist()
    tables = np.zeros((len(rows), max(widths)), np.int64)
    for table, width in zip(tables, widths, strict=True):
        table[:width] = [ids.pop() for _ in range(width)]
    caches = [torch.full((sum(widths) + 3, BLOCK, kv_heads, dim), 1e4) for _ in range(2)]
    query = torch.randn(tokens, heads, dim, generator=generator)
    expected, new = torch.zeros(tokens, heads, dim, dtype=torch.float64), []
    begin = 0
    for (start, count), table in zip(rows, tables, strict=True):
        keys, values = (torch.randn(start + count, kv_heads, dim, generator=generator) for _ in range(2))
        positions = np.arange(start + count)
        slots = torch.from_numpy(table[positions // BLOCK] * BLOCK + positions % BLOCK)
        for cache, stored in zip(caches, (keys, values), strict=True):
            cache.view(-1, kv_heads, dim)[slots] = stored
        new.append((keys[start:], values[start:]))
        keys, values = (x.double().repeat_interleave(heads // kv_heads, 1) for x in (keys, values))
        scores = torch.einsum("qhd,khd->hqk", query[begin : begin + count].double(), keys) / math.sqrt(dim)
        distance = torch.arange(start, start + count)[:, None] - torch.arange(start + count)
        visible = (distance >= 0) & (distance < (window or start + count))
        weights = scores.masked_fill(~visible, -math.inf).softmax(-1)
        expected[begin : begin + count] = torch.einsum("hqk,khd->qhd", weights, values)
        begin += count
    plan = kernels.plan_attention(
        np.array([start for start, _ in rows]),
        np.array([count for _, count in rows]),
        tables,
        block_size=BLOCK,
        block_bytes=2 * BLOCK * kv_heads * dim * 4,
        window=window,
        device=device,
        dtype=torch.float32,
    )
    key, value = (torch.cat(parts).to(device) for parts in zip(*new, strict=True))
    output = reference.paged_attention(query.to(device), key, value, caches[0].to(device), caches[1].to(device), plan)
    close(output.view(tokens, heads, dim), expected)


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
