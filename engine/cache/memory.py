"""The memory behind the paged KV cache, lent to adapters block by block.

`engine.cache.blocks` knows which block holds what.

All of it is one allocation of *sectors*. A sector is one block: keys and values of 16 tokens in every layer. Adapters
borrow whole sectors for their weights (`engine.adapters.bank`), so that one pool of memory serves both.
"""

from __future__ import annotations

from typing import Literal

import torch

from engine.cache.blocks import BLOCK_SIZE
from engine.checkpoint.config import ModelConfig
from kernels import LayerCache, zeros_in_huge_pages

_TAKEN = 256 * 1024 * 1024
"""Bytes taken from the system at once, so that no request waits for them; the rest is taken as it is filled."""
KVDtype = Literal["auto", "fp32", "fp16", "bf16", "fp8", "int8"]
"""Type of keys and values; "auto" is the model's own type. fp8 is e4m3, int8 has a scale per token and head."""
_TYPES = {
    "fp32": torch.float32,
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
    "fp8": torch.float8_e4m3fn,
    "int8": torch.int8,
}


def kv_type(name: KVDtype, dtype: torch.dtype) -> torch.dtype:
    """Return the type of keys and values of a model whose own is `dtype`."""
    return dtype if name == "auto" else _TYPES[name]


class KVCache:
    """Keys and values of `blocks` blocks, [blocks, layers, 2, kv_heads, BLOCK_SIZE, head_dim].

    In memory a head's tokens are neighbours, because attention reads one head at a time. The scales of int8,
    [kv_heads, BLOCK_SIZE], lie behind a layer's keys and behind its values, so that a copy of a sector has them too.

    Starts as zeros: the plain torch body of attention masks what a row may not see but reads it, so every block must
    hold finite numbers.
    """

    def __init__(
        self,
        config: ModelConfig,
        blocks: int,
        device: torch.device,
        dtype: torch.dtype,
        stored: torch.dtype,
    ) -> None:
        """`stored` is the type of keys and values, `dtype` the model's, in which adapters see the sectors.

        Raises:
            ValueError: the memory cannot be allocated.
        """
        self.stride = 2 * config.layers
        """Length of the first axis of a layer's caches per block: the ops multiply block ids by it."""
        shape = (config.kv_heads, BLOCK_SIZE, config.head_dim)
        numbers = config.kv_heads * BLOCK_SIZE * config.head_dim * stored.itemsize
        scales = 4 * config.kv_heads * BLOCK_SIZE if stored == torch.int8 else 0
        size = blocks * self.stride * (numbers + scales)
        on_host = device.type == "cpu"
        self.taken = min(_TAKEN, size) if on_host else size
        """Bytes that the system has given already; the rest is given as it is filled."""
        try:
            if on_host:
                memory = zeros_in_huge_pages(size, self.taken)
            else:
                memory = torch.zeros(size, dtype=torch.uint8, device=device)
        except (OSError, OverflowError, RuntimeError) as error:  # the host's and torch's exceptions
            raise ValueError(
                f"the KV cache for {blocks * BLOCK_SIZE} tokens needs {size / (1 << 30):,.1f} GiB, which cannot be "
                "had; lower --kv-tokens"
            ) from error
        rows = memory.view(blocks * self.stride, numbers + scales)
        by_token = rows[:, :numbers].view(stored).view(len(rows), *shape).transpose(1, 2)
        scale = rows[:, numbers:].view(torch.float32).view(len(rows), *shape[:2]).transpose(1, 2) if scales else None
        self.layers = [
            LayerCache(
                by_token[2 * layer :],
                by_token[2 * layer + 1 :],
                None if scale is None else scale[2 * layer :],
                None if scale is None else scale[2 * layer + 1 :],
            )
            for layer in range(config.layers)
        ]
        self.sectors = rows.view(blocks, -1).view(dtype)
        """Memory of all sectors in the model's type, [blocks, elements]."""
