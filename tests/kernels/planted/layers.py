"""Planted faults in the ops of every layer and of a model's end: norms, rotations, products, draws."""

from __future__ import annotations

import torch

from kernels import LayerCache, library, reference
from kernels.formats.cuda import GROUP, pack_int4, pack_int8
from tests.kernels.faults import Case, Fault


def rms_norm(body: library.Library) -> torch.Tensor:
    """Normalise rows, a block each. What a fault may read or write beside the rows is still the tensors' memory."""
    torch.manual_seed(0)
    width, reach = 1160, 32 * 256
    memory = torch.full((3, reach), torch.nan)
    memory[:, :width] = torch.randn(3, width)
    (x, weight), out = (memory[:2, :width], memory[2, :width]), torch.full((2 * width + reach,), torch.nan)
    found = out[: 2 * width].view(2, width)
    body.rms_norm(found, x, weight, 1e-5)
    torch.testing.assert_close(found, torch.nn.functional.rms_norm(x, (width,), weight, 1e-5))
    assert out[2 * width :].isnan().all()
    return found


def rope(body: library.Library) -> torch.Tensor:
    """Rotate a part of each head and store into int8: the numbers of plain torch, and what is no slot stays."""
    torch.manual_seed(0)
    tokens, dim = 5, 20
    heads = torch.randn(tokens, 7, dim)
    query, key, value = heads.split([3, 2, 2], 1)
    table, places, slots = torch.randn(9, 12), torch.randint(9, (tokens,)), torch.randperm(32)[:tokens]
    caches = [torch.zeros(2, 16, 2, dim, dtype=torch.int8) for _ in range(2)]
    scales = [torch.full((2, 2, 16), 7.0).transpose(1, 2) for _ in range(2)]
    expected = [x.clone() for x in (query, key, value, *caches, *scales)]
    reference.rope_and_store(*expected[:3], table, places, LayerCache(*expected[3:]), slots)
    body.rope_and_store(query, key, value, table, places, *caches, *scales, slots)
    found = [query, *caches, *scales]
    for ours, theirs in zip(found, [expected[0], *expected[3:]], strict=True):
        assert torch.equal(ours, theirs)
    return torch.cat([x.float().flatten() for x in found])


def linear_int4(body: library.Library) -> torch.Tensor:
    """Multiply with more groups than a slice has stages; beyond the rows' ends is NaN."""
    torch.manual_seed(0)
    inputs, outputs = 41 * GROUP + 8, 40
    x = torch.full((17, inputs + GROUP), torch.nan, dtype=torch.bfloat16)[:, :inputs]
    x.copy_(torch.randn(17, inputs))
    levels, steps = torch.randint(16, (outputs, inputs)), torch.rand(outputs, 42).bfloat16()
    packed = pack_int4(levels, steps, -8 * steps)
    weight = torch.full((outputs, inputs), torch.nan, dtype=torch.bfloat16)
    body.dequantize_int4(weight, *packed)
    assert not weight.isnan().any()
    out = torch.full((17, outputs), torch.nan, dtype=torch.bfloat16)
    body.linear_int4(out, x, *packed, None)
    torch.testing.assert_close(out.double(), x.double() @ weight.double().T, rtol=2**-7, atol=0.5)
    return out


def linear_w8a16(body: library.Library) -> torch.Tensor:
    torch.manual_seed(0)
    x, out = torch.randn(9, 1400).bfloat16(), torch.full((9, 40), torch.nan, dtype=torch.bfloat16)
    weight, scales = torch.randint(-128, 128, (40, 1400)).to(torch.int8), torch.rand(40)
    body.linear_w8a16(out, x, pack_int8(weight, alone=True), scales, None)
    expected = x.double() @ weight.double().T * scales
    torch.testing.assert_close(out.double(), expected, rtol=2**-7, atol=1)
    return out


def sample(body: library.Library) -> torch.Tensor:
    torch.manual_seed(0)
    logits = torch.randn(6, 300).bfloat16()
    draws = torch.tensor(
        [[1, 0, 1, 0], [0.7, 20, 1, 0], [1, 0, 0.8, 0], [1, 40, 0.9, 0.01], [0, 0, 1, 0], [2, 1, 1, 0]]
    )
    table = torch.cat((draws, torch.tensor([[0.9], [0.5], [0.7], [0.3], [0.5], [0.6]])), 1).double()
    tokens = torch.full((6,), -1)
    body.sample(tokens, logits, table)
    assert torch.equal(tokens, reference.sample(logits, table))
    return tokens


CASES = {
    "norm": Case("norm", ["rms_norm"], rms_norm),
    "rope": Case("rope", ["rope_and_store"], rope),
    "sample": Case("sampling", ["sample"], sample),
    "int4": Case("linear", ["linear_int4", "dequantize_int4"], linear_int4),
    "w8a16": Case("linear", ["linear_w8a16"], linear_w8a16),
}

FAULTS = {
    "norm": [
        Fault("no barrier", "tile/reduce.cuh", "  __syncthreads();\n", ""),
        Fault(
            "a barrier that some threads skip",
            "tile/reduce.cuh",
            "shared[warp_of_thread()] = value;\n  __syncthreads();",
            "shared[warp_of_thread()] = value, __syncthreads();",
            message="wait for others that never come",
        ),
        Fault(
            "lanes left out",
            "tile/reduce.cuh",
            "distance = kLanes / 2; distance > 0",
            "distance = kLanes / 2; distance > 1",
        ),
        Fault(
            "no tail", "norm.cuh", "      if (at >= p.width) continue;\n      const V weight", "      const V weight"
        ),
        Fault(
            "shared memory too small",
            "norm.cuh",
            "kThreadsOfRow;\n  static constexpr size_t kSharedBytes = sizeof",
            "kThreadsOfRow;\n  static constexpr size_t kSharedBytes = 0 * sizeof",
            message="written beyond its end",
        ),
    ],
    "rope": [
        Fault("a lane's magnitude for a head's", "rope.cuh", "reduce_warp(most, Max())", "most"),
        Fault("values turned too", "rope.cuh", "pair.rotated && !is_value", "pair.rotated"),
        Fault("dimensions that stay from elsewhere", "rope.cuh", "pair : pair + p.rotated / 2", "pair : pair"),
        Fault(
            "scales of another token",
            "rope.cuh",
            "kv_head * p.cache.scale_head_stride + place",
            "kv_head * p.cache.scale_head_stride",
        ),
    ],
    "sample": [
        Fault(
            "no barrier before the histogram is read",
            "sampling/sample.cuh",
            "      __syncthreads();\n      if (threadIdx.x == 0) {",
            "      if (threadIdx.x == 0) {",
        ),
        Fault(
            "no barrier before the histogram is filled",
            "sampling/sample.cuh",
            "shared.weights[i] = 0;\n      __syncthreads();",
            "shared.weights[i] = 0;",
        ),
        Fault(
            "no barrier after the select",
            "sampling/sample.cuh",
            "        shared.selected = found;\n      }\n      __syncthreads();",
            "        shared.selected = found;\n      }",
        ),
        Fault(
            "no barrier before the parts are added",
            "sampling/sample.cuh",
            "shared.sums[warp] = own;\n    __syncthreads();",
            "shared.sums[warp] = own;",
        ),
        Fault("the weight of the parts before forgotten", "sampling/sample.cuh", "before += shared.sums[i];", ""),
    ],
    "int4": [
        Fault(
            "waits for one copy too few", "linear/quantized.cuh", "cp_async_wait<kStages - 1>", "cp_async_wait<kStages>"
        ),
        Fault("loads into the stage in use", "linear/quantized.cuh", "load(i + kStages - 1);", "load(i + kStages);"),
        Fault(
            "no barrier before the stages are overwritten",
            "linear/quantized.cuh",
            "__syncthreads();  // the stages",
            ";  // the stages",
        ),
        Fault(
            "no barrier before the slices are added",
            "linear/quantized.cuh",
            "leave(shared.sums, sums);\n    __syncthreads();",
            "leave(shared.sums, sums);",
        ),
        Fault("inputs beyond the end", "linear/quantized.cuh", "row < p.rows && at < p.inputs", "row < p.rows"),
        Fault("a slice left out", "linear/quantized.cuh", "slice < kWarps; ++slice", "slice < kWarps - 1; ++slice"),
        Fault("steps of another output", "linear/formats.cuh", "step[r % 2]", "step[r / 2]"),
    ],
    "w8a16": [
        Fault("numbers of other inputs", "linear/formats.cuh", "of[i][r % 2] >> (8 * (r / 2))", "of[i][r % 2]"),
        Fault("numbers of other outputs", "linear/formats.cuh", "of[i][r % 2]", "of[i][r / 2]"),
        Fault(
            "scales left out",
            "linear/quantized.cuh",
            "if constexpr (!Format::kGroupScales) value",
            "if constexpr (Format::kRowScales) value",
        ),
    ],
}
"""Faults by case."""
