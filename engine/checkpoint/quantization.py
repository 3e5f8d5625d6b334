"""Reads `quantization_config` of config.json: which formats of quantised weights are served, and what stores them.

What the tensors of a module are decides how it is read. So lists of modules that were not quantised, numbers of bits
and lengths of groups are not read here: tensors say the same. No torch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from engine.checkpoint.errors import CheckpointError

_PLACE = "config.json: quantization_config"


@dataclass(frozen=True, slots=True)
class StoredQuantization:
    """How the weights of a folder are stored."""

    method: str
    """`quant_method` of config.json."""
    parts: tuple[str, ...]
    """How names of tensors that store a weight together end; the rest of a name is that of their module."""
    rules: Mapping[tuple[str, str], str]
    """Rule by which all tensors of a module are read, by the part that shows it and that part's type."""
    block: tuple[int, int] | None = None
    """Outputs and inputs that share a scale, where tensors do not say so."""


def read_quantization(raw: Mapping[str, Any]) -> StoredQuantization:
    """Read `quantization_config`.

    Raises:
        CheckpointError: a method or a variant of it is not served.
    """
    method = raw.get("quant_method")
    read = _METHODS.get(method) if isinstance(method, str) else None
    if read is None:
        raise CheckpointError(
            f"{_PLACE}: quant_method {method!r} is not supported; these are: {', '.join(_METHODS)}. "
            "Or name the unquantised checkpoint in float32, bfloat16 or float16"
        )
    return read(raw)


def _gptq(raw: Mapping[str, Any]) -> StoredQuantization:
    _expect(raw, "bits", 4, 8)
    key = "checkpoint_format" if "checkpoint_format" in raw else "format"
    _expect(raw, key, None, "gptq", "gptq_v2")
    rule = raw.get(key) or "gptq"
    return StoredQuantization("gptq", ("qweight", "qzeros", "scales", "g_idx"), {("qweight", "i32"): rule})


def _awq(raw: Mapping[str, Any]) -> StoredQuantization:
    _expect(raw, "bits", 4)
    _expect(raw, "zero_point", None, True)
    _expect(raw, "version" if "version" in raw else "format", None, "gemm", "GEMM")
    return StoredQuantization("awq", ("qweight", "qzeros", "scales"), {("qweight", "i32"): "awq"})


def _fp8(raw: Mapping[str, Any]) -> StoredQuantization:
    _expect(raw, "fmt", None, "e4m3")
    block = raw.get("weight_block_size")
    parts = ("weight", "weight_scale_inv", "weight_scale")
    rules = {("weight", "f8_e4m3"): "fp8"}
    return StoredQuantization(raw["quant_method"], parts, rules, _block(block, "weight_block_size"))


def _compressed_tensors(raw: Mapping[str, Any]) -> StoredQuantization:
    formats = (None, "dense", "pack-quantized", "int-quantized", "float-quantized", "naive-quantized")
    _expect(raw, "format", *formats, "mixed-precision")
    _expect(raw, "quantization_status", None, "compressed")
    for key in ("sparsity_config", "transform_config"):
        if raw.get(key) and raw[key].get("format") != "dense":
            raise CheckpointError(f"{_PLACE}: {key} is not supported; save the model without it")
    blocks: list[tuple[int, int]] = []
    for group in _groups(raw):
        _expect(group, "format", *formats)
        weights = group.get("weights")
        if isinstance(weights, dict):
            _expect(weights, "num_bits", *((4, 8) if weights.get("type", "int") == "int" else (8,)))
            block = _block(weights.get("block_structure"), "block_structure")
            blocks += [] if block is None else [block]
    if len(set(blocks)) > 1:
        raise CheckpointError(f"{_PLACE}: block_structure is {blocks}; one for all groups is served")
    return StoredQuantization(
        "compressed-tensors",
        ("weight", *(f"weight_{name}" for name in ("packed", "shape", "scale", "zero_point", "g_idx"))),
        {("weight_packed", "i32"): "packed", ("weight", "i8"): "int8", ("weight", "f8_e4m3"): "fp8"},
        blocks[0] if blocks else None,
    )


def _bitsandbytes(raw: Mapping[str, Any]) -> StoredQuantization:
    _expect(raw, "bnb_4bit_quant_storage", None, "uint8")
    names = ("absmax", "quant_map", "nested_absmax", "nested_quant_map")
    states = (f"quant_state.bitsandbytes__{kind}" for kind in ("nf4", "fp4"))
    return StoredQuantization(
        "bitsandbytes",
        ("weight", "SCB", "weight_format", *(f"weight.{name}" for name in (*names, *states))),
        {("weight", "i8"): "llm_int8", ("weight", "u8"): "nf4"},
    )


_METHODS: dict[str, Callable[[Mapping[str, Any]], StoredQuantization]] = {
    "gptq": _gptq,
    "awq": _awq,
    "fp8": _fp8,
    "fbgemm_fp8": _fp8,
    "compressed-tensors": _compressed_tensors,
    "bitsandbytes": _bitsandbytes,
}
"""Formats by `quant_method`."""


def _groups(raw: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    groups = raw.get("config_groups")
    for group in groups.values() if isinstance(groups, dict) else ():
        if isinstance(group, dict):  # else a list of modules under the name of a preset
            yield group


def _expect(raw: Mapping[str, Any], key: str, *served: object) -> None:
    """Refuse a value that is not served; None stands for a key that is not there."""
    if raw.get(key) not in served:
        names = " and ".join(repr(value) for value in served if value is not None)
        raise CheckpointError(f"{_PLACE}: {key} {raw.get(key)!r} is not supported; {names} is")


def _block(block: object, key: str) -> tuple[int, int] | None:
    if block is None:
        return None
    if not isinstance(block, list) or len(block) != 2 or not all(type(x) is int and x > 0 for x in block):
        raise CheckpointError(f"{_PLACE}: {key} {block!r} is not supported; two positive numbers are")
    return block[0], block[1]
