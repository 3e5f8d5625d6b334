"""Products with weights on every instruction set, against fp64."""

from __future__ import annotations

import mmap
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import kernels
from kernels import library, memory
from kernels.formats import FORMATS, PackedWeight

DTYPES = [torch.float32, torch.bfloat16]
every_shape = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
rows = st.one_of(st.integers(0, 6), st.sampled_from([15, 16, 17, 31, 32, 33, 50]))
outputs = st.one_of(st.integers(1, 70), st.sampled_from([96, 128]))
inputs = st.one_of(st.integers(1, 70), st.sampled_from([128, 288]))


def random(rows: int, outputs: int, inputs: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """x, weight and bias."""
    return tuple(torch.randn(*shape).to(dtype) for shape in ((rows, inputs), (outputs, inputs), (outputs,)))  # type: ignore[return-value]


def check_close(found: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
    """Within one rounding to the type, and what fp32 sums lose of the sum of magnitudes."""
    wide = x.double() @ weight.double().T + (0 if bias is None else bias.double())
    magnitude = x.double().abs() @ weight.double().abs().T + (0 if bias is None else bias.double().abs())
    rounding = 2**-8 if found.dtype == torch.bfloat16 else 2**-23
    excess = (found.double() - wide).abs() - rounding * wide.abs() - 2**-20 * magnitude
    assert found.shape == wide.shape and bool((excess <= 0).all())


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@every_shape
@given(rows=rows, outputs=outputs, inputs=inputs, bias=st.booleans(), seed=st.integers(0, 99))
def test_linear_is_that_of_fp64(
    isa: str, dtype: torch.dtype, rows: int, outputs: int, inputs: int, bias: bool, seed: int
) -> None:
    torch.manual_seed(seed)
    x, weight, offset = random(rows, outputs, inputs, dtype)
    found = kernels.pack_weight(weight)(x, offset if bias else None)
    check_close(found, x, weight, offset if bias else None)


@pytest.mark.parametrize("quantize", [None, *get_args(kernels.Quantization)], ids=str)
@every_shape
@given(rows=rows, outputs=outputs, inputs=inputs, bias=st.booleans(), seed=st.integers(0, 99))
def test_sums_may_stay_in_fp32(
    isa: str, quantize: kernels.Quantization | None, rows: int, outputs: int, inputs: int, bias: bool, seed: int
) -> None:
    """The same sums bit for bit, without the last rounding; nothing is written around them."""
    torch.manual_seed(seed)
    x, weight, offset = random(rows, outputs, inputs, torch.bfloat16)
    packed = kernels.pack_weight(weight, quantize)
    given_bias = offset if bias else None
    found = packed(x, given_bias, torch.float32)
    assert found.dtype == torch.float32
    assert torch.equal(found.bfloat16(), packed(x, given_bias))
    if quantize != "int8" and (quantize, isa) != ("int4", "avx2"):  # these round x
        exact = packed.dense() if quantize != "w8a16" else packed.numbers() * packed.scales[:, None]  # type: ignore[index]
        check_close(found, x, exact, given_bias)
    with library.using(None):
        plain = packed(x, given_bias, torch.float32)
    if quantize == "int8":
        assert torch.equal(plain, found)
    elif (quantize, isa) != ("int4", "avx2"):
        torch.testing.assert_close(plain, found, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_many_rows_are_cut_into_parts_that_fit_the_cache(isa: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x, weight, bias = random(150, 40, 4100, dtype)
    check_close(kernels.pack_weight(weight)(x, bias), x, weight, bias)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@every_shape
@given(outputs=outputs, inputs=inputs, seed=st.integers(0, 99))
def test_a_row_does_not_depend_on_its_batch(isa: str, dtype: torch.dtype, outputs: int, inputs: int, seed: int) -> None:
    torch.manual_seed(seed)
    x, weight, bias = random(50, outputs, inputs, dtype)
    packed = kernels.pack_weight(weight)
    alone = torch.cat([packed(row[None], bias) for row in x])
    for count in (2, 5, 16, 17, 31, 33, 50):
        assert torch.equal(packed(x[:count], bias), alone[:count])
    order = torch.randperm(50)
    assert torch.equal(packed(x[order], bias), alone[order])


@pytest.mark.parametrize(
    ("dtype", "quantize"),
    [
        (torch.float32, None),
        (torch.bfloat16, None),
        *((torch.bfloat16, each) for each in get_args(kernels.Quantization)),
    ],
    ids=str,
)
@pytest.mark.parametrize("inputs", [1111, 4100])
def test_a_row_does_not_depend_on_how_a_large_product_is_cut(
    isa: str, dtype: torch.dtype, quantize: kernels.Quantization | None, inputs: int
) -> None:
    """By rows, and of many inputs also along these."""
    torch.manual_seed(0)
    x, weight, bias = random(300, 50, inputs, dtype)
    packed = kernels.pack_weight(weight, quantize)
    alone = torch.cat([packed(row[None], bias) for row in x])
    for count in (47, 48, 65, 200, 256, 257, 300):
        assert torch.equal(packed(x[:count], bias), alone[:count])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_result_does_not_depend_on_the_number_of_threads(isa: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    for count in (1, 3, 40, 70):
        x, weight, bias = random(count, 1000, 200, dtype)
        packed = kernels.pack_weight(weight)
        expected = packed(x, bias)
        try:
            for threads in (2, 3):
                torch.set_num_threads(threads)
                assert torch.equal(packed(x, bias), expected)
        finally:
            torch.set_num_threads(1)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("count", [1, 3, 20])
def test_nothing_is_read_beyond_x_or_written_around_the_result(isa: str, dtype: torch.dtype, count: int) -> None:
    torch.manual_seed(0)
    x, weight, bias = random(count, 50, 40, dtype)
    among_others = torch.full((count, 72), torch.nan).to(dtype)
    among_others[:, 16:56] = x
    packed = kernels.pack_weight(weight)
    expected = packed(x, bias)
    assert torch.equal(packed(among_others[:, 16:56], bias), expected)
    guarded = torch.full((count + 2, 50), torch.nan).to(dtype)
    workspace = torch.full((2**17,), 0xFF, dtype=torch.uint8)  # not a number in either type
    body = library.of(x)
    assert body is not None
    body.linear(guarded[1:-1], x, packed.data, bias, workspace)
    assert torch.equal(guarded[1:-1], expected)
    assert guarded[0].isnan().all() and guarded[-1].isnan().all()
    wide = torch.full((count + 2, 50), torch.nan)
    body.linear(wide[1:-1], x, packed.data, bias, workspace)
    assert torch.equal(wide[1:-1].to(dtype), expected)
    assert wide[0].isnan().all() and wide[-1].isnan().all()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_packed_weight_gives_back_what_it_was_packed_from(isa: str, dtype: torch.dtype) -> None:
    for shape in ((1, 1), (16, 32), (50, 40)):
        weight = torch.randn(shape).to(dtype)
        assert torch.equal(kernels.pack_weight(weight).dense(), weight)


@dataclass(frozen=True, slots=True)
class Halves(PackedWeight):
    """A format of no more than packing and unpacking."""

    @classmethod
    def pack(cls, weight: torch.Tensor) -> Halves:
        outputs, inputs = weight.shape
        return cls(outputs, inputs, weight.dtype, weight.half())

    def dense(self) -> torch.Tensor:
        return self.data.to(self.dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_format_runs_once_it_packs_and_unpacks(
    built: str, monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype
) -> None:
    monkeypatch.setitem(FORMATS, "halves", Halves)
    x, weight, bias = random(3, 50, 40, dtype)
    packed = FORMATS["halves"].pack(weight)
    check_close(packed(x, bias), x, weight.half().to(dtype), bias)
    assert packed(x, bias, torch.float32).dtype == torch.float32


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_plain_body_takes_weights_that_were_packed_for_another(isa: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x, weight, bias = random(3, 50, 40, dtype)
    packed = kernels.pack_weight(weight)
    with library.using(None):
        check_close(packed(x, bias), x, weight, bias)
        check_close(kernels.pack_weight(weight)(x, bias), x, weight, bias)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_op_keeps_torchs_rules(isa: str, dtype: torch.dtype) -> None:
    x, weight, bias = random(3, 50, 40, dtype)
    packed = kernels.pack_weight(weight).data
    for out_dtype in (None, torch.float32):
        torch.library.opcheck(torch.ops.roundhouse.linear.default, (x, packed, bias, 50, out_dtype))


def test_a_wrong_argument_is_named(isa: str) -> None:
    body = library.cpu
    assert body is not None
    x, weight, bias = random(3, 50, 40, torch.float32)
    packed, out, workspace = kernels.pack_weight(weight).data, torch.empty(3, 50), torch.empty(2**17, dtype=torch.uint8)
    for arguments, message in (
        ((out, x.double(), packed, bias, workspace), "x must be float32 or bfloat16"),
        ((out.bfloat16(), x, packed, bias, workspace), "out has another type"),
        ((out, x, packed, bias.bfloat16(), workspace), "bias has another type"),
        ((out[:2], x, packed, bias, workspace), "out has 2 elements"),
        ((out, x.T.contiguous().T, packed, bias, workspace), "x must be contiguous but for its rows"),
        ((out, x, packed[:-1], bias, workspace), "weight has 10239 elements"),
        ((out, x, packed, bias[:-1], workspace), "bias has 49 elements"),
        ((out, x, packed, bias, workspace[:100]), "workspace has 100 bytes instead of"),
        ((out, x, packed, bias, workspace[1:]), "workspace must lie at a multiple of 64"),
    ):
        with pytest.raises(ValueError, match=message):
            body.linear(*arguments)


@pytest.mark.skipif(sys.platform != "linux", reason="this is how Linux tells")
def test_memory_is_taken_up_when_it_is_asked_for() -> None:
    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE

    before = resident()
    zeros = memory.zeros_in_huge_pages(2**26, 2**25)
    half = resident() - before
    assert 0.9 * 2**25 < half < 1.3 * 2**25
    zeros.fill_(1)
    assert resident() - before > 0.9 * 2**26


@pytest.mark.parametrize("size", [1, 2**21 - 1, 2**21, 2**22 + 5])
def test_memory_in_huge_pages_begins_at_one(size: int) -> None:
    for taken in (0, size // 2, 2 * size):
        zeros = memory.zeros_in_huge_pages(size, taken)
        assert zeros.shape == (size,) and not zeros.any()
    found = memory.empty_in_huge_pages(size)
    found.fill_(7)
    assert found.shape == (size,) and bool((found == 7).all())
    assert found.data_ptr() % (2**21 if size >= 2**21 and hasattr(mmap, "MADV_HUGEPAGE") else 64) == 0
