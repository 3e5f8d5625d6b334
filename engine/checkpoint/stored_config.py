"""The keys of config.json that decide the computation, as they are written there, and the tokens that end a text."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec

from engine.checkpoint.errors import CheckpointError

T = TypeVar("T")
Positive = Annotated[int, msgspec.Meta(gt=0)]
NotNegative = Annotated[int, msgspec.Meta(ge=0)]
Factor = Annotated[float, msgspec.Meta(gt=0)]


class StoredConfig(msgspec.Struct, frozen=True):
    """The keys of config.json that decide the computation."""

    architectures: list[str]
    vocab_size: Positive
    hidden_size: Positive
    intermediate_size: Positive
    num_hidden_layers: Positive
    num_attention_heads: Positive
    max_position_embeddings: Positive
    rms_norm_eps: float
    num_key_value_heads: Positive | None = None
    head_dim: Positive | None = None
    hidden_act: str | None = None
    hidden_activation: str | None = None
    tie_word_embeddings: bool | None = None
    attention_bias: bool = False
    mlp_bias: bool = False
    sliding_window: Positive | msgspec.UnsetType | None = msgspec.UNSET
    use_sliding_window: bool = False
    max_window_layers: int = 28
    layer_types: list[str] | None = None
    sliding_window_pattern: Positive | None = None
    no_rope_layers: list[int] | None = None
    no_rope_layer_interval: Positive = 4
    num_local_experts: NotNegative | None = None
    num_experts: Positive | None = None
    num_experts_per_tok: Positive | None = None
    moe_intermediate_size: Positive | None = None
    shared_intermediate_size: Positive | None = None
    norm_topk_prob: bool = False
    decoder_sparse_step: int = 1
    mlp_only_layers: list[int] | None = None
    rope_parameters: dict[str, Any] | None = None
    rope_scaling: dict[str, Any] | None = None
    rope_theta: float | None = None
    rope_local_base_freq: float | None = None
    original_max_position_embeddings: int | None = None
    partial_rotary_factor: float | None = None
    position_embedding_type: str | None = None
    embedding_multiplier: Factor = 1.0
    residual_multiplier: Factor = 1.0
    attention_multiplier: Factor = 1.0
    logits_scaling: Factor = 1.0
    query_pre_attn_scalar: Factor = 256.0
    attn_logit_softcapping: float | None = None
    final_logit_softcapping: float | None = None
    use_bidirectional_attention: bool | None = None
    quantization_config: dict[str, Any] | None = None
    dtype: str | None = None
    torch_dtype: str | None = None


class _Ends(msgspec.Struct, frozen=True):
    """The key that generation_config.json and config.json have in common."""

    eos_token_id: int | list[int] | None = None


def read_file(path: Path, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except FileNotFoundError:
        raise CheckpointError(f"{path} does not exist; name a directory in Hugging Face format") from None
    except msgspec.DecodeError as error:
        raise CheckpointError(f"{path.name}: {error}") from error


def read_eos_token_ids(directory: Path) -> tuple[int, ...]:
    """Read the tokens that end a text: those of generation_config.json, else of config.json, as transformers does."""
    for name in ("generation_config.json", "config.json"):
        if (directory / name).exists() and (ids := read_file(directory / name, _Ends).eos_token_id) is not None:
            return (ids,) if isinstance(ids, int) else tuple(ids)
    return ()
