"""The tensors behind the paged KV cache; which block holds what is `engine.kv`'s business."""

from __future__ import annotations

import torch

from engine.config import ModelConfig
from engine.kv import BLOCK_SIZE


class KVCache:
    """Keys and values of every layer, [blocks, BLOCK_SIZE, kv_heads, head_dim] each.

    Starts as zeros: attention masks what a row may not see but reads it, so every block must hold finite numbers.
    """

    def __init__(self, config: ModelConfig, blocks: int, device: torch.device, dtype: torch.dtype) -> None:
        shape = (config.layers, 2, blocks, BLOCK_SIZE, config.kv_heads, config.head_dim)
        storage = torch.zeros(shape, device=device, dtype=dtype)
        self.block_bytes = 2 * BLOCK_SIZE * config.kv_heads * config.head_dim * dtype.itemsize
        """Of one block's keys and values in one layer."""
        self.layers: list[tuple[torch.Tensor, torch.Tensor]] = [(keys, values) for keys, values in storage]
