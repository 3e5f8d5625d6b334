"""Products with weights, which `kernels.packing` has packed."""

from __future__ import annotations

import torch

from kernels import library, reference
from kernels.memory import Workspace
from kernels.ops import linear_cuda
from kernels.packing import PackedWeight
from kernels.quantization import INT4_GROUP
from kernels.registry import Cost, register

_workspace = Workspace()


def linear(
    x: torch.Tensor, weight: PackedWeight, bias: torch.Tensor | None = None, out_dtype: torch.dtype | None = None
) -> torch.Tensor:
    """`reference.linear`, `linear_int8` or `linear_w8a16`: x [T, inputs], dense but for its rows, -> [T, outputs].

    Results are rounded to x's type, or are the sums themselves if `out_dtype` is fp32.
    """
    kind = weight.kind
    if weight.for_cuda and x.dtype == weight.dtype and linear_cuda.serves(x, kind):
        return linear_cuda.run(x, weight, bias, out_dtype)
    if weight.for_cuda or kind == "plain" or library.of(x, "linear") is None or not x.is_cpu or x.dtype != weight.dtype:
        return _reference(x, weight, bias, out_dtype)
    if kind == "tiles":
        return _linear(x, weight.data, bias, weight.outputs, out_dtype)
    if kind == "int4":
        return _linear_int4(x, weight.data, bias, weight.outputs, out_dtype)
    assert weight.scales is not None
    if kind == "w8a16":
        return _linear_w8a16(x, weight.data, weight.scales, bias, out_dtype)
    assert weight.totals is not None
    return _linear_int8(x, weight.data, weight.scales, weight.totals, bias, out_dtype)


def _reference(
    x: torch.Tensor, weight: PackedWeight, bias: torch.Tensor | None, out_dtype: torch.dtype | None
) -> torch.Tensor:
    if weight.kind in ("int8", "w8a16"):
        assert weight.scales is not None
        product = reference.linear_int8 if weight.kind == "int8" else reference.linear_w8a16
        return product(x, weight.numbers(), weight.scales, bias, out_dtype)
    return reference.linear(x, weight.dense(), bias, out_dtype)


def _space(x: torch.Tensor) -> torch.Tensor:
    """As much as `linear_workspace` in kernels/csrc/cpu/linear.h says; the bodies check it."""
    rows, inputs = x.shape
    return _workspace.of((-(-rows // 16) + torch.get_num_threads()) * 64 * -(-inputs // INT4_GROUP) * INT4_GROUP)


def _linear(
    x: torch.Tensor,
    tiles: torch.Tensor,
    bias: torch.Tensor | None,
    outputs: int,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    out = x.new_empty(x.shape[0], outputs, dtype=out_dtype)
    library.cpu.linear(out, x, tiles, bias, _space(x))  # type: ignore[union-attr]
    return out


def _linear_int8(
    x: torch.Tensor,
    tiles: torch.Tensor,
    scales: torch.Tensor,
    totals: torch.Tensor,
    bias: torch.Tensor | None,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    out = x.new_empty(x.shape[0], scales.shape[0], dtype=out_dtype)
    library.cpu.linear_int8(out, x, tiles, scales, totals, bias, _space(x))  # type: ignore[union-attr]
    return out


def _linear_w8a16(
    x: torch.Tensor,
    tiles: torch.Tensor,
    scales: torch.Tensor,
    bias: torch.Tensor | None,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    out = x.new_empty(x.shape[0], scales.shape[0], dtype=out_dtype)
    library.cpu.linear_w8a16(out, x, tiles, scales, bias, _space(x))  # type: ignore[union-attr]
    return out


def _linear_int4(
    x: torch.Tensor,
    groups: torch.Tensor,
    bias: torch.Tensor | None,
    outputs: int,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    out = x.new_empty(x.shape[0], outputs, dtype=out_dtype)
    library.cpu.linear_int4(out, x, groups, bias, _space(x))  # type: ignore[union-attr]
    return out


def linear_cost(rows: int, outputs: int, inputs: int, itemsize: int) -> Cost:
    return Cost((rows * (inputs + outputs) + inputs * outputs) * itemsize, 2 * rows * inputs * outputs)


def linear_int8_cost(rows: int, outputs: int, inputs: int) -> Cost:
    return Cost(2 * rows * (inputs + outputs) + (inputs + 8) * outputs, 2 * rows * inputs * outputs)


def linear_w8a16_cost(rows: int, outputs: int, inputs: int) -> Cost:
    return Cost(2 * rows * (inputs + outputs) + (inputs + 4) * outputs, 2 * rows * inputs * outputs)


def linear_int4_cost(rows: int, outputs: int, inputs: int) -> Cost:
    weight = outputs * (inputs // 2 + 4 * -(-inputs // INT4_GROUP))
    return Cost(2 * rows * (inputs + outputs) + weight, 2 * rows * inputs * outputs)


def _fake(x: torch.Tensor, outputs: int, out_dtype: torch.dtype | None = None) -> torch.Tensor:
    return x.new_empty(x.shape[0], outputs, dtype=out_dtype)


register(
    "linear(Tensor x, Tensor tiles, Tensor? bias, int outputs, ScalarType? out_dtype=None) -> Tensor",
    _linear,
    fake=lambda x, tiles, bias, outputs, out_dtype=None: _fake(x, outputs, out_dtype),
    cost=linear_cost,
    built=("cpu",),
)
register(
    "linear_int8(Tensor x, Tensor tiles, Tensor scales, Tensor totals, Tensor? bias, ScalarType? out_dtype=None) "
    "-> Tensor",
    _linear_int8,
    fake=lambda x, tiles, scales, totals, bias, out_dtype=None: _fake(x, scales.shape[0], out_dtype),
    cost=linear_int8_cost,
)
register(
    "linear_w8a16(Tensor x, Tensor tiles, Tensor scales, Tensor? bias, ScalarType? out_dtype=None) -> Tensor",
    _linear_w8a16,
    fake=lambda x, tiles, scales, bias, out_dtype=None: _fake(x, scales.shape[0], out_dtype),
    cost=linear_w8a16_cost,
)
register(
    "linear_int4(Tensor x, Tensor groups, Tensor? bias, int outputs, ScalarType? out_dtype=None) -> Tensor",
    _linear_int4,
    fake=lambda x, groups, bias, outputs, out_dtype=None: _fake(x, outputs, out_dtype),
    cost=linear_int4_cost,
)
