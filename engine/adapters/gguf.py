"""Turns LoRA adapters in GGUF, llama.cpp's format, into peft's files; from then on they are adapters like any other.

Tensors `<name>.lora_a` and `<name>.lora_b` belong to a tensor of the base model by its name in GGUF. Their product is
multiplied with `adapter.lora.alpha` / rank, or with 1 where alpha is 0. The format is what llama.cpp's
`convert_lora_to_gguf.py` writes and `src/llama-adapter.cpp` reads. No torch here.
"""

from __future__ import annotations

import re
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
from safetensors.numpy import save_file

from engine.adapters.config import CONFIG, AdapterError
from engine.adapters.format import MAX_WEIGHTS_BYTES
from engine.adapters.targets import EMBEDDING, PREFIX
from engine.adapters.tensors import WEIGHTS
from engine.checkpoint.config import ModelConfig
from engine.checkpoint.errors import CheckpointError
from engine.checkpoint.gguf.checkpoint import in_halves
from engine.checkpoint.gguf.config import ARCHITECTURES, Architecture
from engine.checkpoint.gguf.metadata import GgufMetadata
from engine.checkpoint.gguf.names import checkpoint_names
from engine.checkpoint.gguf.reader import GgufFile, TensorPlace
from engine.checkpoint.gguf.types import Bytes
from engine.checkpoint.opening import open_checkpoint

_ALPHA = "adapter.lora.alpha"
_PART = re.compile(r"(.+)\.lora_([ab])")
_AS_LLAMA = ("LlamaForCausalLM", "MistralForCausalLM", "MixtralForCausalLM")
"""Architectures that are one in GGUF."""


@contextmanager
def as_folder(source: Path, base: Path) -> Iterator[Path]:
    """Yield a folder with the files of peft for an adapter: `source` itself, or what is made of a GGUF file.

    Raises:
        AdapterError: the file is no adapter, or not one for the base model in `base`.
        CheckpointError: the base model cannot be read.
    """
    if source.is_dir():
        yield source
        return
    model = open_checkpoint(base).config
    with tempfile.TemporaryDirectory(prefix="roundhouse-adapter-") as name:
        folder = Path(name)
        try:
            _convert(GgufFile(source), model, folder)
        except CheckpointError as error:
            raise AdapterError(f"{error}; name peft's folder, or a LoRA adapter in GGUF") from error
        yield folder


def _convert(file: GgufFile, model: ModelConfig, folder: Path) -> None:
    if file.size > MAX_WEIGHTS_BYTES:
        raise CheckpointError(f"it has {file.size:,} bytes; the most is {MAX_WEIGHTS_BYTES:,}")
    metadata = GgufMetadata(file.metadata)
    architecture = _architecture(metadata, model)
    tensors: dict[str, npt.NDArray[Any]] = {}
    ranks: dict[str, int] = {}
    for name, (a, b) in _pairs(file.tensors).items():
        module = _module(name, model, architecture)
        first = _values(f"{name}.lora_a", a, file.data(a))
        rows = file.data(b)
        second = _values(f"{name}.lora_b", b, in_halves(name, rows, model) if architecture.rotary_pairs else rows)
        if module == EMBEDDING:
            tensors[f"{PREFIX}{module}.lora_embedding_A"] = np.ascontiguousarray(first.T)
            tensors[f"{PREFIX}{module}.lora_embedding_B"] = second
        else:
            tensors[f"{PREFIX}{module}.lora_A.weight"], tensors[f"{PREFIX}{module}.lora_B.weight"] = first, second
        ranks[module] = b.shape[-1]
    (folder / CONFIG).write_bytes(_config(ranks, metadata.number(_ALPHA)))
    save_file(tensors, folder / WEIGHTS)


def _architecture(metadata: GgufMetadata, model: ModelConfig) -> Architecture:
    """Check what the file says that it is."""
    kinds = metadata.text("general.type", "model"), metadata.text("adapter.type", "")
    if kinds != ("adapter", "lora"):
        raise CheckpointError(f"it is no LoRA adapter: general.type is {kinds[0]!r} and adapter.type {kinds[1]!r}")
    for key in metadata.under("adapter."):
        if key not in ("type", "lora.alpha"):
            raise CheckpointError(f"adapter.{key} is not supported: it is another computation than LoRA's")
    name = metadata.text("general.architecture")
    architecture = ARCHITECTURES.get(name)
    fitting = _AS_LLAMA if name == "llama" else () if architecture is None else (architecture.name,)
    if architecture is None or model.architecture not in fitting:
        raise CheckpointError(f"it is for the architecture {name!r}, and the base model is a {model.architecture}")
    return architecture


def _pairs(places: Mapping[str, TensorPlace]) -> dict[str, tuple[TensorPlace, TensorPlace]]:
    """Return A and B of each tensor of the base model."""
    parts: dict[str, dict[str, TensorPlace]] = {}
    for name, place in places.items():
        part = _PART.fullmatch(name)
        if part is None:
            raise CheckpointError(f"tensor {name!r} is not supported; only LoRA's own, .lora_a and .lora_b, are")
        if len(place.shape) != 2:
            raise CheckpointError(f"tensor {name!r} has {len(place.shape)} dimensions where a matrix has 2")
        parts.setdefault(part[1], {})[part[2]] = place
    for name, found in parts.items():
        if len(found) == 1:
            raise CheckpointError(f"of tensor {name!r} there is only .lora_{next(iter(found))}")
    return {name: (found["a"], found["b"]) for name, found in parts.items()}


def _module(name: str, model: ModelConfig, architecture: Architecture) -> str:
    names = checkpoint_names(name, model.experts, model.expert_names, architecture.modules)
    if names is None or len(names) != 1 or not names[0].endswith(".weight"):
        raise CheckpointError(f"tensor {name!r} is not one that can have LoRA")
    return names[0].removesuffix(".weight")


def _values(name: str, place: TensorPlace, data: Bytes) -> npt.NDArray[Any]:
    kind, shape = place.type.name, place.shape
    if kind in ("f32", "f16"):
        return np.array(data.view(np.float32 if kind == "f32" else np.float16).reshape(shape))
    if kind == "bf16":
        return (data.view(np.uint16).astype(np.uint32) << 16).view(np.float32).reshape(shape)
    if kind == "q8_0":
        blocks = data.reshape(-1, place.type.size)
        numbers = blocks[:, 2:].view(np.int8) * blocks[:, :2].copy().view(np.float16).astype(np.float32)
        return numbers.reshape(shape)
    raise CheckpointError(f"tensor {name!r} is stored as {kind}; convert it as f32, f16, bf16 or q8_0")


def _config(ranks: Mapping[str, int], alpha: float) -> bytes:
    """Return the content of adapter_config.json: the commonest rank, and by module those that differ from it."""
    if not ranks:
        raise CheckpointError("it has no tensors")
    ((usual, _),) = Counter(ranks.values()).most_common(1)
    others = {module: rank for module, rank in ranks.items() if rank != usual}
    config = {"peft_type": "LORA", "r": usual, "lora_alpha": alpha or usual, "target_modules": list(ranks)}
    if others:
        config["rank_pattern"] = {re.escape(module): rank for module, rank in others.items()}
        if not alpha:
            config["alpha_pattern"] = config["rank_pattern"]
    return msgspec.json.encode(config)
