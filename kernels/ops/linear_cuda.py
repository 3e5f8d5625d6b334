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


def run(
    x: torch.Tensor, weight: PackedWeight, bias: torch.Tensor | None, out_dtype: torch.dtype | None = None
) -> torch.Tensor:
    """x [T, inputs] in bf16 -> [T, outputs], for a weight that was packed for CUDA."""
    body = library.of(x)
    assert body is not None and weight.scales is not None
    if weight.kind == "int4" and len(x) > FEW:
        dense = torch.empty(weight.outputs, weight.inputs, dtype=weight.dtype, device=x.device)
        body.dequantize_int4(dense, weight.data, weight.scales)
        return reference.linear(x, dense, bias, out_dtype)
    if weight.kind != "int8":
        out = torch.empty(len(x), weight.outputs, dtype=out_dtype or x.dtype, device=x.device)
        product = body.linear_int4 if weight.kind == "int4" else body.linear_w8a16
        product(out, _in_whole_rows(x), weight.data, weight.scales, bias)
        return out
    out, levels, scales = _int8_tensors(x, weight, out_dtype)
    body.linear_int8(out, x, weight.data, weight.scales, bias, levels, scales)
    return out


def run_grouped(x: torch.Tensor, weights: PackedWeight, ends: torch.Tensor) -> torch.Tensor:
    """`reference.grouped_linear` for `weights` that hold those of all experts, one behind the other."""
    body = library.of(x)
    assert body is not None and weights.scales is not None
    if weights.kind != "int8":
        out = torch.empty(len(x), weights.outputs, dtype=x.dtype, device=x.device)
        product = body.grouped_linear_int4 if weights.kind == "int4" else body.grouped_linear_w8a16
        product(out, _in_whole_rows(x), weights.data, weights.scales, ends)
        return out
    out, levels, scales = _int8_tensors(x, weights)
    body.grouped_linear_int8(out, x, weights.data, weights.scales, ends, levels, scales)
    return out


def _in_whole_rows(x: torch.Tensor) -> torch.Tensor:
    """The same in rows of 16 bytes."""
    return x.clone(memory_format=torch.contiguous_format) if x.stride(0) % 8 or x.data_ptr() % 16 else x


def _int8_tensors(
    x: torch.Tensor, weight: PackedWeight, out_dtype: torch.dtype | None = None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The output, and what x becomes."""
    out = torch.empty(len(x), weight.outputs, dtype=out_dtype or x.dtype, device=x.device)
    levels = torch.empty(len(x), -(-weight.inputs // GROUP) * GROUP, dtype=torch.int8, device=x.device)
    return out, levels, torch.empty(len(x), device=x.device)
