"""Random LoRA adapters in peft's format, on all linear layers of a checkpoint: to measure with, not to talk to."""

from __future__ import annotations

from pathlib import Path

import msgspec
import torch
from safetensors.torch import save_file

from engine.adapters.format import CONFIG, WEIGHTS, check_adapter
from engine.adapters.layout import lay_out, shape
from engine.adapters.manifest import Manifest
from engine.config import ModelConfig
from engine.kv import BLOCK_SIZE

_SPREAD = 0.02
"""Standard deviation of all numbers."""


class RandomAdapters:
    """Adapters of one rank for the checkpoint `base`, in folders below `folder`, as an `AdapterSource`."""

    def __init__(self, folder: Path, base: Path, *, rank: int, count: int) -> None:
        self._config = ModelConfig.from_directory(base)
        self._folders: dict[str, Path] = {}
        self._manifests: dict[str, Manifest] = {}
        for seed in range(count):
            path = write_adapter(folder / str(seed), base, rank=rank, seed=seed)
            manifest = check_adapter(path, base)
            self._folders[manifest.version], self._manifests[manifest.version] = path, manifest

    @property
    def versions(self) -> list[str]:
        return list(self._folders)

    def sectors(self, dtype: torch.dtype) -> int:
        """KV blocks that one adapter takes; all of them are alike."""
        config = self._config
        layout = lay_out(shape(config, next(iter(self._manifests.values()))), dtype)
        return -(-layout.elements // (2 * config.layers * BLOCK_SIZE * config.kv_heads * config.head_dim))

    def manifest(self, version: str) -> Manifest:
        return self._manifests[version]

    def path(self, version: str) -> Path:
        return self._folders[version]


def write_adapter(folder: Path, base: Path, *, rank: int, seed: int) -> Path:
    """Write one adapter in bf16."""
    config = ModelConfig.from_directory(base)
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
        for module, (inputs, outputs) in shapes.items():
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
        "target_modules": [name.rpartition(".")[2] for name in shapes],
    }
    (folder / CONFIG).write_bytes(msgspec.json.encode(fields))
    return folder
