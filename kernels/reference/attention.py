"""Attention over a paged cache."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from kernels.reference.kv import LayerCache, dequantize_kv

if TYPE_CHECKING:
    from kernels.attention.plan import AttentionPlan


def paged_attention(query: torch.Tensor, cache: LayerCache, plan: AttentionPlan) -> torch.Tensor:
    """Causal attention with grouped KV heads over a paged cache, scaled by 1/sqrt(D) -> [T, H * D].

    query is [T, H, D]; the cache holds the batch's own keys and values too. Head h reads KV head h // (H / K). Keys and
    values of eight bits are read as `dequantize_kv` says; their products need not be rounded to the query's type.
    """
    outputs = [query.new_empty(0, query.shape[1] * query.shape[2])]
    rows = torch.split(query, plan.counts.tolist()), plan.starts.tolist(), plan.tables
    for row, start, table in zip(*rows, strict=True):
        keys, values = (
            dequantize_kv(x[table], None if scales is None else scales[table], torch.float32).flatten(0, 1)
            for x, scales in ((cache.keys, cache.key_scales), (cache.values, cache.value_scales))
        )
        end, shared = start + len(row), query.shape[1] // keys.shape[1]
        keys, values = (x[:end].repeat_interleave(shared, dim=1) for x in (keys, values))
        distance = torch.arange(start, end, device=query.device)[:, None] - torch.arange(end, device=query.device)
        hidden = (distance < 0) | (distance >= (plan.window or end))
        scores = torch.einsum("qhd,khd->hqk", row.float(), keys) / math.sqrt(query.shape[2])
        weights = scores.masked_fill(hidden, -math.inf).softmax(-1)
        outputs.append(torch.einsum("hqk,khd->qhd", weights, values).flatten(1).to(query.dtype))
    return torch.cat(outputs)
