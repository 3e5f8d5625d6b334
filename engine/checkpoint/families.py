"""What each supported architecture changes in the one decoder that serves them all."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from engine.checkpoint.errors import CheckpointError
from engine.checkpoint.stored_config import StoredConfig


@dataclass(frozen=True, slots=True)
class Family:
    """Differences of an architecture from Llama. None: the config's own key decides."""

    qkv_bias: bool | None = None
    output_bias: bool | None = None
    mlp_bias: bool | None = False
    qk_norm: bool = False
    default_kv_heads: int | None = None
    default_head_dim: int | None = None
    default_theta: float = 10_000.0
    windowed: Literal["never", "all layers", "by layer"] = "never"
    default_window: int | None = None
    experts: bool = False


FAMILIES = {
    "LlamaForCausalLM": Family(mlp_bias=None),
    "MistralForCausalLM": Family(
        qkv_bias=False, output_bias=False, default_kv_heads=8, windowed="all layers", default_window=4096
    ),
    "Qwen2ForCausalLM": Family(qkv_bias=True, output_bias=False, default_kv_heads=32, windowed="by layer"),
    "Qwen3ForCausalLM": Family(qk_norm=True, default_kv_heads=32, default_head_dim=128, windowed="by layer"),
    "MixtralForCausalLM": Family(
        qkv_bias=False,
        output_bias=False,
        default_kv_heads=8,
        default_theta=1_000_000.0,
        windowed="all layers",
        experts=True,
    ),
}


def family_of(raw: StoredConfig) -> Family:
    names = raw.architectures
    if len(names) != 1 or names[0] not in FAMILIES:
        raise CheckpointError(
            f"config.json: architectures {names} are not supported; this engine serves {', '.join(FAMILIES)}; "
            "any other model can stand behind an OpenAI-compatible server named as a pool"
        )
    return FAMILIES[names[0]]
