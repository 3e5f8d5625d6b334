"""Weights with a scale per group: GGUF's block types against the `gguf` package, and what packing keeps of them."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.formats import QuantizedWeight, pack_quantized
from kernels.formats.bytes import Bytes
from kernels.formats.groups import GroupedWeight, join
from kernels.formats.levels import Levels
from kernels.formats.stored.gguf import PLAIN, TYPES, dense, unpack

examples = settings(max_examples=15, deadline=None)
blocks = st.integers(1, 3)
outputs = st.sampled_from([1, 5, 16, 33])


def random_rows(stored_type: str, outputs: int, blocks: int, seed: int) -> torch.Tensor:
    """Any bits: scales of all sizes and signs, denormal, infinite and not a number."""
    size = blocks * TYPES[stored_type].bytes
    return torch.from_numpy(np.random.default_rng(seed).integers(0, 256, (outputs, size), dtype=np.uint8))


def oracle(stored_type: str, rows: torch.Tensor) -> torch.Tensor:
    with np.errstate(all="ignore"):
        return torch.from_numpy(gguf.dequantize(rows.numpy(), gguf.GGMLQuantizationType[stored_type.upper()]))


def pack(stored_type: str, rows: torch.Tensor) -> GroupedWeight:
    return pack_quantized(len(rows), lambda part: unpack(stored_type, rows[part]), torch.float32)


def same(found: torch.Tensor, expected: torch.Tensor) -> bool:
    return torch.equal(found.nan_to_num(7.5), expected.nan_to_num(7.5))


@pytest.mark.parametrize("stored_type", TYPES)
@examples
@given(outputs=outputs, blocks=blocks, seed=st.integers(0, 10_000))
def test_blocks_are_what_gguf_reads_bit_for_bit(stored_type: str, outputs: int, blocks: int, seed: int) -> None:
    rows = random_rows(stored_type, outputs, blocks, seed)
    expected = oracle(stored_type, rows)
    assert same(dense(stored_type, rows), expected)
    packed = pack(stored_type, rows)
    assert packed.dense().shape == expected.shape == (outputs, blocks * TYPES[stored_type].inputs)
    assert same(packed.dense(), expected)


@pytest.mark.parametrize("stored_type", PLAIN)
def test_numbers_that_are_not_quantised_are_read_as_they_are(stored_type: str) -> None:
    numbers = torch.randn(3, 40).to(PLAIN[stored_type])
    assert torch.equal(dense(stored_type, numbers.view(torch.uint8)), numbers)


@pytest.mark.parametrize(
    ("stored_type", "layout", "bits"),
    [
        ("q4_0", Levels, 4.5),
        ("q4_1", Levels, 5.0),
        ("q4_k", Levels, 4.625),
        ("q2_k", Levels, 5.125),
        ("iq4_xs", Levels, 4.375),
        ("mxfp4", Levels, 4.5),
        ("q8_0", Bytes, 8.5),
        ("q6_k", Bytes, 8.625),
    ],
)
def test_packed_weights_are_little_larger_than_stored_ones(
    stored_type: str, layout: type[GroupedWeight], bits: float
) -> None:
    rows = random_rows(stored_type, 32, 256 // TYPES[stored_type].inputs, 0)
    packed = pack(stored_type, rows)
    assert type(packed) is layout
    assert packed.data.nbytes * 8 == bits * 32 * 256
    assert packed.cost(1).bytes >= packed.data.nbytes


def test_a_weight_of_many_outputs_is_unpacked_in_parts() -> None:
    rows, asked = random_rows("q4_k", 5000, 1, 0), []

    def part(outputs: slice) -> QuantizedWeight:
        asked.append(outputs.stop - outputs.start)
        return unpack("q4_k", rows[outputs])

    packed = pack_quantized(5000, part, torch.float32)
    assert max(asked) < 5000
    assert same(packed.dense(), oracle("q4_k", rows))


@pytest.mark.parametrize("zeros", ["none", "one", "each"])
@pytest.mark.parametrize("scale", [torch.float16, torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("group", [16, 32, 64, 128, 256, 300])
def test_groups_have_scales_zeros_offsets_and_an_order(group: int, scale: torch.dtype, zeros: str) -> None:
    torch.manual_seed(group)
    outputs, inputs = 20, 300 if group == 300 else 384
    places = -(-inputs // group)
    stored = QuantizedWeight(
        torch.randint(0, 16, (outputs, inputs), dtype=torch.uint8),
        4,
        group,
        torch.randn(outputs, places).to(scale),
        offsets=torch.randn(outputs, places).to(scale) if zeros == "none" else None,
        zeros={"none": 0, "one": 8, "each": torch.randint(0, 17, (outputs, places), dtype=torch.int8)}[zeros],
        order=torch.randperm(inputs),
    )
    if group == 300:
        with pytest.raises(ValueError, match="groups of 300 inputs"):
            pack_quantized(outputs, lambda rows: stored, torch.float32)
        return
    expected = torch.empty(outputs, inputs)
    for column, place in enumerate(stored.order):  # type: ignore[arg-type]
        at = column // group
        zero = stored.zeros if isinstance(stored.zeros, int) else stored.zeros[:, at].float()
        expected[:, place] = stored.scales[:, at].float() * (stored.numbers[:, column].float() - zero)
        if stored.offsets is not None:
            expected[:, place] += stored.offsets[:, at].float()
    assert torch.equal(stored.dense(), expected)
    assert torch.equal(pack_quantized(outputs, lambda rows: stored, torch.float32).dense(), expected)


def test_e4m3_numbers_and_a_table_of_floats_are_kept_exactly() -> None:
    torch.manual_seed(0)
    numbers = torch.randn(20, 200).to(torch.float8_e4m3fn)
    scales = torch.rand(20, 2)
    eight = QuantizedWeight(numbers, 8, 128, scales)
    expected = numbers.float() * scales.repeat_interleave(128, 1)[:, :200]
    assert torch.equal(pack_quantized(20, lambda rows: eight, torch.float32).dense(), expected)
    table, places = torch.randn(16), torch.randint(0, 16, (20, 200), dtype=torch.uint8)
    four = QuantizedWeight(places, 4, 64, torch.rand(20, 4), table=table)
    expected = table[places.int()] * four.scales.repeat_interleave(64, 1)[:, :200]
    assert torch.equal(pack_quantized(20, lambda rows: four, torch.float32).dense(), expected)


def test_weights_of_one_layout_are_joined_output_by_output() -> None:
    first, second, other = (
        pack(name, random_rows(name, 32, 2, seed)) for seed, name in enumerate(("q4_k",) * 2 + ("q6_k",))
    )
    assert first.can_join(second) and not first.can_join(other)
    assert not pack("q4_k", random_rows("q4_k", 33, 2, 0)).can_join(second)
    joined = join([first, second])
    assert same(joined.dense(), torch.cat((first.dense(), second.dense())))


def test_weights_are_joined_if_their_inputs_are_in_one_order() -> None:
    orders = torch.randperm(64), torch.randperm(64)
    weights = [
        QuantizedWeight(torch.zeros(16, 64, dtype=torch.uint8), 4, 32, torch.rand(16, 2), order=orders[i])
        for i in (0, 0, 1)
    ]
    first, second, other = (pack_quantized(16, lambda rows, one=one: one, torch.float32) for one in weights)
    assert first.can_join(second) and not first.can_join(other)
    assert torch.equal(join([first, second]).dense(), torch.cat((first.dense(), second.dense())))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("stored_type", ["q4_1", "q6_k", "iq4_xs"])
def test_products_are_those_of_the_dense_weight(stored_type: str, dtype: torch.dtype) -> None:
    rows = random_rows(stored_type, 40, 512 // TYPES[stored_type].inputs, 0)
    # Where the blocks' scales are; all others are not finite or too far apart.
    at = {"q4_1": 0, "q6_k": 208, "iq4_xs": 0}[stored_type]
    each = rows.view(40, -1, TYPES[stored_type].bytes)
    each[..., at : at + 2] = torch.tensor([0.01], dtype=torch.float16).view(torch.uint8)
    if stored_type == "q4_1":
        each[..., 2:4] = torch.tensor([-0.06], dtype=torch.float16).view(torch.uint8)
    packed = pack_quantized(40, lambda part: unpack(stored_type, rows[part]), dtype)
    x, bias = torch.randn(3, 512).to(dtype), torch.randn(40).to(dtype)
    exact = x.double() @ oracle(stored_type, rows).double().T + bias.double()
    found = packed(x, bias, torch.float32)
    assert found.dtype == torch.float32 and packed(x).dtype == dtype
    assert float((found - exact).norm() / exact.norm()) < (1e-6 if dtype == torch.float32 else 4e-3)
