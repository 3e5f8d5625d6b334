"""Rows of a table: the embeddings of tokens, and of hidden states those that get logits."""

from __future__ import annotations

import torch

from kernels import library, reference
from kernels.formats.stored import StoredRows, gguf
from kernels.registry import Cost, register


def embedding(tokens: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """`reference.embedding`: tokens [T] int64, weight [height, width] of any type -> [T, width].

    Raises:
        IndexError: a token is not below the height.
    """
    body = library.of(weight)
    if body is None:
        return reference.embedding(tokens, weight)
    out = _rows(tokens, weight)
    body.embedding(out, tokens, weight)
    return out


def quantized_embedding(tokens: torch.Tensor, stored: StoredRows, scale: float, dtype: torch.dtype) -> torch.Tensor:
    """Rows of a table that a file stores quantised, times `scale` in fp32: tokens [T] int64 -> [T, width].

    Raises:
        IndexError: a token is not below the height.
    """
    body = library.of(stored.rows, "look_up_blocks")
    if body is None or stored.type not in gguf.NUMBERS:
        return (stored(tokens).dense() * scale).to(dtype)
    out = stored.rows.new_empty(len(tokens), stored.inputs, dtype=dtype)
    body.look_up_blocks(out, tokens, stored.rows, gguf.NUMBERS[stored.type], scale)
    return out


def _rows(tokens: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return weight.new_empty(tokens.shape[0], weight.shape[1])


def embedding_cost(rows: int, width: int, itemsize: int) -> Cost:
    return Cost(2 * rows * width * itemsize, 0)


register("embedding(Tensor tokens, Tensor weight) -> Tensor", embedding, fake=_rows, cost=embedding_cost)
