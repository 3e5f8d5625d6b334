"""Products with weights that have a scale per group, on every instruction set, against fp64."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kernels import library
from kernels.formats import QuantizedWeight, pack_quantized
from kernels.formats.groups import GroupedWeight
from kernels.formats.stored.gguf import TYPES, unpack

every_shape = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
rows = st.sampled_from([1, 2, 5, 6, 7, 17, 33, 50])
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
    return pack_quantized(outputs, lambda part: unpack(stored_type, raw[part].flatten(1)), dtype)


def check(packed: GroupedWeight, x: torch.Tensor, bias: torch.Tensor | None) -> None:
    """Within a rounding of the result, one of each weight, and what fp32 sums lose."""
    weight = packed.stored().dense().double()
    added = 0 if bias is None else bias.double()
    wide, magnitude = x.double() @ weight.T + added, x.double().abs() @ weight.abs().T + abs(added)
    found = packed(x, bias)
    rounding = 2**-8 if x.dtype == torch.bfloat16 else 2**-23
    assert found.dtype == x.dtype and found.shape == wide.shape
    assert bool(((found.double() - wide).abs() <= rounding * wide.abs() + 2**-20 * magnitude).all())
    exact = packed(x, bias, torch.float32)
    assert torch.equal(exact.to(x.dtype), found)


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


@pytest.mark.parametrize("scale", [torch.float16, torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("zeros", ["offsets", "one", "each", "table"])
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("group", [16, 32, 64, 128])
def test_all_layouts_are_read(isa: str, group: int, bits: int, zeros: str, scale: torch.dtype) -> None:
    torch.manual_seed(0)
    outputs, inputs = 40, 300
    places = -(-inputs // group)
    numbers = torch.randint(0, 16, (outputs, inputs), dtype=torch.uint8)
    table = torch.randn(16) if zeros == "table" and bits == 4 else None
    weight = QuantizedWeight(
        numbers if bits == 4 else (numbers.to(torch.int8) * 16 - 100),
        bits,
        group,
        torch.rand(outputs, places).to(scale),
        offsets=torch.randn(outputs, places).to(scale) if zeros == "offsets" else None,
        zeros={"one": 8, "each": torch.randint(0, 17, (outputs, places), dtype=torch.int8)}.get(zeros, 0),
        table=table,
        order=torch.randperm(inputs),
    )
    packed = pack_quantized(outputs, lambda part: weight, torch.float32)
    check(packed, torch.randn(7, inputs), None)


@pytest.mark.parametrize("stored_type", ["q4_k", "q4_1", "q6_k", "q8_0"])
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
    layout = (4, 32, 0, 1, False, False, 8)
    with pytest.raises(ValueError, match="weight has"):
        body.linear_groups(out, x, packed.data[:-1], None, None, workspace, *layout)
    with pytest.raises(ValueError, match="group is 48"):
        body.linear_groups(out, x, packed.data, None, None, workspace, 4, 48, *layout[2:])
