"""Attention over a paged cache: decodes, drafts and prompts' chunks in one call."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Any

import torch

from kernels import library
from kernels.attention import fast_torch
from kernels.attention.plan import AttentionPlan
from kernels.memory import Workspace
from kernels.reference.kv import LayerCache
from kernels.registry import Cost, register

_MAX_CUDA_HEAD_DIM = 256
_CUDA_SPLIT = 256
"""Keys per split of the CUDA body; see kernels/csrc/include/roundhouse/attention.h."""
NO_SCALES = torch.empty(0)
"""Given to built bodies in place of scales for a cache that has none."""
_workspace = Workspace()


def paged_attention(query: torch.Tensor, cache: LayerCache, plan: AttentionPlan) -> torch.Tensor:
    """`reference.paged_attention` -> [T, H * D]; what lies in the cache beyond a row's length may be anything."""
    body = library.of(query, "paged_attention")
    if body is None or not _fits(body, query.dtype, query.shape[2]):
        return fast_torch.paged_attention(query, cache, plan)
    tokens, heads, dim = query.shape
    out = query.new_empty(tokens, heads * dim)
    kv_heads, window = cache.keys.shape[2], plan.window or 0
    rows = (plan.tables, plan.starts, plan.counts)
    if not body.is_cuda:
        size = _scratch_bytes(body, heads, kv_heads, dim, torch.get_num_threads(), *plan.tables.shape)
        body.paged_attention(out, query, *native_cache(cache), *rows, window, _workspace.of(size))
    elif tokens:
        most, splits = plan.max_query_len, -(-plan.max_seq_len // _CUDA_SPLIT)
        size = body.paged_attention_scratch(len(plan.starts), heads, kv_heads, dim, most, splits)
        scratch = torch.empty(size, dtype=torch.uint8, device=query.device)
        body.paged_attention(out, query, *native_cache(cache), *rows, window, scratch, most, splits)
    return out


def native_cache(cache: LayerCache) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """A cache as built bodies take it: keys, values and their scales, which are empty tensors where it has none."""
    keys, values, key_scales, value_scales = cache
    if key_scales is None or value_scales is None:
        return keys, values, NO_SCALES, NO_SCALES
    return keys, values, key_scales, value_scales


def attention_is_built(key_cache: torch.Tensor, dtype: torch.dtype) -> bool:
    """Whether a built body serves queries of `dtype` on this cache, which can follow a `fixed_plan`."""
    body = library.of(key_cache, "paged_attention")
    return body is not None and _fits(body, dtype, key_cache.shape[3])


def _fits(body: library.Library, query: torch.dtype, dim: int) -> bool:
    return query in library.TYPES and not (body.is_cuda and dim > _MAX_CUDA_HEAD_DIM)


@cache
def _scratch_bytes(body: library.Library, *of: int) -> int:
    size: int = body.paged_attention_scratch(*of)
    return size


def paged_attention_cost(
    rows: Iterable[tuple[int, int]],
    heads: int,
    kv_heads: int,
    dim: int,
    itemsize: int,
    window: int | None = None,
    kv_itemsize: int | None = None,
) -> Cost:
    """Cost for rows (start, count), each of which reads its keys, values and queries and writes its outputs once."""
    kv_bytes = itemsize if kv_itemsize is None else kv_itemsize
    size = flops = 0
    for start, count in rows:
        most = start + count if window is None else window
        seen = sum(min(position + 1, most) for position in range(start, start + count))
        keys = min(start + count, count - 1 + most)
        size += 2 * (count * heads * itemsize + keys * kv_heads * kv_bytes) * dim
        flops += 4 * seen * heads * dim
    return Cost(size, flops)


def _op(query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, *others: Any) -> torch.Tensor:
    tables, starts, counts, window, *scales = others
    host = (starts.cpu().numpy(), counts.cpu().numpy(), tables.cpu().numpy())
    plan = AttentionPlan(starts, counts, tables, window, host)
    return paged_attention(query, LayerCache(keys, values, *scales), plan)


register(
    "paged_attention(Tensor query, Tensor key_cache, Tensor value_cache, Tensor tables, Tensor starts, Tensor counts,"
    " int? window, Tensor? key_scales, Tensor? value_scales) -> Tensor",
    _op,
    fake=lambda query, *_: query.new_empty(query.shape[0], query.shape[1] * query.shape[2]),
    cost=paged_attention_cost,
)
