"""Tiny checkpoints whose weights are quantised, as the libraries that people use store them, and the same dequantised.

Where a library quantises on the CPU it writes the folder itself; else its packing is written here as it does it, and
another library reads it.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.compressors.pack_quantized.helpers import pack_to_int32
from compressed_tensors.entrypoints.convert.converters.autoawq import AutoAWQConverter
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
from compressed_tensors.quantization.lifecycle.forward import dequantize
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, BitsAndBytesConfig

from tests.engine.checkpoints import write_checkpoint

SIZES = {"hidden_size": 128, "intermediate_size": 256}
Tensors = dict[str, torch.Tensor]
Quantize = Callable[[torch.Tensor], tuple[Tensors, torch.Tensor]]
"""Takes a weight, and gives the tensors that store it and what they stand for."""


class Folder(NamedTuple):
    """A checkpoint in two versions of the same numbers."""

    stored: Path
    """Quantised."""
    dense: Path
    """In fp32."""


def write_quantized(
    folder: Path, config: dict[str, Any], quantize: Quantize, architecture: str = "llama", **overrides: Any
) -> Folder:
    """Write a checkpoint in which each layer's linear weights have been quantised."""
    plain = write_checkpoint(folder / "plain", architecture, **SIZES | overrides)
    stored, dense = Path(shutil.copytree(plain, folder / "stored")), Path(shutil.copytree(plain, folder / "dense"))
    tensors = load_file(plain / "model.safetensors")
    rounded: Tensors = {}
    for name in list(tensors):
        if name.endswith("_proj.weight") or ".experts." in name:
            parts, rounded[name] = quantize(tensors.pop(name))
            tensors |= {f"{name.removesuffix('weight')}{part}": tensor for part, tensor in parts.items()}
    save_file({name: x.contiguous() for name, x in tensors.items()}, stored / "model.safetensors")
    save_file(load_file(plain / "model.safetensors") | rounded, dense / "model.safetensors", {"format": "pt"})
    set_config(stored, quantization_config=config)
    return Folder(stored, dense)


def set_config(directory: Path, **fields: Any) -> None:
    """Change fields of config.json; None deletes one."""
    path = directory / "config.json"
    config = {key: value for key, value in (json.loads(path.read_text()) | fields).items() if value is not None}
    path.write_text(json.dumps(config))


def levels(
    weight: torch.Tensor, bits: int, group: int, symmetric: bool
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Round to the nearest level -> numbers [outputs, inputs] and zeros [outputs, groups] int8, less half of the
    levels; and scales [outputs, groups] fp16."""
    half = 1 << bits - 1
    groups = weight.unflatten(1, (-1, group))
    if symmetric:
        scales = (groups.abs().amax(-1) / (half - 1)).half()
        zeros = torch.zeros_like(scales)
    else:
        least, most = groups.amin(-1).clamp(max=0), groups.amax(-1).clamp(min=0)
        scales = ((most - least) / (2 * half - 1)).half()
        zeros = (-half - least / scales.float()).round().clamp(-half, half - 1)
    numbers = groups / scales.float()[..., None] + zeros[..., None]
    return numbers.round().clamp(-half, half - 1).flatten(1).to(torch.int8), zeros.to(torch.int8), scales


def _dequantized(
    numbers: torch.Tensor, zeros: torch.Tensor, scales: torch.Tensor, bits: int, group: int
) -> torch.Tensor:
    args = QuantizationArgs(num_bits=bits, group_size=group, strategy="group", symmetric=False)
    return dequantize(numbers, scales.float(), zeros, args)


def gptq(bits: int, group: int, *, symmetric: bool = True, desc_act: bool = False, v2: bool = False) -> Quantize:
    """GPTQ, rounded to the nearest level; with `desc_act` groups are of random inputs, the same for all weights that
    are multiplied with one x, as where their order is that of x's activations."""

    def quantize(weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
        inputs = weight.shape[1]
        size = inputs if group == -1 else group
        order = torch.arange(inputs)
        if desc_act:
            order = torch.randperm(inputs, generator=torch.Generator().manual_seed(inputs))
        numbers, zeros, scales = levels(weight[:, order], bits, size, symmetric)
        back = order.argsort()
        packed = pack_to_int32(zeros.T.contiguous(), bits)
        parts = {
            "qweight": pack_to_int32(numbers[:, back].T.contiguous(), bits, 0),
            "qzeros": packed if v2 else packed - (0x11111111 if bits == 4 else 0x01010101),
            "scales": scales.T,
            "g_idx": (back // size).int(),
        }
        return parts, _dequantized(numbers, zeros, scales, bits, size)[:, back]

    return quantize


def awq(group: int) -> Quantize:
    """AWQ's "gemm" layout, packed as AutoAWQ's `WQLinear_GEMM.from_linear` does."""
    order = (0, 2, 4, 6, 1, 3, 5, 7)

    def packed(columns: torch.Tensor) -> torch.Tensor:
        words = torch.zeros(len(columns), columns.shape[1] // 8, dtype=torch.int32)
        for column in range(words.shape[1]):
            for i in range(8):
                words[:, column] |= (columns[:, column * 8 + order[i]].int() + 8) << 4 * i
        return words

    def quantize(weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
        numbers, zeros, scales = levels(weight, 4, group, symmetric=False)
        parts = {"qweight": packed(numbers.T), "qzeros": packed(zeros.T), "scales": scales.T.contiguous()}
        convert = AutoAWQConverter(group_size=group)._convert_gemm_module
        found, found_scales, found_zeros = convert(parts["qweight"], parts["scales"], parts["qzeros"])
        assert found_zeros is not None
        return parts, _dequantized(found, found_zeros, found_scales, 4, group)

    return quantize


def eight_bits(kind: str, strategy: str = "channel") -> Quantize:
    """Weights in int8 or e4m3 with a scale per tensor, per output, or per block of 64 by 64, by compressed-tensors."""
    block = [64, 64] if strategy == "block" else None
    args = QuantizationArgs(num_bits=8, type=kind, strategy=strategy, block_structure=block)
    compressor = BaseCompressor.get_value_from_registry(f"{kind}-quantized")
    scheme = QuantizationScheme(targets=["Linear"], weights=args)

    def quantize(weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
        outputs, inputs = weight.shape
        largest = weight.abs()
        if strategy == "tensor":
            largest = largest.amax().view(1)
        elif strategy == "channel":
            largest = largest.amax(1, keepdim=True)
        else:
            largest = largest.view(outputs // 64, 64, inputs // 64, 64).amax((1, 3))
        scales = largest / (127 if kind == "int" else 448)
        parts = compressor.compress({"weight": weight, "weight_scale": scales}, scheme)
        return parts, compressor.decompress(parts, scheme)["weight"]

    return quantize


def packed(group: int, *, symmetric: bool) -> Quantize:
    """compressed-tensors' four bits in groups."""
    args = QuantizationArgs(num_bits=4, strategy="group", group_size=group, symmetric=symmetric)
    scheme = QuantizationScheme(targets=["Linear"], weights=args)
    compressor = BaseCompressor.get_value_from_registry("pack-quantized")

    def quantize(weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
        _, zeros, scales = levels(weight, 4, group, symmetric)
        state = {"weight": weight, "weight_scale": scales.float(), "weight_zero_point": zeros}
        parts = compressor.compress(state, scheme)
        return parts, compressor.decompress(parts, scheme)["weight"]

    return quantize


def write_with_bitsandbytes(folder: Path, **options: Any) -> Folder:
    """Have transformers quantise a checkpoint with bitsandbytes, and write it again dequantised."""
    plain = write_checkpoint(folder / "plain", **SIZES)
    config = BitsAndBytesConfig(**options)
    model = AutoModelForCausalLM.from_pretrained(plain, quantization_config=config, dtype=torch.float32)
    model.save_pretrained(folder / "stored")
    model.dequantize(torch.float32).save_pretrained(folder / "dense")
    set_config(folder / "dense", quantization_config=None)
    return Folder(folder / "stored", folder / "dense")
