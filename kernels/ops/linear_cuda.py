"""Products with quantised weights by the CUDA bodies."""

from __future__ import annotations

import torch

from kernels import library, reference
from kernels.packing import PackedWeight
from kernels.packing_cuda import GROUP

FEW = 64
"""Rows up to which int4 weights are unpacked where they are multiplied; more pay for the whole weight in bf16."""


def serves(x: torch.Tensor, kind: str) -> bool:
    """Whether the CUDA bodies serve where x is."""
    body = library.of(x, f"linear_{kind}")
    return body is not None and body.cuda


def run(x: torch.Tensor, weight: PackedWeight, bias: torch.Tensor | None) -> torch.Tensor:
    """x [T, inputs] in bf16 -> [T, outputs], for a weight that was packed for CUDA."""
    body = library.of(x)
    assert body is not None and weight.scales is not None
    if weight.kind == "int4" and len(x) > FEW:
        dense = torch.empty(weight.outputs, weight.inputs, dtype=weight.dtype, device=x.device)
        body.dequantize_int4(dense, weight.data, weight.scales)
        return reference.linear(x, dense, bias)
    out = torch.empty(len(x), weight.outputs, dtype=x.dtype, device=x.device)
    if weight.kind == "int4":
        if x.stride(0) % 8 or x.data_ptr() % 16:
            x = x.clone(memory_format=torch.contiguous_format)
        body.linear_int4(out, x, weight.data, weight.scales, bias)
    else:
        levels = torch.empty(len(x), -(-weight.inputs // GROUP) * GROUP, dtype=torch.int8, device=x.device)
        scales = torch.empty(len(x), device=x.device)
        body.linear_int8(out, x, weight.data, weight.scales, bias, levels, scales)
    return out
