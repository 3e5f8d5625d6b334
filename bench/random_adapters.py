"""Random LoRA adapters in peft's format: to measure with, not to talk to."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
import torch
from safetensors.torch import save_file

from engine.adapters.format import CONFIG, WEIGHTS, check_adapter
from engine.adapters.layout import lay_out, shape
from engine.adapters.manifest import Manifest
from engine.cache.blocks import BLOCK_SIZE
from engine.checkpoint.opening import open_checkpoint

ATTENTION = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj")
LINEAR = (*ATTENTION, "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj")
_SPREAD = 0.02
"""Standard deviation of all weights."""


class StoredAdapters:
    """Adapters of one shape for the checkpoint `base`, in these folders, as an `AdapterSource`."""

    def __init__(self, base: Path, folders: Sequence[Path]) -> None:
        self._config = open_checkpoint(base).config
        self._folders: dict[str, Path] = {}
        self._manifests: dict[str, Manifest] = {}
        for path in folders:
            manifest = check_adapter(path, base)
            self._folders[manifest.version], self._manifests[manifest.version] = path, manifest

    @property
    def versions(self) -> list[str]:
        return list(self._folders)

    def sectors(self, dtype: torch.dtype, kv_dtype: torch.dtype) -> int:
        """KV blocks that one adapter takes, with weights of `dtype`; all of them are alike."""
        config = self._config
        manifest = next(iter(self._manifests.values()))
        layout = lay_out(shape(config, manifest.targets, manifest.base_biases), dtype)
        block_bytes = 2 * config.layers * BLOCK_SIZE * config.kv_heads * config.head_dim * kv_dtype.itemsize
        return -(-layout.elements * dtype.itemsize // block_bytes)

    def manifest(self, version: str) -> Manifest:
        return self._manifests[version]

    def path(self, version: str) -> Path:
        return self._folders[version]


class RandomAdapters(StoredAdapters):
    """New random adapters of one rank, on all linear layers, in folders below `folder`."""

    def __init__(self, folder: Path, base: Path, *, rank: int, count: int) -> None:
        super().__init__(base, [write_adapter(folder / str(seed), base, rank=rank, seed=seed) for seed in range(count)])


def write_adapter(folder: Path, base: Path, *, rank: int, seed: int, modules: Sequence[str] = LINEAR) -> Path:
    """Write one adapter in bf16 on the named products of every layer."""
    config = open_checkpoint(base).config
    hidden, inner = config.hidden_size, config.intermediate_size
    queries, keys = config.heads * config.head_dim, config.kv_heads * config.head_dim
    shapes = {
        "self_attn.q_proj": (hidden, queries),
        "self_attn.k_proj": (hidden, keys),
        "self_attn.v_proj": (hidden, keys),
        "self_attn.o_proj": (queries, hidden),
        "mlp.gate_proj": (hidden, inner),
        "mlp.up_proj": (hidden, inner),
        "mlp.down_proj": (inner, hidden),
    }
    generator = torch.Generator().manual_seed(seed)

    def numbers(*shape: int) -> torch.Tensor:
        return (_SPREAD * torch.randn(*shape, generator=generator)).bfloat16()

    tensors = {}
    for layer in range(config.layers):
        for module in modules:
            inputs, outputs = shapes[module]
            name = f"base_model.model.model.layers.{layer}.{module}"
            tensors[f"{name}.lora_A.weight"] = numbers(rank, inputs)
            tensors[f"{name}.lora_B.weight"] = numbers(outputs, rank)
    folder.mkdir(parents=True)
    save_file(tensors, folder / WEIGHTS)
    fields = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": rank,
        "lora_alpha": 2 * rank,
        "target_modules": [name.rpartition(".")[2] for name in modules],
    }
    (folder / CONFIG).write_bytes(msgspec.json.encode(fields))
    return folder
