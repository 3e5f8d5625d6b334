"""Of `quantization_config` what is served is read, and all else is refused by name."""

from __future__ import annotations

from typing import Any

import pytest

from engine.checkpoint.errors import CheckpointError
from engine.checkpoint.quantization import read_quantization


def group(**fields: Any) -> dict[str, Any]:
    return {"config_groups": {"group_0": {"targets": ["Linear"], **fields}}}


REFUSALS: dict[str, tuple[dict[str, Any], str]] = {
    "no method": ({}, "quant_method None is not supported; these are: gptq, awq"),
    "another method": ({"quant_method": "hqq"}, "quant_method 'hqq' .* name the unquantised checkpoint"),
    "bits of GPTQ": ({"quant_method": "gptq", "bits": 3}, "bits 3 is not supported; 4 and 8 is"),
    "format of GPTQ": (
        {"quant_method": "gptq", "bits": 4, "checkpoint_format": "marlin"},
        "checkpoint_format 'marlin'",
    ),
    "newer name of it": ({"quant_method": "gptq", "bits": 4, "format": "bitblas"}, "format 'bitblas'"),
    "version of AWQ": (
        {"quant_method": "awq", "bits": 4, "version": "gemv"},
        "version 'gemv' is not supported; 'gemm'",
    ),
    "zeros of AWQ": ({"quant_method": "awq", "bits": 4, "zero_point": False}, "zero_point False"),
    "numbers of fp8": ({"quant_method": "fp8", "fmt": "e5m2"}, "fmt 'e5m2'"),
    "blocks of fp8": ({"quant_method": "fp8", "weight_block_size": [128, 0]}, r"weight_block_size \[128, 0\]"),
    "format": ({"quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized"}, "'nvfp4-pack-quantized'"),
    "format of a group": (
        {"quant_method": "compressed-tensors", "format": "mixed-precision", **group(format="mxfp4-pack-quantized")},
        "'mxfp4-pack-quantized'",
    ),
    "bits of a group": (
        {"quant_method": "compressed-tensors", "format": "pack-quantized", **group(weights={"num_bits": 2})},
        "num_bits 2",
    ),
    "sparsity": (
        {"quant_method": "compressed-tensors", "sparsity_config": {"format": "sparse-24-bitmask"}},
        "sparsity_config is not supported",
    ),
    "rotations": (
        {"quant_method": "compressed-tensors", "transform_config": {"config_groups": {"u": {}}}},
        "transform_config is not supported",
    ),
    "status": ({"quant_method": "compressed-tensors", "quantization_status": "frozen"}, "quantization_status 'frozen'"),
    "two sizes of blocks": (
        {
            "quant_method": "compressed-tensors",
            "config_groups": {
                name: {"weights": {"num_bits": 8, "type": "float", "block_structure": [size, 128]}}
                for name, size in (("a", 64), ("b", 128))
            },
        },
        "one for all groups is served",
    ),
    "storage": ({"quant_method": "bitsandbytes", "bnb_4bit_quant_storage": "bfloat16"}, "bnb_4bit_quant_storage"),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_what_is_not_served_is_refused_by_name(case: str) -> None:
    raw, message = REFUSALS[case]
    with pytest.raises(CheckpointError, match=message):
        read_quantization(raw)


def test_blocks_are_those_of_the_config() -> None:
    assert read_quantization({"quant_method": "fp8", "weight_block_size": [128, 64]}).block == (128, 64)
    weights = {"num_bits": 8, "type": "float", "strategy": "block", "block_structure": [64, 128]}
    found = read_quantization({"quant_method": "compressed-tensors", **group(weights=weights)})
    assert found.block == (64, 128)
