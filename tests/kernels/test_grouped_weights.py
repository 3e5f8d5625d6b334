"""Weights with a scale per group: GGUF's block types against the `gguf` package, and what packing keeps of them."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import kernels
from kernels import library
from kernels.formats import QuantizedWeight, pack_quantized, pack_stacked
from kernels.formats.bytes import Bytes
from kernels.formats.groups import GroupedWeight
from kernels.formats.levels import Levels
from kernels.formats.stacked import StackedWeight
from kernels.formats.stored import StoredRows
from kernels.formats.stored.gguf import NUMBERS, PLAIN, TYPES, dense, unpack

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
        ("q5_0", Levels, 5.5),
        ("q6_k", Levels, 6.625),
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


def finite_rows(stored_type: str, outputs: int, blocks: int, seed: int) -> torch.Tensor:
    """Any bits without infinite scales, of which not all bits are the same everywhere."""
    rows = random_rows(stored_type, outputs, blocks, seed)
    each = rows.view(outputs, blocks, -1)
    halves = {"q2_k": (80, 82), "q3_k": (108,), "q6_k": (208,)}.get(stored_type, (0, 2))
    for at in halves:
        each[..., at + 1] &= 0xBF  # a smaller exponent
    return rows


@pytest.mark.parametrize("stored_type", NUMBERS)
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(outputs=outputs, blocks=st.sampled_from([1, 2, 3, 5, 7, 18]), seed=st.integers(0, 10_000))
def test_the_compiled_body_packs_as_the_layouts_say(
    isa: str, stored_type: str, outputs: int, blocks: int, seed: int
) -> None:
    rows = finite_rows(stored_type, outputs, blocks, seed)
    found = pack_quantized(outputs, StoredRows(stored_type, rows, rows.device), torch.float32)
    assert library.of(rows, "pack_blocks") is not None
    assert torch.equal(found.data, pack(stored_type, rows).data)


def test_what_is_no_such_block_is_not_packed(isa: str) -> None:
    rows = random_rows("q4_k", 16, 1, 0)
    packed = pack("q4_k", rows)
    body = library.required(rows)
    with pytest.raises(ValueError, match="type is 12"):
        body.pack_blocks(packed.data, rows, 256, 12)
    with pytest.raises(ValueError, match="rows has 144 elements in dimension 1 instead of 288"):
        body.pack_blocks(packed.data, rows, 512, 7)
    with pytest.raises(ValueError, match="out has"):
        body.pack_blocks(packed.data[1:], rows, 256, 7)
    with pytest.raises(IndexError, match="tokens has an index"):
        kernels.quantized_embedding(torch.tensor([16]), StoredRows("q4_k", rows, rows.device), 1, torch.float32)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("stored_type", NUMBERS)
def test_embeddings_are_looked_up_bit_for_bit(isa: str, stored_type: str, dtype: torch.dtype) -> None:
    rows = finite_rows(stored_type, 20, 3, 0)
    tokens = torch.tensor([3, 19, 0, 3])
    found = kernels.quantized_embedding(tokens, StoredRows(stored_type, rows, rows.device), 1.25, dtype)
    assert torch.equal(found, (oracle(stored_type, rows)[tokens] * 1.25).to(dtype))


@pytest.mark.parametrize("bits", [4, 5, 6, 8])
@pytest.mark.parametrize("inputs", [1, 63, 64, 65, 127, 128, 200, 576, 896])
def test_the_last_line_may_be_half_or_not_full(inputs: int, bits: int) -> None:
    numbers = torch.randint(0, 1 << min(bits, 6), (19, inputs), dtype=torch.uint8)
    numbers = numbers.view(torch.int8) if bits == 8 else numbers
    weight = QuantizedWeight(numbers, bits, 16, torch.rand(19, -(-inputs // 16)).half(), zeros=3)
    packed = pack_quantized(19, lambda rows: weight, torch.float32)
    assert torch.equal(packed.dense(), weight.dense())


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


def test_parts_of_one_layout_are_packed_as_one_weight_output_by_output() -> None:
    stored = [("q4_k", 32), ("q4_k", 48), ("q4_k", 33), ("q4_k", 16), ("q6_k", 16)]
    rows = [random_rows(name, outputs, 2, seed) for seed, (name, outputs) in enumerate(stored)]
    rules = [StoredRows(name, each, each.device) for (name, _), each in zip(stored, rows, strict=True)]
    plain = torch.randn(8, 512)
    parts = [(torch.empty(len(each), 512), rule) for each, rule in zip(rows, rules, strict=True)]
    stacked = pack_stacked([*parts, (plain, None)])
    assert isinstance(stacked, StackedWeight)
    # A part that does not fill its last block ends a weight.
    assert [part.outputs for part in stacked.parts] == [32 + 48 + 33, 16, 16, 8]
    dense = [oracle(name, each) for (name, _), each in zip(stored, rows, strict=True)]
    assert same(stacked.dense(), torch.cat((*dense, plain)))
    assert type(pack_stacked(parts[:2])) is Levels


def test_weights_are_joined_if_their_inputs_are_in_one_order() -> None:
    orders = torch.randperm(64), torch.randperm(64)
    weights = [
        QuantizedWeight(torch.zeros(16, 64, dtype=torch.uint8), 4, 32, torch.rand(16, 2), order=orders[i])
        for i in (0, 0, 1)
    ]
    first, second, other = (pack_quantized(16, lambda rows, one=one: one, torch.float32) for one in weights)
    assert first.can_join(second) and not first.can_join(other)


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
    assert float((found - exact).norm() / exact.norm()) < (1e-4 if dtype == torch.float32 else 4e-3)
