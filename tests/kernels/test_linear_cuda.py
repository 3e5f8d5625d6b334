"""Products with quantised weights by the CUDA bodies, under the emulator and on CUDA."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import kernels
from kernels import Quantization, library
from kernels.formats.cuda import GROUP, CudaWeight, pack_int4, pack_int8
from kernels.formats.int4 import MAX_ROWS
from kernels.formats.int8 import number_limit
from tests.kernels.conftest import Body

every_shape = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
rows = st.sampled_from([0, 1, 2, 8, 9, 16, 17, 33, 65])
outputs = st.sampled_from([1, 15, 16, 17, 40, 65])
inputs = st.sampled_from([8, 64, 120, 128, 136, 1152, 1400])


def int4(outputs: int, inputs: int, device: torch.device) -> tuple[tuple[torch.Tensor, torch.Tensor], torch.Tensor]:
    """A random weight, packed, and as it should be taken."""
    groups = -(-inputs // GROUP)
    levels = torch.randint(16, (outputs, inputs), device=device)
    steps, zeros = (torch.randn(outputs, groups, device=device).bfloat16() for _ in range(2))
    wide = [x.double().repeat_interleave(GROUP, 1)[:, :inputs] for x in (steps, zeros)]
    return pack_int4(levels, steps, zeros), (wide[0] * levels + wide[1]).bfloat16()


def int8_alone(outputs: int, inputs: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """All numbers that there are: a random weight, its scales, and the weight packed."""
    weight = torch.randint(-128, 128, (outputs, inputs), device=device, dtype=torch.int8)
    return weight, torch.rand(outputs, device=device) / 100, pack_int8(weight, alone=True)


def run_int4(body: Body, x: torch.Tensor, packed: tuple[torch.Tensor, torch.Tensor], outputs: int) -> torch.Tensor:
    guarded = torch.full((len(x) + 2, outputs), torch.nan, dtype=torch.bfloat16, device=body[1])
    body[0].linear_int4(guarded[1:-1], x, *packed, None)
    assert guarded[[0, -1]].isnan().all()
    return guarded[1:-1]


@every_shape
@given(rows=rows, outputs=outputs, inputs=inputs, bias=st.booleans(), seed=st.integers(0, 99))
def test_int4_is_the_product_of_fp64(body: Body, rows: int, outputs: int, inputs: int, bias: bool, seed: int) -> None:
    torch.manual_seed(seed)
    # Rows of x lie among others; what is beyond them is not a number.
    x = torch.full((rows, inputs + 16), torch.nan, dtype=torch.bfloat16, device=body[1])[:, :inputs]
    x.copy_(torch.randn(rows, inputs))
    packed, weight = int4(outputs, inputs, body[1])
    offset = torch.randn(outputs, device=body[1]).bfloat16() if bias else None
    out = torch.full((rows, outputs), torch.nan, dtype=torch.bfloat16, device=body[1])
    body[0].linear_int4(out, x, *packed, offset)
    expected = x.double() @ weight.double().T + (0 if offset is None else offset.double())
    scale = (x.double().abs() @ weight.double().abs().T).clamp_min(1)
    torch.testing.assert_close(out.double() / scale, expected / scale, rtol=0, atol=2**-8)


@every_shape
@given(outputs=outputs, inputs=inputs, seed=st.integers(0, 99))
def test_int4_becomes_bf16_with_one_rounding(body: Body, outputs: int, inputs: int, seed: int) -> None:
    torch.manual_seed(seed)
    packed, weight = int4(outputs, inputs, body[1])
    out = torch.full((outputs, inputs), torch.nan, dtype=torch.bfloat16, device=body[1])
    body[0].dequantize_int4(out, *packed)
    assert torch.equal(out, weight)


@every_shape
@given(
    rows=rows,
    outputs=outputs,
    inputs=inputs | st.just(77),
    limit=st.integers(1, 127 * 128 + 63),
    seed=st.integers(0, 99),
)
def test_int8_is_the_product_of_rounded_rows(
    body: Body, rows: int, outputs: int, inputs: int, limit: int, seed: int
) -> None:
    torch.manual_seed(seed)
    x = torch.randn(rows, inputs, device=body[1]).bfloat16()
    weight = torch.randint(-127, 128, (outputs, inputs), device=body[1], dtype=torch.int8)
    limit = min(limit, number_limit(weight))
    scales, bias = torch.rand(outputs, device=body[1]) / 100, torch.randn(outputs, device=body[1]).bfloat16()
    digits = torch.full((rows, 2, -(-inputs // GROUP) * GROUP), -1, dtype=torch.int8, device=body[1])
    x_scales = torch.full((rows,), torch.nan, device=body[1])
    out = torch.full((rows, outputs), torch.nan, dtype=torch.bfloat16, device=body[1])
    body[0].linear_int8(out, x, pack_int8(weight), scales, bias, digits, x_scales, limit)
    torch.testing.assert_close(x_scales, x.float().abs().amax(1) / limit)
    numbers = (digits[:, 0].int() * 128 + digits[:, 1])[:, :inputs]
    assert ((numbers - x / x_scales[:, None]).abs() <= 0.5 + 2**-22 * limit).all() and not digits[..., inputs:].any()
    expected = numbers.double() @ weight.double().T * x_scales[:, None].double() * scales + bias.double()
    torch.testing.assert_close(out.double(), expected, rtol=2**-8, atol=1e-5)


@every_shape
@given(rows=rows, outputs=outputs, inputs=inputs, bias=st.booleans(), seed=st.integers(0, 99))
def test_int8_alone_is_the_product_of_fp64(
    body: Body, rows: int, outputs: int, inputs: int, bias: bool, seed: int
) -> None:
    torch.manual_seed(seed)
    x = torch.full((rows, inputs + 16), torch.nan, dtype=torch.bfloat16, device=body[1])[:, :inputs]
    x.copy_(torch.randn(rows, inputs))
    weight, scales, packed = int8_alone(outputs, inputs, body[1])
    offset = torch.randn(outputs, device=body[1]).bfloat16() if bias else None
    guarded = torch.full((rows + 2, outputs), torch.nan, dtype=torch.bfloat16, device=body[1])
    body[0].linear_w8a16(guarded[1:-1], x, packed, scales, offset)
    assert guarded[[0, -1]].isnan().all()
    whole = weight.double() * scales.double()[:, None]
    expected = x.double() @ whole.T + (0 if offset is None else offset.double())
    # Sums in fp32, rounded once.
    reach = x.double().abs() @ whole.abs().T
    assert ((guarded[1:-1].double() - expected).abs() <= 2**-8 * expected.abs() + 1e-6 * reach + 1e-30).all()


def test_int8_of_a_row_of_zeros_is_the_bias(body: Body) -> None:
    x, bias = torch.zeros(1, 64, device=body[1]).bfloat16(), torch.arange(4, device=body[1]).bfloat16()
    digits, scales = torch.empty(1, 2, GROUP, device=body[1], dtype=torch.int8), torch.ones(4, device=body[1])
    out = torch.empty(1, 4, device=body[1]).bfloat16()
    tiles = pack_int8(torch.ones(4, 64, device=body[1], dtype=torch.int8))
    body[0].linear_int8(out, x, tiles, scales, bias, digits, scales[:1].clone(), 127)
    assert torch.equal(out[0], bias)


@pytest.mark.parametrize("wrong", [torch.nan, torch.inf])
def test_int8_of_a_row_that_is_not_finite_is_not_a_number(body: Body, wrong: float) -> None:
    x = torch.ones(2, 300, device=body[1]).bfloat16()
    x[1, 270] = wrong
    digits, x_scales = torch.empty(2, 2, 3 * GROUP, device=body[1], dtype=torch.int8), torch.ones(2, device=body[1])
    tiles = pack_int8(torch.ones(4, 300, device=body[1], dtype=torch.int8))
    out = torch.empty(2, 4, device=body[1]).bfloat16()
    body[0].linear_int8(out, x, tiles, torch.ones(4, device=body[1]), None, digits, x_scales, 127)
    assert out[1].isnan().all() and out[0].isfinite().all()


def test_a_row_does_not_depend_on_its_batch(body: Body) -> None:
    x = torch.randn(70, 1400, device=body[1]).bfloat16()
    packed, _ = int4(40, 1400, body[1])
    together = run_int4(body, x, packed, 40)
    _, scales, tiles = int8_alone(40, 1400, body[1])
    alone = torch.empty(70, 40, device=body[1]).bfloat16()
    body[0].linear_w8a16(alone, x, tiles, scales, None)
    for begin, end in [(0, 1), (3, 12), (50, 67), (60, 70), (30, 70)]:
        assert torch.equal(run_int4(body, x[begin:end], packed, 40), together[begin:end])
        part = torch.empty(end - begin, 40, device=body[1]).bfloat16()
        body[0].linear_w8a16(part, x[begin:end], tiles, scales, None)
        assert torch.equal(part, alone[begin:end])


@pytest.mark.parametrize("quantize", ["int8", "w8a16", "int4"])
@pytest.mark.parametrize("rows", [1, 17, MAX_ROWS + 1])
def test_the_op_packs_and_multiplies_as_the_specification_does(body: Body, quantize: Quantization, rows: int) -> None:
    x, bias = torch.randn(rows, 200, device=body[1]).bfloat16(), torch.randn(40, device=body[1]).bfloat16()
    original = torch.randn(40, 200, device=body[1]).bfloat16()
    weight = kernels.pack_weight(original, quantize)
    with library.using(None):
        elsewhere = kernels.pack_weight(original.cpu(), quantize)
    assert isinstance(weight, CudaWeight) and torch.equal(weight.dense().cpu(), elsewhere.dense())
    found = weight(x, bias)
    if quantize != "int4":
        with library.using(None):
            expected = elsewhere(x.cpu(), bias.cpu())
        # Sums of integers are exact, those of fp32 differ by their order.
        near = {"rtol": 0.0, "atol": 0.0} if quantize == "int8" else {"rtol": 2**-7, "atol": 1e-4}
        torch.testing.assert_close(found.cpu(), expected, **near)
    else:
        expected = x.double() @ weight.dense().double().T + bias.double()
        torch.testing.assert_close(found.double(), expected, rtol=2**-7, atol=2**-4)
    # The same sums without the last rounding.
    assert torch.equal(weight(x, bias, torch.float32).bfloat16(), found)
    # Not in rows of 16 bytes.
    shifted = torch.randn(rows, 201, device=body[1]).bfloat16()[:, 1:].copy_(x)
    assert torch.equal(weight(shifted, bias), found)


def test_a_wrong_argument_is_named(body: Body) -> None:
    x, out = torch.zeros(1, 64, device=body[1]).bfloat16(), torch.zeros(1, 4, device=body[1]).bfloat16()
    (tiles, steps), _ = int4(4, 64, body[1])
    with pytest.raises(ValueError, match="tiles has 1024 elements instead of 2048"):
        body[0].linear_int4(torch.zeros(1, 20, device=body[1]).bfloat16(), x, tiles, steps, None)
    with pytest.raises(ValueError, match="x must have rows that are multiples of 16 bytes"):
        body[0].linear_int4(out, x[:, :60].contiguous(), tiles, steps, None)
    with pytest.raises(ValueError, match="steps has another type"):
        body[0].linear_int4(out, x, tiles, steps.float(), None)
    _, scales, numbers = int8_alone(4, 64, body[1])
    with pytest.raises(ValueError, match="tiles has 1024 elements instead of 2048"):
        body[0].linear_w8a16(out, x, numbers[:1024], scales, None)
    with pytest.raises(ValueError, match="scales has another type"):
        body[0].linear_w8a16(out, x, numbers, scales.bfloat16(), None)
