"""Products with weights that have a scale per group, on every instruction set, against fp64."""

from __future__ import annotations

import itertools
from dataclasses import replace
from functools import partial

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kernels import library
from kernels.formats import QuantizedWeight, pack_quantized
from kernels.formats.groups import GroupedWeight
from kernels.formats.stored.gguf import TYPES, unpack
from tests.amounts import DEEP, examples

every_shape = settings(
    max_examples=examples(4), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
rows = st.sampled_from([1, 2, 5, 6, 7, 13, 17, 33, 50, 270])
outputs = st.sampled_from([1, 16, 33, 70])
HALVES = {"q2_k": (80, 82), "q3_k": (108,), "q4_k": (0, 2), "q5_k": (0, 2), "q6_k": (208,)}


def stored(stored_type: str, outputs: int, blocks: int, dtype: torch.dtype) -> GroupedWeight:
    """Random numbers with scales of about a hundredth."""
    block = TYPES[stored_type]
    raw = torch.randint(0, 256, (outputs, blocks, block.bytes), dtype=torch.uint8)
    offset = stored_type in ("q4_1", "q5_1")
    for at in HALVES.get(stored_type, (0, 2) if offset else (0,)):
        scales = (0.02 * torch.rand(outputs, blocks, 1) + 0.001).half()
        raw[..., at : at + 2] = scales.view(torch.uint8)
    if stored_type == "mxfp4":
        raw[..., 0] = torch.randint(119, 123, (outputs, blocks))  # exponents
    return pack_quantized(outputs, lambda part: unpack(stored_type, raw[part].flatten(1)), dtype)


def magnitudes(stored: QuantizedWeight) -> torch.Tensor:
    """The weight whose terms all have the same sign, in fp64."""
    return (
        replace(
            stored,
            numbers=stored.numbers.float().abs(),
            scales=stored.scales.abs(),
            offsets=None if stored.offsets is None else stored.offsets.abs(),
            zeros=-abs(stored.zeros),
            steps=None if stored.steps is None else stored.steps.abs(),
            table=None if stored.table is None else stored.table.abs(),
        )
        .dense()
        .double()
    )


def rounding(x: torch.Tensor) -> torch.Tensor:
    """The most that numbers change when each 128 of a row become int16 with a scale."""
    lines = torch.nn.functional.pad(x.abs(), (0, -x.shape[1] % 128)).unflatten(1, (-1, 128))
    return lines.amax(-1).repeat_interleave(128, 1)[:, : x.shape[1]] * 0.51 / 32767


def check(packed: GroupedWeight, x: torch.Tensor, bias: torch.Tensor | None) -> None:
    """Within a rounding of the result, one of each number of x, and what fp32 sums of the terms lose; the same alone,
    unless it is torch's product.
    """
    found, exact = packed(x, bias), packed(x, bias, torch.float32)
    stored = packed.stored()
    wide = x.double()
    if stored.order is not None:
        wide, stored = wide[:, stored.order], replace(stored, order=None)
    weight, added = stored.dense().double(), 0 if bias is None else bias.double()
    expected = wide @ weight.T + added
    error = rounding(wide) @ weight.abs().T + 2**-20 * (wide.abs() @ magnitudes(stored).T + abs(added))
    last = 2**-8 if x.dtype == torch.bfloat16 else 2**-23
    assert found.dtype == x.dtype and found.shape == expected.shape
    assert bool(((found.double() - expected).abs() <= last * expected.abs() + error).all())
    assert torch.equal(exact.to(x.dtype), found)
    if packed._built:
        assert all(torch.equal(packed(x[row][None], bias)[0], found[row]) for row in {0, len(x) // 2, len(x) - 1})


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("stored_type", TYPES)
@every_shape
@given(rows=rows, outputs=outputs, blocks=st.integers(1, 9), bias=st.booleans(), seed=st.integers(0, 99))
def test_products_are_those_of_fp64(
    isa: str, stored_type: str, dtype: torch.dtype, rows: int, outputs: int, blocks: int, bias: bool, seed: int
) -> None:
    torch.manual_seed(seed)
    packed = stored(stored_type, outputs, blocks, dtype)
    assert library.of(packed.data, "linear_groups") is not None and packed._built
    x = torch.randn(rows, packed.inputs).to(dtype)
    check(packed, x, torch.randn(outputs).to(dtype) if bias else None)


TABLES = {
    "levels": None,
    "any numbers": torch.randn(16),
    "integers": torch.arange(16.0) ** 2 - 100,
    "quarters": torch.linspace(-1, 2.75, 16),
}


@pytest.mark.parametrize("scale", [torch.float16, torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("kind", [*TABLES, "int8", "e4m3"])
def test_all_layouts_are_read(isa: str, kind: str, scale: torch.dtype) -> None:
    torch.manual_seed(0)
    outputs, inputs = 40, 300
    numbers = torch.randint(0, 16, (outputs, inputs), dtype=torch.uint8)
    if kind == "int8":
        numbers = torch.randint(-128, 128, (outputs, inputs), dtype=torch.int8)
    elif kind == "e4m3":
        numbers = torch.randn(outputs, inputs).to(torch.float8_e4m3fn)
    groups, ways = (16, 32, 64, 128), ("none", "offsets", "one", "each")
    for group, zeros in itertools.product(groups, ways):
        if not DEEP and (groups.index(group) + ways.index(zeros) + scale.itemsize // 4) % 2:
            continue  # each size with each way, either with scales of 16 bits or with those of 32
        places = -(-inputs // group)
        weight = QuantizedWeight(
            numbers,
            4 if kind in TABLES else 8,
            group,
            torch.rand(outputs, places).to(scale),
            offsets=torch.randn(outputs, places).to(scale) if zeros == "offsets" else None,
            zeros={"one": 8, "each": torch.randint(0, 17, (outputs, places), dtype=torch.int8)}.get(zeros, 0),
            table=TABLES.get(kind),
            order=torch.randperm(inputs),
        )
        packed = pack_quantized(outputs, partial(_whole, weight), torch.float32)
        for rows in (7, 60):
            check(packed, torch.randn(rows, inputs), None)


def _whole(weight: QuantizedWeight, outputs: slice | torch.Tensor) -> QuantizedWeight:
    return weight


@pytest.mark.parametrize("inputs", [1, 15, 64, 65, 127, 129, 576, 896])
@pytest.mark.parametrize("bits", [4, 5, 6, 8])
def test_inputs_need_not_fill_a_line(isa: str, bits: int, inputs: int) -> None:
    torch.manual_seed(inputs)
    numbers = torch.randint(0, 1 << min(bits, 6), (19, inputs), dtype=torch.uint8)
    numbers = numbers.view(torch.int8) if bits == 8 else numbers
    beside = torch.full((51, inputs + 3), torch.nan)  # what is not a row's must not be read
    beside[:, :inputs] = torch.randn(51, inputs)
    for group in (16, 32, 128):
        weight = QuantizedWeight(numbers, bits, group, torch.rand(19, -(-inputs // group)).half(), zeros=3)
        packed = pack_quantized(19, partial(_whole, weight), torch.float32)
        for rows in (5, 51):
            check(packed, beside[:rows, :inputs], torch.randn(19))


def test_every_number_of_e4m3_is_what_torch_takes_it_for(isa: str) -> None:
    numbers = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).view(2, 128)
    packed = pack_quantized(2, lambda part: QuantizedWeight(numbers, 8, 128, torch.ones(2, 1)), torch.float32)
    rows = torch.eye(128)
    found = torch.stack([packed(row[None])[0] for row in rows], 1)
    expected = numbers.float()
    assert bool((found[expected.isnan().any(1)].isnan()).all())
    finite = numbers.float().nan_to_num(0).to(torch.float8_e4m3fn)
    packed = pack_quantized(2, lambda part: QuantizedWeight(finite, 8, 128, torch.ones(2, 1)), torch.float32)
    assert torch.equal(packed(rows).T, finite.float())


@pytest.mark.parametrize("wrong", [torch.inf, -torch.inf, torch.nan])
def test_a_row_that_is_not_finite_gives_no_numbers_and_leaves_others_alone(isa: str, wrong: float) -> None:
    packed = stored("q4_k", 40, 2, torch.float32)
    x = torch.randn(3, 512)
    alone = packed(x)
    x[1, 300] = wrong
    found = packed(x)
    assert bool(found[1].isnan().all())
    assert torch.equal(found[::2], alone[::2])


@pytest.mark.parametrize("stored_type", ["q4_k", "q4_1", "q6_k", "q8_0", "iq4_xs"])
def test_a_row_depends_neither_on_its_batch_nor_on_threads(isa: str, stored_type: str) -> None:
    torch.manual_seed(0)
    packed = stored(stored_type, 200, 2048 // TYPES[stored_type].inputs, torch.bfloat16)
    x = torch.randn(150, 2048).bfloat16()
    alone = torch.cat([packed(row[None]) for row in x])
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            for count in (1, 2, 5, 16, 33, 150):
                assert torch.equal(packed(x[:count]), alone[:count])
    finally:
        torch.set_num_threads(1)


def test_a_wrong_argument_is_named(isa: str) -> None:
    packed, x = stored("q4_0", 40, 2, torch.float32), torch.randn(3, 64)
    out, workspace = torch.empty(3, 40), torch.empty(2**17, dtype=torch.uint8)
    body = library.required(x)
    layout = (4, False, 32, 0, 1, False, False, 8)
    with pytest.raises(ValueError, match="weight has"):
        body.linear_groups(out, x, packed.data[:-1], None, None, workspace, *layout)
    with pytest.raises(ValueError, match="group is 48"):
        body.linear_groups(out, x, packed.data, None, None, workspace, 4, False, 48, *layout[3:])
