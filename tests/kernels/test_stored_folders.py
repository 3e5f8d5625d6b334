"""Unpack rules of quantised safetensors against the libraries that write them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import bitsandbytes.functional as bnb
import pytest
import torch
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.compressors.pack_quantized.helpers import pack_to_int32, unpack_from_int32
from compressed_tensors.entrypoints.convert.converters.autoawq import AutoAWQConverter
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
from compressed_tensors.quantization.lifecycle.forward import dequantize
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from transformers.integrations.finegrained_fp8 import Fp8Dequantize

from kernels.formats import pack_quantized
from kernels.formats.levels import Levels
from kernels.formats.stored.folders import RULES, StoredWeight, read_parts
from kernels.formats.stored.gguf import TYPES, unpack

examples = settings(max_examples=20, deadline=None)
CPU = torch.device("cpu")
GPTQMODEL = Path(__file__).with_name("gptqmodel.safetensors")
"""What `write_gptqmodel.py` wrote."""
Tensors = dict[str, torch.Tensor]


def random_words(*shape: int) -> torch.Tensor:
    return torch.randint(-(2**31), 2**31, shape).int()


def check(weight: StoredWeight, expected: torch.Tensor) -> None:
    """The rule gives `expected`, in parts too, and packing keeps it."""
    outputs, inputs = expected.shape
    assert weight.shape == (outputs, inputs)
    assert torch.equal(weight(slice(None)).dense(), expected)
    middle = slice(outputs // 3, outputs // 3 + 3)
    assert torch.equal(weight(middle).dense(), expected[middle])
    assert torch.equal(pack_quantized(outputs, weight, torch.float32).dense(), expected)


def dequantized(numbers: torch.Tensor, zeros: torch.Tensor, scales: torch.Tensor, **args: Any) -> torch.Tensor:
    return dequantize(numbers, scales.float(), zeros, QuantizationArgs(symmetric=False, **args))


def gptq(outputs: int, inputs: int, bits: int, group: int) -> Tensors:
    groups = -(-inputs // group)
    return {
        "qweight": random_words(inputs * bits // 32, outputs),
        "qzeros": random_words(groups, -(-outputs * bits // 32)),
        "scales": torch.rand(groups, outputs).half(),
        "g_idx": torch.arange(inputs, dtype=torch.int32) // group,
    }


def compress(kind: str, args: QuantizationArgs, weight: torch.Tensor, dtype: torch.dtype) -> Tensors:
    """What compressed-tensors stores of a weight, whose scales are of a type."""
    outputs, inputs = weight.shape
    strategy, group = args.strategy, args.group_size
    if strategy == "block":
        assert args.block_structure is not None
        high, wide = args.block_structure
        shape = -(-outputs // high), inputs // wide
    elif strategy == "tensor":
        shape = (1,)
    else:
        shape = outputs, 1 if strategy == "channel" or group is None else inputs // group
    zeros = torch.zeros(shape) if args.symmetric else torch.randint(-8, 8, shape)
    scales = (torch.rand(shape) + 0.5) / 2 ** (args.num_bits - 2)
    state = {"weight": weight, "weight_scale": scales.to(dtype), "weight_zero_point": zeros.to(torch.int8)}
    parts = BaseCompressor.get_value_from_registry(kind).compress(state, QuantizationScheme(targets=[], weights=args))
    return {name: tensor for name, tensor in parts.items() if tensor is not None}


def decompress(kind: str, args: QuantizationArgs, parts: Tensors) -> torch.Tensor:
    wide = parts | {"weight_scale": parts["weight_scale"].float()}
    scheme = QuantizationScheme(targets=[], weights=args)
    found: torch.Tensor = BaseCompressor.get_value_from_registry(kind).decompress(wide, scheme)["weight"]
    return found


def bnb_four_bits(weight: torch.Tensor, kind: str, nested: bool, group: int) -> tuple[Tensors, torch.Tensor]:
    """What bitsandbytes stores of a weight, and what it makes of it in fp32."""
    packed, state = bnb.quantize_4bit(weight, blocksize=group, quant_type=kind, compress_statistics=nested)
    parts = {f"weight.{name}": tensor for name, tensor in state.as_dict(packed=True).items()}
    return parts | {"weight": packed}, bnb.dequantize_4bit(packed, state)


@pytest.mark.parametrize("bits", [4, 8])
@examples
@given(
    outputs=st.sampled_from([8, 24, 40]),
    groups=st.integers(1, 4),
    group=st.sampled_from([32, 64, 128]),
    desc_act=st.booleans(),
    lowered=st.booleans(),
    seed=st.integers(0, 999),
)
def test_gptq_is_what_compressed_tensors_unpacks(
    bits: int, outputs: int, groups: int, group: int, desc_act: bool, lowered: bool, seed: int
) -> None:
    torch.manual_seed(seed)
    inputs = groups * group
    parts = gptq(outputs, inputs, bits, group)
    if desc_act:
        parts["g_idx"] = parts["g_idx"][torch.randperm(inputs)]
    numbers = unpack_from_int32(parts["qweight"], bits, torch.Size((inputs, outputs)), 0).T
    zeros = unpack_from_int32(parts["qzeros"], bits, torch.Size((groups, outputs))).T
    scales, of_inputs = parts["scales"].float().T, parts["g_idx"].long()
    expected = (numbers.float() - zeros.float()[:, of_inputs]) * scales[:, of_inputs]
    if lowered:
        # What GPTQModel's `convert_gptq_v2_to_v1_format` does.
        parts["qzeros"] = parts["qzeros"] - (0x11111111 if bits == 4 else 0x01010101)
    check(read_parts("gptq" if lowered else "gptq_v2", parts, CPU), expected)


@examples
@given(
    outputs=st.sampled_from([8, 24, 40]),
    groups=st.integers(1, 3),
    group=st.sampled_from([32, 128]),
    seed=st.integers(0, 999),
)
def test_awq_is_what_compressed_tensors_makes_of_it(outputs: int, groups: int, group: int, seed: int) -> None:
    torch.manual_seed(seed)
    parts = {
        "qweight": random_words(groups * group, outputs // 8),
        "qzeros": random_words(groups, outputs // 8),
        "scales": torch.rand(groups, outputs).half(),
    }
    convert = AutoAWQConverter(group_size=group)._convert_gemm_module
    numbers, scales, zeros = convert(parts["qweight"], parts["scales"], parts["qzeros"])
    assert zeros is not None
    expected = dequantized(numbers, zeros, scales, num_bits=4, group_size=group, strategy="group")
    check(read_parts("awq", parts, CPU), expected)


@pytest.mark.parametrize("case", sorted({name.split("/")[0] for name in load_file(GPTQMODEL)}))
def test_what_gptqmodel_packed_is_what_it_dequantises_it_to(case: str) -> None:
    parts = {
        name.removeprefix(f"{case}/"): x for name, x in load_file(GPTQMODEL).items() if name.startswith(f"{case}/")
    }
    expected = parts.pop("dense")
    weight = read_parts(case.split("-")[0], parts, CPU)
    assert expected.dtype == torch.float16
    assert torch.equal(weight(slice(None)).dense().half(), expected)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize(("strategy", "group"), [("group", 32), ("group", 128), ("channel", None)])
@pytest.mark.parametrize("bits", [4, 8])
def test_packed_weights_are_what_compressed_tensors_decompresses(
    bits: int, strategy: str, group: int | None, symmetric: bool, dtype: torch.dtype
) -> None:
    torch.manual_seed(bits)
    args = QuantizationArgs(num_bits=bits, strategy=strategy, group_size=group, symmetric=symmetric)
    parts = compress("pack-quantized", args, torch.randn(24, 256), dtype)
    check(read_parts("packed", parts, CPU), decompress("pack-quantized", args, parts))


@examples
@given(groups=st.integers(1, 3), group=st.sampled_from([32, 64]), seed=st.integers(0, 999))
def test_packed_weights_may_have_groups_of_any_inputs(groups: int, group: int, seed: int) -> None:
    torch.manual_seed(seed)
    numbers = torch.randint(-8, 8, (24, groups * group), dtype=torch.int8)
    scales, of_inputs = torch.rand(24, groups), (torch.arange(groups * group) // group)[torch.randperm(groups * group)]
    parts = {
        "weight_packed": pack_to_int32(numbers, 4),
        "weight_shape": torch.tensor(numbers.shape),
        "weight_scale": scales,
        "weight_g_idx": of_inputs.int(),
    }
    check(read_parts("packed", parts, CPU), numbers.float() * scales[:, of_inputs])


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize(("strategy", "group"), [("channel", None), ("tensor", None), ("group", 64)])
def test_int8_weights_are_what_compressed_tensors_decompresses(
    strategy: str, group: int | None, symmetric: bool
) -> None:
    torch.manual_seed(0)
    args = QuantizationArgs(num_bits=8, strategy=strategy, group_size=group, symmetric=symmetric)
    parts = compress("int-quantized", args, torch.randn(24, 256), torch.bfloat16)
    check(read_parts("int8", parts, CPU), decompress("int-quantized", args, parts))


@pytest.mark.parametrize(
    ("strategy", "block"), [("channel", None), ("tensor", None), ("block", [128, 128]), ("block", [64, 32])]
)
def test_fp8_weights_are_what_compressed_tensors_decompresses(strategy: str, block: list[int] | None) -> None:
    torch.manual_seed(0)
    args = QuantizationArgs(num_bits=8, type="float", strategy=strategy, block_structure=block)
    parts = compress("float-quantized", args, torch.randn(320, 256), torch.float32)
    expected = decompress("float-quantized", args, parts)
    check(read_parts("fp8", parts, CPU, None if block is None else (block[0], block[1])), expected)


@pytest.mark.parametrize("block", [None, (128, 128), (64, 128)])
def test_fp8_weights_are_what_transformers_dequantises(block: tuple[int, int] | None) -> None:
    torch.manual_seed(0)
    weight = torch.randn(256, 384).to(torch.float8_e4m3fn)
    scales = torch.rand(()) if block is None else torch.rand(256 // block[0], 384 // block[1])
    expected = Fp8Dequantize(None)._dequantize_one(weight, scales, torch.float32)
    check(read_parts("fp8", {"weight": weight, "weight_scale_inv": scales}, CPU, block), expected)


@pytest.mark.parametrize("kind", ["nf4", "fp4"])
@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("group", [64, 128])
def test_four_bits_are_what_bitsandbytes_dequantises(kind: str, nested: bool, group: int) -> None:
    torch.manual_seed(0)
    parts, expected = bnb_four_bits(torch.randn(24, 640), kind, nested, group)
    check(read_parts("nf4", parts, CPU), expected)


def test_llm_int8_is_what_bitsandbytes_dequantises() -> None:
    torch.manual_seed(0)
    weight, scales, _ = bnb.int8_vectorwise_quant(torch.randn(24, 256).half())
    expected = bnb.int8_vectorwise_dequant(weight, scales)
    parts = {"weight": weight, "SCB": scales, "weight_format": torch.tensor(0, dtype=torch.uint8)}
    stored = read_parts("llm_int8", parts, CPU)
    # Two products where we have one: they may differ in the last bit.
    assert torch.allclose(stored(slice(None)).dense(), expected, rtol=2**-22, atol=0)
    check(stored, weight.float() * (scales[:, None] / 127))


def test_tensors_that_do_not_fit_each_other_are_named() -> None:
    parts = gptq(32, 128, 4, 32)
    wrong = {
        "qzeros is missing": {name: x for name, x in parts.items() if name != "qzeros"},
        "qweight is stored as int64; int32 is served": parts | {"qweight": parts["qweight"].long()},
        "qzeros has shape": parts | {"qzeros": parts["qzeros"][:, :3]},
        "qweight has shape": parts | {"qweight": parts["qweight"][:, :3]},
        "g_idx does not put 128 inputs into 4 groups": parts | {"g_idx": torch.zeros(128, dtype=torch.int32)},
        "groups of 96 inputs": gptq(32, 192, 4, 96),
    }
    for message, tensors in wrong.items():
        with pytest.raises(ValueError, match=message):
            read_parts("gptq", tensors, CPU)
    packed, _ = bnb_four_bits(torch.randn(8, 64), "nf4", False, 64)
    state = "weight.quant_state.bitsandbytes__nf4"
    for text in (b"{", b"[]", b"{}", json.dumps({"shape": [8, 64], "blocksize": 0}).encode()):
        with pytest.raises(ValueError, match=r"quant_state|blocks of 0"):
            read_parts("nf4", packed | {state: torch.tensor(list(text), dtype=torch.uint8)}, CPU)


def sample(rule: str) -> StoredWeight:
    """A weight [32, 1024] with groups of 128, or of what else the rule has."""
    weight = torch.randn(32, 1024)
    if rule.startswith("gptq"):
        return read_parts(rule, gptq(32, 1024, 4, 128), CPU)
    if rule == "awq":
        parts = {"qweight": random_words(1024, 4), "qzeros": random_words(8, 4), "scales": torch.rand(8, 32).half()}
    elif rule == "packed":
        args = QuantizationArgs(num_bits=4, strategy="group", group_size=128)
        parts = compress("pack-quantized", args, weight, torch.bfloat16)
    elif rule == "nf4":
        parts, _ = bnb_four_bits(weight, "nf4", True, 64)
    elif rule == "llm_int8":
        parts = {"weight": weight.to(torch.int8), "SCB": torch.rand(32)}
    else:
        scales = torch.rand(32, 1).bfloat16()
        parts = {"weight": weight.to(torch.int8 if rule == "int8" else torch.float8_e4m3fn), "weight_scale": scales}
    return read_parts(rule, parts, CPU)


def test_the_table_of_formats_has_all_of_them_with_their_layouts_and_bits() -> None:
    page = (Path(__file__).parents[2] / "docs/engine.md").read_text()
    table = re.search(r"\| stored as \|.*?\n\n", page, re.DOTALL)
    assert table is not None
    listed = {}
    for line in table.group().strip().splitlines()[2:]:
        _, names, layout, bits, *_ = (cell.strip() for cell in line.split("|"))
        listed |= {name: (layout, float(bits)) for name in re.findall(r"`(\w+)`", names)}
    expected = {}
    for rule in RULES:
        packed = pack_quantized(32, sample(rule), torch.float32)
        expected[rule] = type(packed).__name__, packed.data.nbytes / 4096
    for name, block in TYPES.items():
        rows = torch.zeros(32, 1024 // block.inputs * block.bytes, dtype=torch.uint8)
        packed = pack_quantized(32, lambda some, name=name, rows=rows: unpack(name, rows[some]), torch.float32)
        expected[name] = type(packed).__name__, packed.data.nbytes / 4096
    assert listed == expected
    assert {layout for layout, _ in listed.values()} == {Levels.__name__, "Bytes"}
