"""Every op of the engine in plain torch: the specification that faster bodies must equal, and what runs without them.

Notation: T tokens of a batch, H query heads, K key/value heads, D head dimension, e bytes per element. Each op states
the bytes that it must at least move and the floating-point operations that it must at least do.
"""

from __future__ import annotations

import math

import numpy as np
import torch
import torch.nn.functional as F

from kernels.attention import SHORT, AttentionPlan, Fresh, Paged
from kernels.lora.ops import LoraExperts

_BYTE_MASKS = np.where(
    np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little") == 1, 0.0, -math.inf
).astype(np.float32)
"""What to add to the logits of eight tokens, by the byte of their bits, the lowest first."""


def embedding(tokens: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Rows of `weight` [vocabulary, width] for `tokens` [T] -> [T, width].

    Moves 2 T width e bytes; no FLOPs.
    """
    return weight.index_select(0, tokens)


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """`x / sqrt(mean(x^2) + eps) * weight` over the last dimension (Zhang and Sennrich, 2019).

    `weight` is [width], or has x's trailing dimensions, e.g. [heads, D] for x [T, heads, D] with a weight per head.
    Moves 2 |x| e bytes; 4 |x| FLOPs.
    """
    # F.rms_norm makes an fp32 temporary of x for each operation in it: four times as slow for long prompts on the CPU.
    wide = x.float()
    squares = wide * wide
    scale = squares.mean(-1, keepdim=True).add_(eps).rsqrt_()
    return torch.mul(wide, scale, out=squares).mul_(weight).to(x.dtype)


def add_rms_norm(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """Add x [T, width] to `residual` in place and return `rms_norm` of the sum.

    Moves 4 |x| e bytes; 5 |x| FLOPs.
    """
    return rms_norm(residual.add_(x), weight, eps)


def rotary_embedding(heads: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> None:
    """Rotate `heads` [T, H + K, D] (queries and keys side by side) in place: RoFormer's embedding, in halves.

    Dimension i < D/2 is paired with i + D/2. cos and sin are [T, 1, D] with both halves filled; the first half of sin
    is negated, so that the result is `heads * cos + swap_halves(heads) * sin`.
    Moves 2 T (H + K) D e + 2 T D e bytes; 3 T (H + K) D FLOPs.
    """
    tokens, count, dim = heads.shape
    swapped = heads.view(tokens, count, 2, dim // 2).flip(2).view(tokens, count, dim)
    heads.mul_(cos).addcmul_(swapped, sin)


def store_kv(
    key: torch.Tensor, value: torch.Tensor, key_cache: torch.Tensor, value_cache: torch.Tensor, slots: torch.Tensor
) -> None:
    """Write key and value [T, K, D] into the caches [blocks, block_size, K, D] at `slots` [T] (block * size + offset).

    Moves 4 T K D e bytes; no FLOPs.
    """
    key_cache.flatten(0, 1).index_copy_(0, slots, key)
    value_cache.flatten(0, 1).index_copy_(0, slots, value)


def paged_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    plan: AttentionPlan,
) -> torch.Tensor:
    """Causal attention with grouped KV heads over a paged cache, scaled by 1/sqrt(D) -> [T, H * D].

    query is [T, H, D]; key and value [T, K, D] are the batch's own, already stored in the caches
    [blocks, block_size, K, D]. Head h reads KV head h // (H / K). The caches must hold finite numbers in every block
    that a table names, also beyond the row's length: those are masked, not skipped.
    For rows of q tokens that see s keys: moves (2 q H D + 2 s K D) e bytes and 4 q s H D FLOPs (half for a fresh
    row); this body copies the keys and values of paged rows once more.
    """
    outputs: list[torch.Tensor] = []
    for group in plan.groups:
        batch = slice(group.begin, group.end)
        if isinstance(group, Fresh):
            outputs.append(_fresh(query[batch], key[batch], value[batch], group))
        else:
            outputs.append(_paged(query[batch], _gather(key_cache, group), _gather(value_cache, group), group))
    return outputs[0] if len(outputs) == 1 else torch.cat(outputs)


def _fresh(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, group: Fresh) -> torch.Tensor:
    q, k, v = (x.view(group.rows, group.count, *x.shape[1:]).transpose(1, 2) for x in (query, key, value))
    out = F.scaled_dot_product_attention(
        q, k, v, attn_mask=group.mask, is_causal=group.mask is None, enable_gqa=q.shape[1] != k.shape[1]
    )
    return out.transpose(1, 2).reshape(len(query), -1)


def _gather(cache: torch.Tensor, group: Paged) -> torch.Tensor:
    """The blocks of a group -> [rows, K, keys, D]."""
    return cache.index_select(0, group.blocks).view(group.rows, -1, *cache.shape[2:]).transpose(1, 2)


def _paged(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, group: Paged) -> torch.Tensor:
    """key, value: [rows, K, keys, D]."""
    _, heads, dim = query.shape
    kv_heads, keys = key.shape[1:3]
    shared = heads // kv_heads
    if group.count == 1:
        # One query per row: the heads that share a KV head become the query dimension, so KV is read once.
        q = query.view(group.rows, kv_heads, shared, dim)
        mask = None if group.mask is None else group.mask.expand(-1, -1, shared, keys)
        return F.scaled_dot_product_attention(q, key, value, attn_mask=mask).reshape(group.rows, -1)
    if group.count <= SHORT:
        # The same for a few queries per row, next to each other: up to three times as fast as heads one by one.
        q = query.view(group.rows, group.count, kv_heads, shared, dim).transpose(1, 2).flatten(2, 3)
        mask = None if group.mask is None else group.mask.repeat_interleave(shared, dim=2)
        out = F.scaled_dot_product_attention(q, key, value, attn_mask=mask)
        return out.view(group.rows, kv_heads, group.count, shared, dim).transpose(1, 2).reshape(len(query), -1)
    q = query.view(group.rows, group.count, heads, dim).transpose(1, 2)
    out = F.scaled_dot_product_attention(q, key, value, attn_mask=group.mask, enable_gqa=heads != kv_heads)
    return out.transpose(1, 2).reshape(len(query), -1)


def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """`x @ weight.T + bias` for x [T, in], weight [out, in], bias [out] -> [T, out].

    Moves (T in + in out + T out) e bytes; 2 T in out FLOPs.
    """
    return F.linear(x, weight, bias)


def argmax(x: torch.Tensor) -> torch.Tensor:
    """Index of the first maximum of each row of x [rows, n] -> [rows].

    Moves |x| e bytes; |x| comparisons.
    """
    if x.device.type == "cpu":
        # numpy's is vectorised: about ten times as fast as torch's, in bf16 more.
        return torch.from_numpy(x.float().numpy().argmax(axis=-1))
    return x.argmax(dim=-1)


def apply_token_bitmask(logits: torch.Tensor, bits: torch.Tensor) -> None:
    """Set finite logits [rows, vocabulary] to -inf in place where bits [rows, ceil(vocabulary / 32)] have a 0.

    `bits` is int32 on the same device; token t is bit t % 32 of word t // 32.
    Moves (2 e + 1/8) |logits| bytes; |logits| comparisons.
    """
    vocabulary = logits.shape[-1]
    if logits.device.type == "cpu":
        # Eight logits a byte, added: up to ten times as fast as a fill, which branches at every token.
        masks = np.take(_BYTE_MASKS, bits.numpy().view(np.uint8), axis=0).reshape(len(bits), -1)
        logits.add_(torch.from_numpy(masks)[:, :vocabulary])
    else:
        shifts = torch.arange(32, dtype=torch.int32, device=bits.device)
        legal = ((bits[:, :, None] >> shifts) & 1).flatten(1)
        logits.masked_fill_(legal[:, :vocabulary] == 0, -math.inf)


def sort_descending(x: torch.Tensor) -> torch.Tensor:
    """Each row of x [rows, n] sorted, largest first.

    Moves 2 |x| e bytes; |x| log n comparisons.
    """
    if x.device.type == "cpu":
        # numpy sorts with SIMD: sorting a whole row is faster than torch's top-k of a small part of it.
        return torch.from_numpy(np.sort(x.numpy(), axis=-1)).flip(-1)
    return x.sort(dim=-1, descending=True).values


def silu_and_mul(x: torch.Tensor) -> torch.Tensor:
    """SwiGLU's gate (Shazeer, 2020): `silu(x[:, :n]) * x[:, n:]` for x [T, 2 n] -> [T, n].

    Moves 3 T n e bytes; 5 T n FLOPs.
    """
    gate, up = x.chunk(2, dim=-1)
    return F.silu(gate).mul_(up)


def moe(
    x: torch.Tensor,
    router: torch.Tensor,
    gate_up: torch.Tensor,
    down: torch.Tensor,
    experts_per_token: int,
    lora: LoraExperts | None = None,
) -> torch.Tensor:
    """A sparse mixture of SwiGLU experts with Mixtral's routing: softmax over all experts, top k, renormalised.

    x [T, width], router [E, width], gate_up [E, 2 n, width], down [E, width, n] -> [T, width]. Tokens are sorted by
    expert, so that each expert's weights are read once; no size of a group is read back to the host. Rows of width
    and n elements must be multiples of 16 bytes, which `grouped_mm` wants. `lora` adapts all three products.
    With k experts per token and E' experts hit: moves E' 3 n width e + T (2 width + 3 k n) e bytes;
    6 T k n width + 2 T E width FLOPs.
    """
    logits = F.linear(x, router)
    if lora is not None:
        lora.adapt_router(x, logits)
    weights, experts = logits.float().softmax(dim=-1).topk(experts_per_token, dim=-1)
    weights /= weights.sum(dim=-1, keepdim=True)
    ranked, order = experts.flatten().sort(stable=True)
    token = order // experts_per_token
    ends = torch.searchsorted(ranked, torch.arange(len(router), device=x.device), right=True, out_int32=True)
    rows = x[token]
    hidden = F.grouped_mm(rows, gate_up.transpose(1, 2), offs=ends)
    if lora is not None:
        lora.adapt_gate_up(rows, hidden, experts, order)
    hidden = silu_and_mul(hidden)
    output = F.grouped_mm(hidden, down.transpose(1, 2), offs=ends)
    if lora is not None:
        lora.adapt_down(hidden, output, experts, order)
    output *= weights.flatten()[order, None].to(x.dtype)
    return torch.zeros_like(x).index_add_(0, token, output)
