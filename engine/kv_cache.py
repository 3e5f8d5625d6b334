"""The memory behind the paged KV cache, lent to adapters block by block; `engine.kv` knows which block holds what.

All of it is one allocation of *sectors*. A sector is one block: keys and values of 16 tokens in every layer. Adapters
borrow whole sectors for their weights (`engine.adapters.bank`), so that one pool of memory serves both.
"""

from __future__ import annotations

import math

import torch

from engine.config import ModelConfig
from engine.kv import BLOCK_SIZE


class KVCache:
    """Keys and values of `blocks` blocks, [blocks, layers, 2, kv_heads, BLOCK_SIZE, head_dim].

    Ops see one layer's keys or values as a tensor of rows [n, BLOCK_SIZE, kv_heads, head_dim] in which block b is row
    `b * stride`: the rows between belong to the other layers. In memory a head's tokens are neighbours, because
    attention reads one head at a time.

    Starts as zeros: the plain torch body of attention masks what a row may not see but reads it, so every block must
    hold finite numbers.
    """

    def __init__(self, config: ModelConfig, blocks: int, device: torch.device, dtype: torch.dtype) -> None:
        """
        Raises:
            ValueError: there is not so much memory.
        """
        self.stride = 2 * config.layers
        """Rows per block: what block ids are multiplied with for the ops."""
        shape = blocks * self.stride, config.kv_heads, BLOCK_SIZE, config.head_dim
        try:
            rows = torch.zeros(shape, device=device, dtype=dtype)
        except RuntimeError as error:  # torch's, on the host and on a GPU
            size = math.prod(shape) * dtype.itemsize
            raise ValueError(
                f"the KV cache for {blocks * BLOCK_SIZE} tokens needs {size / (1 << 30):,.1f} GiB, which cannot be "
                "had; lower --kv-tokens"
            ) from error
        by_token = rows.transpose(1, 2)
        self.layers = [(by_token[2 * layer :], by_token[2 * layer + 1 :]) for layer in range(config.layers)]
        """(keys, values) of each layer."""
        self.sectors = rows.view(blocks, -1)
        """The same memory, one row per block."""
