"""Quantised weights: what becomes of them, and products with them bit for bit on every instruction set."""

from __future__ import annotations

from typing import get_args

import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import kernels
from kernels import Quantization, library, reference
from kernels.formats.int4 import GROUP, dequantize_int4, quantize_int4
from kernels.formats.int8 import quantize_int8

QUANTIZATIONS = get_args(Quantization)
every_shape = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
rows = st.one_of(st.integers(0, 6), st.sampled_from([15, 16, 17, 31, 32, 33, 50]))
outputs = st.one_of(st.integers(1, 70), st.sampled_from([96, 128]))
inputs = st.one_of(st.integers(1, 70), st.sampled_from([127, 128, 129, 288]))


def random(rows: int, outputs: int, inputs: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """x, weight and bias."""
    torch.manual_seed(seed)
    x, weight, bias = (torch.randn(*shape).bfloat16() for shape in ((rows, inputs), (outputs, inputs), (outputs,)))
    return x, weight, bias


def test_int8_weights_are_off_by_half_a_step_at_most() -> None:
    _, weight, _ = random(0, 1500, 70)
    weight[3] = 0
    numbers, scales = quantize_int8(weight)
    error = (numbers.double() * scales.double()[:, None] - weight.double()).abs()
    assert bool((error <= 0.5001 * scales.double()[:, None]).all())
    assert numbers.abs().amax() == 127 and not numbers[3].any()


def test_int4_weights_are_off_by_half_a_step_and_a_rounding_at_most() -> None:
    _, weight, _ = random(0, 1500, 300)
    weight[3] = 0
    weight[4] = 7
    levels, steps, zeros = quantize_int4(weight)
    assert levels.shape == (1500, 3, GROUP) and levels.amax() == 15
    found = dequantize_int4(levels, steps, zeros)[:, :300].double()
    # Steps and zeros have eight bits: fifteen steps and the smallest weight may each be off by a 256th of them.
    slack = 0.5 * steps.double() + 2**-8 * (15 * steps.double() + zeros.double().abs()) + 2**-8 * 7
    error = (found - weight.double()).abs()
    assert bool((error <= slack.repeat_interleave(GROUP, 1)[:, :300]).all())
    assert not found[3].any() and bool((found[4] == 7).all())


def test_int4_is_as_near_as_sixteen_levels_allow() -> None:
    _, weight, _ = random(0, 256, 1024)
    error = dequantize_int4(*quantize_int4(weight)).double() - weight.double()
    # Uniform levels over the range of 128 normal numbers: about 0.35 apart.
    assert 0.08 < float(error.square().mean().sqrt()) < 0.105


@pytest.mark.parametrize("shape", [(1, 1), (16, 128), (50, 40), (33, 300)])
def test_packing_loses_nothing_more(isa: str, shape: tuple[int, int]) -> None:
    _, weight, _ = random(0, *shape)
    numbers, scales = quantize_int8(weight)
    packed = kernels.pack_weight(weight, "int8")
    assert torch.equal(packed.numbers(), numbers)
    assert torch.equal(packed.dense(), (numbers.float() * scales[:, None]).bfloat16())
    assert torch.equal(packed.totals, numbers.sum(-1, dtype=torch.int32))
    alone = kernels.pack_weight(weight, "w8a16")
    assert torch.equal(alone.numbers(), numbers) and torch.equal(alone.dense(), packed.dense())
    expected = dequantize_int4(*quantize_int4(weight))[:, : shape[1]]
    assert torch.equal(kernels.pack_weight(weight, "int4").dense(), expected)


def test_a_product_costs_what_it_reads_and_writes(isa: str) -> None:
    """Three rows of bf16 in and out, and per output: the numbers, with scale and sum, or steps and zeros of groups."""
    _, weight, _ = random(0, 32, 256)
    rows = 2 * 3 * (32 + 256)
    for quantize, an_output in ((None, 2 * 256), ("int8", 256 + 8), ("w8a16", 256 + 4), ("int4", 128 + 2 * 4)):
        cost = kernels.pack_weight(weight, quantize).cost(3)  # type: ignore[arg-type]
        assert (cost.bytes, cost.flops) == (rows + 32 * an_output, 2 * 3 * 32 * 256)


@every_shape
@given(rows=rows, outputs=outputs, inputs=inputs, bias=st.booleans(), seed=st.integers(0, 99))
def test_int8_products_are_those_of_the_specification(
    isa: str, rows: int, outputs: int, inputs: int, bias: bool, seed: int
) -> None:
    x, weight, offset = random(rows, outputs, inputs, seed)
    if rows > 1:
        x[1] = 0
    packed = kernels.pack_weight(weight, "int8")
    given_bias = offset if bias else None
    expected = reference.linear_int8(x, packed.numbers(), packed.scales, packed.limit, given_bias)
    assert torch.equal(packed(x, given_bias), expected)


@pytest.mark.parametrize("inputs", [64, 4100, 40_000])
def test_no_int8_sum_leaves_int32(isa: str, inputs: int) -> None:
    """The largest sums that there can be: all weights and all activations are the largest of their kinds."""
    packed = kernels.pack_weight(torch.ones(20, inputs).bfloat16(), "int8")
    assert packed.limit == min(127 * 128 + 63, (2**31 - 1) // (127 * inputs) - 64)
    x = torch.ones(30, inputs).bfloat16()
    x[1::2] = -1
    expected = reference.linear_int8(x, packed.numbers(), packed.scales, packed.limit, None, torch.float32)
    torch.testing.assert_close(expected[:2, 0], torch.tensor([1.0, -1]) * inputs, rtol=1e-6, atol=0)
    assert torch.equal(packed(x, None, torch.float32), expected)


@every_shape
@given(rows=rows, outputs=outputs, inputs=inputs, bias=st.booleans(), seed=st.integers(0, 99))
def test_int4_products_are_those_of_the_weights(
    isa: str, rows: int, outputs: int, inputs: int, bias: bool, seed: int
) -> None:
    x, weight, offset = random(rows, outputs, inputs, seed)
    packed = kernels.pack_weight(weight, "int4")
    given_bias = offset if bias else None
    found = packed(x, given_bias)
    if isa != "avx2":
        assert torch.equal(found, kernels.pack_weight(packed.dense())(x, given_bias))
        return
    # There weights are not rounded to bf16, and x is off by half of the last of 16 bits of its group's largest.
    levels, steps, zeros = (part.double() for part in quantize_int4(weight))
    wide = (levels * steps[..., None] + zeros[..., None]).flatten(1)[:, :inputs]
    expected = x.double() @ wide.T + (offset.double() if bias else 0)
    magnitude = x.double().abs() @ wide.abs().T
    grouped = F.pad(x.double().abs(), (0, -inputs % GROUP)).unflatten(1, (-1, GROUP))
    off = (grouped.amax(-1, keepdim=True) / 65534).expand_as(grouped).flatten(1)[:, :inputs] @ wide.abs().T
    slack = 2**-8 * expected.abs() + 2**-20 * (magnitude + 1) + 1.001 * off
    assert bool(((found.double() - expected).abs() <= slack).all())


@pytest.mark.parametrize("quantize", QUANTIZATIONS)
@pytest.mark.parametrize("wrong", [torch.nan, torch.inf, -torch.inf])
def test_what_is_not_finite_stays_so_and_in_its_row(isa: str, quantize: Quantization, wrong: float) -> None:
    x, weight, _ = random(9, 50, 300)
    packed = kernels.pack_weight(weight, quantize)
    expected = packed(x)
    x[3, 130] = wrong
    found = packed(x)
    assert not found[3].isfinite().any()
    with library.using(None):
        assert not packed(x)[3].isfinite().any()
    others = torch.arange(9) != 3
    assert torch.equal(found[others], expected[others])


@every_shape
@given(rows=rows, outputs=outputs, inputs=inputs, bias=st.booleans(), seed=st.integers(0, 99))
def test_w8a16_products_are_those_of_fp64(
    isa: str, rows: int, outputs: int, inputs: int, bias: bool, seed: int
) -> None:
    x, weight, offset = random(rows, outputs, inputs, seed)
    packed = kernels.pack_weight(weight, "w8a16")
    rounded, added = packed.numbers().double() * packed.scales.double()[:, None], offset.double() if bias else 0
    wide, magnitude = x.double() @ rounded.T + added, x.double().abs() @ rounded.abs().T + abs(added)
    for body in (library.cpu, None):
        with library.using(body):
            found = packed(x, offset if bias else None)
        assert found.shape == wide.shape
        # One rounding to bf16, and what fp32 sums lose.
        assert bool(((found.double() - wide).abs() <= 2**-8 * wide.abs() + 2**-20 * magnitude).all())


@pytest.mark.parametrize("quantize", QUANTIZATIONS)
def test_the_specification_is_near_the_product_of_fp64(quantize: Quantization) -> None:
    x, weight, bias = random(20, 64, 512)
    with library.using(None):
        found = kernels.pack_weight(weight, quantize)(x, bias).double()
    expected = x.double() @ weight.double().T + bias.double()
    error = float((found - expected).norm() / expected.norm())
    assert error < {"int8": 0.01, "w8a16": 0.01, "int4": 0.11}[quantize]


@pytest.mark.parametrize("quantize", QUANTIZATIONS)
@pytest.mark.parametrize("inputs", [40, 288, 4100])
def test_a_row_depends_neither_on_its_batch_nor_on_threads(isa: str, quantize: Quantization, inputs: int) -> None:
    x, weight, bias = random(150, 200, inputs)
    packed = kernels.pack_weight(weight, quantize)
    alone = torch.cat([packed(row[None], bias) for row in x])
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            for count in (1, 2, 5, 16, 17, 32, 33, 150):
                assert torch.equal(packed(x[:count], bias), alone[:count])
    finally:
        torch.set_num_threads(1)
    order = torch.randperm(150)
    assert torch.equal(packed(x[order], bias), alone[order])


@pytest.mark.parametrize("quantize", QUANTIZATIONS)
@pytest.mark.parametrize("count", [1, 3, 20, 40])
def test_nothing_is_read_beyond_x_or_written_around_the_result(isa: str, quantize: Quantization, count: int) -> None:
    x, weight, bias = random(count, 50, 40)
    among_others = torch.full((count, 72), torch.nan).bfloat16()
    among_others[:, 16:56] = x
    packed = kernels.pack_weight(weight, quantize)
    expected = packed(x, bias)
    assert torch.equal(packed(among_others[:, 16:56], bias), expected)
    guarded = torch.full((count + 2, 50), torch.nan).bfloat16()
    workspace = torch.full((2**17,), 0xFF, dtype=torch.uint8)  # not a number
    body = library.of(x)
    assert body is not None
    if quantize == "int8":
        body.linear_int8(guarded[1:-1], x, packed.data, packed.scales, packed.totals, bias, workspace, packed.limit)
    elif quantize == "w8a16":
        body.linear_w8a16(guarded[1:-1], x, packed.data, packed.scales, bias, workspace)
    else:
        body.linear_int4(guarded[1:-1], x, packed.data, bias, workspace)
    assert torch.equal(guarded[1:-1], expected)
    assert guarded[0].isnan().all() and guarded[-1].isnan().all()


def test_the_ops_keep_torchs_rules(isa: str) -> None:
    x, weight, bias = random(3, 50, 40)
    packed = kernels.pack_weight(weight, "int8")
    torch.library.opcheck(
        torch.ops.roundhouse.linear_int8.default, (x, packed.data, packed.scales, packed.totals, bias, packed.limit)
    )
    torch.library.opcheck(torch.ops.roundhouse.linear_w8a16.default, (x, packed.data, packed.scales, bias))
    groups = kernels.pack_weight(weight, "int4").data
    torch.library.opcheck(torch.ops.roundhouse.linear_int4.default, (x, groups, bias, 50))


@pytest.mark.parametrize("quantize", QUANTIZATIONS)
def test_only_bf16_is_quantised(quantize: Quantization) -> None:
    with pytest.raises(ValueError, match=r"only bfloat16 weights can be quantised, not torch\.float32"):
        kernels.pack_weight(torch.zeros(1, 1), quantize)


def test_a_wrong_argument_is_named(isa: str) -> None:
    body = library.cpu
    assert body is not None
    x, weight, bias = random(3, 50, 40)
    packed, groups = kernels.pack_weight(weight, "int8"), kernels.pack_weight(weight, "int4").data
    out, workspace = torch.empty(3, 50).bfloat16(), torch.empty(2**17, dtype=torch.uint8)
    tiles, scales, totals = packed.data, packed.scales, packed.totals
    with pytest.raises(ValueError, match="x must be bfloat16"):
        body.linear_int4(out.float(), x.float(), groups, None, workspace)
    with pytest.raises(ValueError, match="weight has 4351 elements"):
        body.linear_int4(out, x, groups[:-1], bias, workspace)
    with pytest.raises(ValueError, match="x must be bfloat16"):
        body.linear_int8(out.float(), x.float(), tiles, scales, totals, None, workspace, 127)
    with pytest.raises(ValueError, match="scales has 49 elements"):
        body.linear_int8(out, x, tiles, scales[:-1], totals, bias, workspace, 127)
    with pytest.raises(ValueError, match="scales has 51 elements"):
        body.linear_w8a16(out, x, tiles, torch.ones(51), bias, workspace)
    with pytest.raises(ValueError, match="weight has 4095 elements"):
        body.linear_w8a16(out, x, tiles[:-1], scales, bias, workspace)
    with pytest.raises(ValueError, match="totals has another type"):
        body.linear_int8(out, x, tiles, scales, totals.float(), bias, workspace, 127)
    with pytest.raises(ValueError, match="limit is 16320"):
        body.linear_int8(out, x, tiles, scales, totals, bias, workspace, 16320)
