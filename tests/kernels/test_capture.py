"""Every op in a CUDA graph: recorded once, replayed on other numbers, equal bit for bit to the same call outside of it.

This needs a device; where there is none, docs/kernels.md says what is checked instead.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pytest
import torch

import kernels
from kernels import library
from tests.kernels.lora_arenas import Arena
from tests.kernels.test_lora_bodies import wide
from tests.kernels.test_lora_cuda import arena_on, plan_of

pytestmark = pytest.mark.skipif(library.cuda is None, reason=f"no CUDA bodies serve here: {library.cuda_reason}")

FP32, BF16, FP8, INT8 = torch.float32, torch.bfloat16, torch.float8_e4m3fn, torch.int8
DEVICE = torch.device("cuda")


class Case(NamedTuple):
    """A call, and the tensors that it reads and may write to, which are filled anew before each call."""

    run: Callable[[], torch.Tensor | None]
    tensors: list[torch.Tensor]


def random(*shape: int, dtype: torch.dtype = BF16) -> torch.Tensor:
    return torch.randn(shape, device=DEVICE).to(dtype)


def refill(tensors: list[torch.Tensor], seed: int) -> None:
    """Other numbers of the same kind; what is not floating stays, as it is indices."""
    generator = torch.Generator(DEVICE).manual_seed(seed)
    for x in tensors:
        if x.dtype == INT8:
            x.copy_(torch.randint(-127, 128, x.shape, generator=generator, device=DEVICE))
        elif x.is_floating_point():
            x.copy_(torch.randn(x.shape, generator=generator, device=DEVICE))


def norm(dtype: torch.dtype) -> Case:
    x, weight = random(5, 4096, dtype=dtype), random(4096, dtype=dtype)
    return Case(lambda: kernels.rms_norm(x, weight, 1e-5), [x, weight])


def add_norm() -> Case:
    x, residual, weight = random(5, 4096), random(5, 4096), random(4096)
    return Case(lambda: kernels.add_rms_norm(x, residual, weight, 1e-5), [x, residual, weight])


def activation() -> Case:
    x = random(5, 2 * 11008)
    return Case(lambda: kernels.silu_and_mul(x), [x])


def embedding() -> Case:
    table, tokens = random(300, 4096), torch.randint(300, (7,), device=DEVICE)
    return Case(lambda: kernels.embedding(tokens, table), [table])


def linear(quantize: kernels.Quantization | None, rows: int) -> Case:
    weight, x = kernels.pack_weight(random(272, 512), quantize), random(rows, 512)
    return Case(lambda: weight(x), [x])


def caches(stored: torch.dtype, kv_heads: int, dim: int) -> kernels.LayerCache:
    shape = (80, kv_heads, 16, dim)
    pair = [torch.zeros(shape, device=DEVICE).to(stored).transpose(1, 2) for _ in range(2)]
    scales = [torch.ones(shape[:3], device=DEVICE).transpose(1, 2) for _ in range(2)] if stored == INT8 else []
    return kernels.LayerCache(*pair, *scales)


def rope(dtype: torch.dtype, stored: torch.dtype) -> Case:
    x = random(9, 8, 64, dtype=dtype)
    query, key, value = torch.split(x, [4, 2, 2], 1)
    table, places = random(50, 64, dtype=FP32), torch.randperm(50, device=DEVICE)[:9]
    cache = caches(stored, 2, 64)
    run = lambda: kernels.rope_and_store(query, key, value, table, places, cache, places)  # noqa: E731
    return Case(run, [x, table, *filter(torch.is_tensor, cache)])


def attention(dtype: torch.dtype, stored: torch.dtype, dim: int, count: int) -> Case:
    """Of a plan that is on the device, as recorded steps have it; long enough for several splits."""
    cache = caches(stored, 2, dim)
    query = random(2 * count, 8, dim, dtype=dtype)
    starts = torch.tensor([600, 3], dtype=torch.int32, device=DEVICE)
    counts = torch.full((2,), count, dtype=torch.int32, device=DEVICE)
    tables = torch.randperm(80, device=DEVICE)[:78].int().view(2, 39)
    plan = kernels.fixed_plan(starts, counts, tables, window=None, max_query_len=count, max_seq_len=39 * 16)
    run = lambda: kernels.paged_attention(query, cache, plan)  # noqa: E731
    return Case(run, [query, *filter(torch.is_tensor, cache)])


def argmax() -> Case:
    logits = random(4, 32000)
    return Case(lambda: kernels.argmax(logits), [logits])


def log_sum_exp() -> Case:
    logits = random(4, 32000)
    return Case(lambda: kernels.log_sum_exp(logits), [logits])


def sample() -> Case:
    logits = random(4, 32000)
    draws = torch.tensor([[1, 50, 0.9, 0, 0.3]] * 4, dtype=torch.float64, device=DEVICE)
    return Case(lambda: kernels.sample(logits, draws), [logits])


def bitmask() -> Case:
    logits = random(4, 320)
    bits = torch.from_numpy(np.random.default_rng(0).integers(-(2**31), 2**31, (4, 10), dtype=np.int32)).to(DEVICE)
    return Case(lambda: kernels.apply_token_bitmask(logits, bits), [logits])


def penalties() -> Case:
    logits, counts = random(320, dtype=FP32), random(320, dtype=FP32)
    seen = torch.arange(320, device=DEVICE) % 3 == 0
    return Case(lambda: kernels.apply_penalties(logits, counts, seen, 1.2, 0.5, 0.1), [logits, counts])


def moe() -> Case:
    """All of a layer with unquantised experts, none of whose sizes the host knows."""
    x, router = random(7, 128), kernels.pack_weight(random(8, 128))
    gate_up, down = (kernels.pack_experts(random(8, *shape)) for shape in ((512, 128), (128, 256)))
    return Case(lambda: kernels.moe(x, router, gate_up, down, 2), [x])


def lora() -> Case:
    """Two adapters and rows without one."""
    arena = arena_on(DEVICE, Arena([wide(BF16, 136, (40, 16), (8, 16), True)] * 2, BF16, 0, 1032))
    plan = plan_of(arena, [arena.adapters[0], None, arena.adapters[1]], [3, 2, 20])
    x, out = random(25, 136), random(25, 56)
    return Case(lambda: kernels.adapt_linear(x, out, plan, "a"), [x, out])


TYPES = [(BF16, BF16), (BF16, FP8), (BF16, INT8), (FP32, FP32), (FP32, FP8), (FP32, INT8)]
CASES: dict[str, Callable[[], Case]] = {
    "rms_norm bf16": lambda: norm(BF16),
    "rms_norm fp32": lambda: norm(FP32),
    "add_rms_norm": add_norm,
    "silu_and_mul": activation,
    "embedding": embedding,
    **{
        f"linear {name} of {rows}": lambda name=name, rows=rows: linear(name, rows)  # type: ignore[misc]
        for name in (None, "int8", "w8a16", "int4")
        for rows in (1, 16, 65)
    },
    **{
        f"rope_and_store {dtype} into {stored}": lambda dtype=dtype, stored=stored: rope(dtype, stored)  # type: ignore[misc]
        for dtype, stored in TYPES
    },
    **{
        f"paged_attention {dtype} over {stored}, {dim}, {count}": (
            lambda dtype=dtype, stored=stored, dim=dim, count=count: attention(dtype, stored, dim, count)  # type: ignore[misc]
        )
        for dtype, stored in TYPES
        for dim in (64, 80, 128)
        for count in (1, 20)
    },
    "moe": moe,
    "adapt_linear": lora,
    "argmax": argmax,
    "log_sum_exp": log_sum_exp,
    "sample": sample,
    "apply_token_bitmask": bitmask,
    "apply_penalties": penalties,
}


@pytest.mark.parametrize("name", CASES)
@torch.inference_mode()
def test_a_replay_gives_the_bits_of_a_call(name: str) -> None:
    case = CASES[name]()

    def outcome(out: torch.Tensor | None) -> list[torch.Tensor]:
        written = [x.contiguous().view(torch.uint8).clone() for x in case.tensors]
        return written if out is None else [*written, out.contiguous().view(torch.uint8).clone()]

    refill(case.tensors, 0)
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):  # what libraries set up at a first call cannot be recorded
        case.run()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        recorded = case.run()
    for seed in (1, 2):
        refill(case.tensors, seed)
        expected = outcome(case.run())
        refill(case.tensors, seed)
        graph.replay()
        found = outcome(recorded)
        assert all(torch.equal(ours, theirs) for ours, theirs in zip(found, expected, strict=True))
