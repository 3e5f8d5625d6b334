"""Sizes of the inputs that `bench.kernels` measures: on the CPU, on a CUDA device, and for a smoke run."""

from __future__ import annotations

import msgspec


class AttentionShape(msgspec.Struct, frozen=True):
    """Requests that each add `count` tokens to `start` cached ones."""

    kind: str
    rows: int
    start: int
    count: int
    heads: int
    kv_heads: int
    dim: int


class LoraShape(msgspec.Struct, frozen=True):
    """Rows through adapters of a site with parts of these sizes."""

    rows: int
    width: int
    parts: tuple[int, ...]
    rank: int
    distinct: tuple[int, ...]
    """Numbers of distinct adapters to measure."""


class KernelSizes(msgspec.Struct, frozen=True, kw_only=True):
    """Sizes of the inputs; pairs are (tokens, width) or (outputs, inputs)."""

    probe_bytes: int
    """Bytes that the bandwidth's probe reads or copies."""
    probe_size: int
    """Rows and columns of the square product that measures FLOPs."""
    seconds: float
    """Seconds of measuring per figure, about."""
    weight_bytes: int
    """Bytes that all copies of weights together exceed."""
    input_bytes: int = 1
    """Bytes that all copies of inputs together exceed; 1: they stay in caches."""
    caches: int = 0
    """Bytes of inputs that caches hold from one call to the next."""
    aims: bool = True
    """Whether the share of the limit has aims."""
    stored: tuple[str, ...] = ("bf16", "fp8", "int8")
    """Types of keys and values."""
    norms: tuple[tuple[int, int], ...] = ()
    gates: tuple[tuple[int, int], ...]
    embeddings: tuple[int, ...] = ()
    """Tokens of lookups in a table of 32,000 rows."""
    rotary: tuple[tuple[int, int, int, int], ...]
    """Rotations, as tokens, heads, KV heads and head dimension."""
    attention: tuple[AttentionShape, ...]
    weights: tuple[tuple[int, int], ...]
    block_types: tuple[str, ...] = ()
    """Types of GGUF's blocks in which weights are stored too."""
    cached_weights: tuple[tuple[int, int], ...] = ()
    """Weights that caches hold from one call to the next."""
    linear_rows: tuple[int, ...]
    lora: LoraShape
    experts: tuple[int, int]
    """Width and inner width of a layer of eight experts, two for each token."""
    expert_rows: tuple[int, ...]
    sampling: tuple[tuple[int, int], ...]
    """Logits that are sampled, as rows and vocabulary."""


CPU = KernelSizes(
    probe_bytes=1 << 29,
    probe_size=2048,
    seconds=0.15,
    weight_bytes=1 << 29,
    caches=1 << 24,
    aims=False,
    stored=("float32", "fp16", "bf16", "fp8", "int8"),
    gates=((1, 5632), (32, 5632), (2048, 5632), (32, 1536)),
    embeddings=(1, 32, 2048),
    rotary=((1, 32, 4, 64), (32, 32, 4, 64), (512, 32, 4, 64)),
    attention=(
        AttentionShape("decode", 32, 2047, 1, 32, 4, 64),
        AttentionShape("decode", 8, 4095, 1, 32, 8, 128),
        AttentionShape("decode", 1, 16383, 1, 32, 8, 128),
        AttentionShape("decode", 4, 4095, 1, 32, 32, 64),
        AttentionShape("decode", 32, 159, 1, 6, 6, 48),
        AttentionShape("draft", 8, 1019, 5, 32, 4, 64),
        AttentionShape("prompt", 1, 0, 2048, 32, 4, 64),
        AttentionShape("chunk", 1, 8192, 512, 32, 8, 128),
    ),
    weights=((2560, 2048), (11264, 2048), (2048, 5632), (32000, 2048)),
    block_types=("q4_1", "q4_k", "q5_0", "q6_k", "q8_0"),
    cached_weights=((864, 288), (288, 288), (3072, 288), (288, 1536), (8192, 288)),
    linear_rows=(1, 8, 32, 512),
    lora=LoraShape(32, 2048, (2048, 256, 256), 8, (1, 16, 32)),
    experts=(2048, 7168),
    expert_rows=(1, 8, 32, 512),
    sampling=((32, 8192), (32, 32000), (32, 128256)),
)
"""TinyLlama's shape, this repository's model from caches, and a quarter of Mixtral's experts."""
_TOKENS, _CONTEXT = 16384, 4096
CUDA = KernelSizes(
    probe_bytes=1 << 30,
    probe_size=8192,
    seconds=2e-3,
    weight_bytes=1 << 28,
    input_bytes=1 << 28,
    norms=((_TOKENS, 4096), (_TOKENS, 8192)),
    gates=((_TOKENS, 11008), (_TOKENS, 28672)),
    rotary=((_TOKENS, 32, 32, 128), (_TOKENS, 32, 8, 128)),
    attention=(
        AttentionShape("decode", 32, _CONTEXT - 1, 1, 32, 8, 128),
        AttentionShape("decode", 8, _CONTEXT - 1, 1, 32, 32, 128),
        AttentionShape("decode", 1, 16 * _CONTEXT - 1, 1, 64, 8, 128),
        AttentionShape("decode", 32, _CONTEXT - 1, 1, 32, 8, 64),
        AttentionShape("prompt", 1, 0, _CONTEXT, 32, 8, 128),
    ),
    weights=((12288, 4096), (22016, 4096), (4096, 11008), (10240, 8192), (57344, 8192), (8192, 28672)),
    linear_rows=(1, 4, 16, 64, 512),
    lora=LoraShape(64, 4096, (4096,) * 3, 16, (1, 16, 64)),
    experts=(4096, 14336),
    expert_rows=(1, 8, 64, 512),
    sampling=((64, 128256),),
)
"""The shapes of Llama 2's 7B and 70B, and of Mixtral 8x7B."""
QUICK = KernelSizes(
    probe_bytes=1 << 16,
    probe_size=32,
    seconds=0.0,
    weight_bytes=1,
    norms=((3, 4096),),
    gates=((3, 11008),),
    rotary=((3, 32, 8, 128),),
    attention=(AttentionShape("decode", 3, 39, 1, 32, 8, 128), AttentionShape("prompt", 1, 0, 40, 32, 8, 64)),
    weights=((48, 256),),
    block_types=("q4_k",),
    linear_rows=(1, 16),
    lora=LoraShape(16, 64, (64,) * 3, 8, (1, 16)),
    experts=(64, 32),
    expert_rows=(1, 8),
    sampling=((3, 300),),
)
"""Sizes of a smoke run."""
