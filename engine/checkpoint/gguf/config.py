"""From a GGUF file's metadata to the keys of config.json, so that one strict reader serves both."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from engine.checkpoint.errors import CheckpointError
from engine.checkpoint.families import ELSEWHERE, REFUSED
from engine.checkpoint.gguf.metadata import GgufMetadata
from engine.checkpoint.gguf.names import ROPE_FREQUENCIES, ROPE_LONG, ROPE_SHORT
from engine.checkpoint.gguf.reader import TensorPlace
from engine.checkpoint.stored_config import StoredConfig

_MAX_LAYERS = 1024


_WINDOW = {"attention.sliding_window": "sliding_window"}


@dataclass(frozen=True, slots=True)
class Architecture:
    """What a `general.architecture` of GGUF is called in config.json, and how its keys and tensors differ."""

    name: str
    rotary_pairs: bool = False
    """Whether rows of the query and key projections are ordered for rotations of neighbouring values."""
    keys: Mapping[str, str] = field(default_factory=dict)
    """Keys with a number that only this architecture has, and what config.json calls them."""
    modules: Mapping[str, str] = field(default_factory=dict)
    """Parts of a layer that are called otherwise than in Llama, as `checkpoint_names` takes them."""


ARCHITECTURES = {
    "llama": Architecture("LlamaForCausalLM", rotary_pairs=True),
    "mistral3": Architecture("MistralForCausalLM", rotary_pairs=True),
    "qwen2": Architecture("Qwen2ForCausalLM"),
    "qwen3": Architecture("Qwen3ForCausalLM"),
    "qwen3moe": Architecture("Qwen3MoeForCausalLM"),
    "smollm3": Architecture("SmolLM3ForCausalLM", rotary_pairs=True),
    "granite": Architecture(
        "GraniteForCausalLM",
        rotary_pairs=True,
        keys={
            "embedding_scale": "embedding_multiplier",
            "residual_scale": "residual_multiplier",
            "attention.scale": "attention_multiplier",
            "logit_scale": "logits_scaling",
        },
    ),
    "gemma3": Architecture(
        "Gemma3ForCausalLM",
        keys=_WINDOW
        | {
            "attention.sliding_window_pattern": "sliding_window_pattern",
            "rope.freq_base_swa": "rope_local_base_freq",
        },
        modules={
            "post_attention_norm": "post_attention_layernorm",
            "ffn_norm": "pre_feedforward_layernorm",
            "post_ffw_norm": "post_feedforward_layernorm",
        },
    ),
    "phi3": Architecture(
        "Phi3ForCausalLM",
        keys=_WINDOW,
        modules={"attn_qkv": "self_attn.qkv_proj", "ffn_up": "mlp.gate_up_proj"},
    ),
}
_GEMMA3_27B_LAYERS = 62
"""Layers of the one Gemma 3 whose scores are scaled by hidden size and heads, which no key says."""

_READ = {
    "block_count", "context_length", "embedding_length", "feed_forward_length", "attention.head_count",
    "attention.head_count_kv", "attention.key_length", "attention.value_length", "attention.layer_norm_rms_epsilon",
    "rope.freq_base", "rope.dimension_count", "rope.scaling.type", "rope.scaling.factor", "rope.scale_linear",
    "rope.scaling.original_context_length", "rope.scaling.attn_factor", "rope.scaling.yarn_beta_fast",
    "rope.scaling.yarn_beta_slow", "rope.scaling.finetuned", "expert_count", "expert_used_count", "vocab_size",
    "tensor_data_layout", "expert_feed_forward_length",
}  # fmt: skip
"""Keys that are read, or say nothing of the computation."""
_DEFAULTS = {"attention.causal": True, "rope.scaling.yarn_ext_factor": 1.0, "rope.scaling.yarn_attn_factor": 1.0}
"""Values under which keys that are not read change nothing."""


def architecture_of(metadata: GgufMetadata) -> Architecture:
    """
    Raises:
        CheckpointError: the file holds no such model as the engine serves, but an adapter, the vision part of a model
            or another architecture.
    """
    kind = metadata.text("general.type", "model")
    name = metadata.text("general.architecture")
    if kind == "mmproj" or name == "clip":
        raise CheckpointError("it is the vision part (mmproj) of a model; name the file of the language model")
    if kind != "model":
        raise CheckpointError(f"general.type is {kind!r}; name a file with a whole model")
    if name in REFUSED:
        raise CheckpointError(f"general.architecture {name!r} is not supported: {REFUSED[name]}; {ELSEWHERE}")
    if name not in ARCHITECTURES:
        raise CheckpointError(
            f"general.architecture {name!r} is not supported; these are: {', '.join(ARCHITECTURES)}; {ELSEWHERE}"
        )
    return ARCHITECTURES[name]


def stored_config(
    metadata: GgufMetadata,
    tensors: Mapping[str, TensorPlace],
    vocabulary: int,
    rope_tensors: Mapping[str, npt.NDArray[np.float32]],
) -> StoredConfig:
    """Return the keys of config.json that mean the same.

    Args:
        rope_tensors: content of those of `ROPE_TENSORS` that the file has.

    Raises:
        CheckpointError: a key is missing, of another type, or would change the computation in an unknown way.
    """
    prefix, architecture = metadata.text("general.architecture") + ".", architecture_of(metadata)
    _refuse_unknown(metadata, prefix, architecture)
    heads, head_dim = _heads(metadata, prefix)
    layers = metadata.integer(prefix + "block_count")
    if layers > _MAX_LAYERS:
        raise CheckpointError(f"{prefix}block_count is {layers}; the most is {_MAX_LAYERS}")
    fields: dict[str, Any] = {
        "architectures": [architecture.name],
        "vocab_size": vocabulary,
        "hidden_size": metadata.integer(prefix + "embedding_length"),
        "intermediate_size": metadata.integer(prefix + "feed_forward_length"),
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": metadata.integer(prefix + "attention.head_count_kv", heads),
        "head_dim": head_dim,
        "max_position_embeddings": metadata.integer(prefix + "context_length"),
        "rms_norm_eps": metadata.number(prefix + "attention.layer_norm_rms_epsilon"),
        "tie_word_embeddings": "output.weight" not in tensors,
        "attention_bias": "blk.0.attn_q.bias" in tensors,
        "mlp_bias": "blk.0.ffn_gate.bias" in tensors,
        "sliding_window": None,
        "rope_parameters": _rope(metadata, prefix, head_dim, rope_tensors),
        "dtype": _dtype(tensors),
    }
    if experts := metadata.integer(prefix + "expert_count", 0):
        fields |= _mixture(metadata, prefix, experts, fields["intermediate_size"])
        if prefix == "llama.":
            fields["architectures"] = ["MixtralForCausalLM"]
    for key, name in architecture.keys.items():
        if prefix + key in metadata and not metadata.equals(prefix + key, 0):
            fields[name] = metadata.scalar(prefix + key)
    if prefix == "gemma3.":
        fields["rope_parameters"] = {"full_attention": fields["rope_parameters"]}
        large = layers == _GEMMA3_27B_LAYERS
        fields["query_pre_attn_scalar"] = fields["hidden_size"] // heads if large else head_dim
    try:
        return msgspec.convert(fields, StoredConfig)
    except msgspec.ValidationError as error:
        raise CheckpointError(f"config.json: {error}") from error


def _heads(metadata: GgufMetadata, prefix: str) -> tuple[int, int]:
    """Return the number of heads and the dimensions of each."""
    heads = metadata.integer(prefix + "attention.head_count")
    if heads < 1:
        raise CheckpointError(f"{prefix}attention.head_count is {heads}; at least 1 is expected")
    head_dim = metadata.integer(prefix + "attention.key_length", metadata.integer(prefix + "embedding_length") // heads)
    if metadata.integer(prefix + "attention.value_length", head_dim) != head_dim:
        raise CheckpointError(f"{prefix}attention.value_length differs from key_length, which is not supported")
    if head_dim < 1:
        raise CheckpointError(f"{prefix}attention.key_length is {head_dim}; at least 1 is expected")
    return heads, head_dim


def _mixture(metadata: GgufMetadata, prefix: str, experts: int, width: int) -> dict[str, Any]:
    """Return the keys of a mixture of experts; `width` is theirs where the file does not say."""
    return {
        "num_local_experts": experts,
        "num_experts_per_tok": metadata.integer(prefix + "expert_used_count"),
        "norm_topk_prob": True,  # Mixtral's routing, which llama.cpp gives Qwen3 too
        "moe_intermediate_size": metadata.integer(prefix + "expert_feed_forward_length", width),
    }


def _refuse_unknown(metadata: GgufMetadata, prefix: str, architecture: Architecture) -> None:
    for key in metadata.under(prefix):
        full = prefix + key
        if key in _READ or key in architecture.keys or metadata.equals(full, 0):  # switched off
            continue
        if key not in _DEFAULTS or not metadata.equals(full, _DEFAULTS[key]):
            raise CheckpointError(f"{full} is not supported, and may change what the model computes")


def _rope(
    metadata: GgufMetadata, prefix: str, head_dim: int, tensors: Mapping[str, npt.NDArray[np.float32]]
) -> dict[str, Any]:
    scaling = prefix + "rope.scaling."
    kind = metadata.text(scaling + "type", "none")
    factor = metadata.number(scaling + "factor", metadata.number(prefix + "rope.scale_linear", 0.0))
    if kind == "none" and factor not in (0.0, 1.0):
        kind = "linear"
    rope: dict[str, Any] = {
        "rope_type": "default" if kind == "none" else kind,
        "rope_theta": metadata.number(prefix + "rope.freq_base", 10_000.0),
        "partial_rotary_factor": metadata.integer(prefix + "rope.dimension_count", head_dim) / head_dim,
    }
    if kind != "none":
        rope["factor"] = factor or None
    if original := metadata.integer(scaling + "original_context_length", 0):
        rope["original_max_position_embeddings"] = original
    for name in ("beta_fast", "beta_slow"):
        if (value := metadata.number(f"{scaling}yarn_{name}", 0.0)) and kind == "yarn":
            rope[name] = value
    if tensors:
        return rope | _frequencies(metadata, scaling, kind, tensors)
    attention = metadata.number(scaling + "attn_factor", 1.0)
    if attention != 1.0:
        if kind != "yarn" or factor < 1.0:
            raise CheckpointError(f"{scaling}attn_factor is only supported for 'yarn'")
        rope["attention_factor"] = attention * (1.0 + 0.1 * math.log(factor))
    return rope


def _frequencies(
    metadata: GgufMetadata, scaling: str, kind: str, tensors: Mapping[str, npt.NDArray[np.float32]]
) -> dict[str, Any]:
    """Return the keys of a scaling of which the file has the result."""
    if tensors.keys() == {ROPE_FREQUENCIES}:
        served, fields = "none", {"rope_type": "divided", "divisors": tensors[ROPE_FREQUENCIES].tolist()}
    elif tensors.keys() == {ROPE_LONG, ROPE_SHORT}:
        served = "longrope"
        fields = {
            "rope_type": "longrope",
            "long_factor": tensors[ROPE_LONG].tolist(),
            "short_factor": tensors[ROPE_SHORT].tolist(),
            "attention_factor": metadata.number(scaling + "attn_factor", 1.0),
        }
    else:
        raise CheckpointError(f"tensor {min(tensors)!r} needs its counterpart, and no other")
    if kind not in ("none", served):
        raise CheckpointError(f"{scaling}type is {kind!r}, which cannot go with {min(tensors)}")
    return fields


def _dtype(tensors: Mapping[str, TensorPlace]) -> str:
    """Return the type of activations that fits the weights: norms and biases do not count."""
    types = {place.type.name for place in tensors.values() if len(place.shape) > 1}
    if types == {"f32"}:
        return "float32"
    return "float16" if types == {"f16"} else "bfloat16"
