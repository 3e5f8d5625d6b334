"""What each supported architecture changes in the one decoder that serves them all."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from engine.checkpoint.errors import CheckpointError
from engine.checkpoint.stored_config import StoredConfig

QkNorm = Literal["none", "each head", "all heads"]
"""Whether queries and keys have norms, and over what."""


@dataclass(frozen=True, slots=True)
class LinearNames:
    """Names of a layer's linear parts; one name for what is one tensor in the checkpoint."""

    qkv: tuple[str, ...] = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
    gate_up: tuple[str, ...] = ("mlp.gate_proj", "mlp.up_proj")
    down: str = "mlp.down_proj"


@dataclass(frozen=True, slots=True)
class ExpertNames:
    """Names of a mixture's tensors: `LAYER.block.gate.weight` is the router, `LAYER.block.experts.0.gate.weight` …"""

    block: str
    gate: str
    up: str
    down: str


@dataclass(frozen=True, slots=True)
class Mixture:
    """A family's mixture of experts, with what holds where config.json does not say."""

    names: ExpertNames
    experts: int
    experts_per_token: int
    width: int | None = None
    """Intermediate size of an expert; None: that of the model."""


@dataclass(frozen=True, slots=True)
class Family:
    """Differences of an architecture from Llama. None: the config's own key decides."""

    qkv_bias: bool | None = None
    output_bias: bool | None = None
    mlp_bias: bool | None = False
    linear_names: LinearNames = LinearNames()
    qk_norm: QkNorm = "none"
    default_kv_heads: int | None = None
    default_head_dim: int | None = None
    default_theta: float = 10_000.0
    default_local_theta: float | None = None
    """Base of the rotary embedding of layers with a window, if that is another one."""
    partly_rotated: bool = False
    """Whether `partial_rotary_factor` may leave dimensions of a head as they are."""
    rope_aliases: Mapping[str, str] = field(default_factory=dict)
    """Older names of values of `rope_type`."""
    activation_key: Literal["hidden_act", "hidden_activation"] = "hidden_act"
    default_activation: str = "silu"
    norm_names: tuple[str | None, ...] = ("input_layernorm", "post_attention_layernorm", None, None)
    """See `ModelConfig.norm_names`."""
    norm_offset: float = 0.0
    width_key: Literal["intermediate_size", "shared_intermediate_size"] = "intermediate_size"
    default_tied: bool = False
    windowed: Literal["never", "all layers", "upper layers", "layers without rotation", "all but every nth"] = "never"
    """Layers that have windows; `layer_types` decides if there are any but all or none of them."""
    names_layer_types: bool = False
    """Whether `layer_types` has to be there, as layers are of another kind without it."""
    default_pattern: int = 6
    """The n of "all but every nth", where the config does not say."""
    default_window: int | None = None
    window_is_opt_in: bool = False
    """Whether windows hold only where `use_sliding_window` is set."""
    skips_rotation: bool = False
    """Whether some layers have no rotary embedding, as `no_rope_layers` says."""
    factors: Literal["none", "multipliers", "sizes"] = "none"
    """Whether embeddings, layers' outputs, scores and logits have factors: by keys of their own, or by sizes."""
    served: Mapping[str, tuple[object, ...]] = field(default_factory=dict)
    """Values that are served of keys that would change the computation; other values are refused."""
    mixture: Mixture | None = None


ELSEWHERE = "any other model can stand behind an OpenAI-compatible server named as a pool"
FAMILIES = {
    "LlamaForCausalLM": Family(mlp_bias=None),
    "MistralForCausalLM": Family(
        qkv_bias=False, output_bias=False, default_kv_heads=8, windowed="all layers", default_window=4096
    ),
    "Qwen2ForCausalLM": Family(
        qkv_bias=True,
        output_bias=False,
        default_kv_heads=32,
        windowed="upper layers",
        default_window=4096,
        window_is_opt_in=True,
    ),
    "Qwen3ForCausalLM": Family(
        qk_norm="each head",
        default_kv_heads=32,
        default_head_dim=128,
        windowed="upper layers",
        default_window=4096,
        window_is_opt_in=True,
    ),
    "Qwen3MoeForCausalLM": Family(
        qk_norm="each head",
        default_kv_heads=4,
        windowed="all layers",
        default_window=4096,
        window_is_opt_in=True,
        served={"norm_topk_prob": (True,), "decoder_sparse_step": (1,), "mlp_only_layers": ([], None)},
        mixture=Mixture(ExpertNames("mlp", "gate_proj", "up_proj", "down_proj"), 128, 8, width=768),
    ),
    "SmolLM3ForCausalLM": Family(
        mlp_bias=None,
        default_kv_heads=4,
        default_theta=2_000_000.0,
        default_tied=True,
        windowed="layers without rotation",
        window_is_opt_in=True,
        skips_rotation=True,
    ),
    "Gemma3ForCausalLM": Family(
        qk_norm="each head",
        default_kv_heads=4,
        default_head_dim=256,
        default_theta=1_000_000.0,
        default_local_theta=10_000.0,
        default_tied=True,
        activation_key="hidden_activation",
        default_activation="gelu_pytorch_tanh",
        norm_names=(
            "input_layernorm",
            "pre_feedforward_layernorm",
            "post_attention_layernorm",
            "post_feedforward_layernorm",
        ),
        norm_offset=1.0,
        windowed="all but every nth",
        default_window=4096,
        factors="sizes",
        served={
            "attn_logit_softcapping": (None,),
            "final_logit_softcapping": (None,),
            "use_bidirectional_attention": (False, None),
        },
    ),
    "Olmo3ForCausalLM": Family(
        qk_norm="all heads",
        default_theta=500_000.0,
        default_local_theta=500_000.0,
        norm_names=(None, None, "post_attention_layernorm", "post_feedforward_layernorm"),
        windowed="all but every nth",
        default_pattern=4,
        default_window=4096,
    ),
    "Phi3ForCausalLM": Family(
        qkv_bias=False,
        output_bias=False,
        linear_names=LinearNames(qkv=("self_attn.qkv_proj",), gate_up=("mlp.gate_up_proj",)),
        partly_rotated=True,
        rope_aliases={"su": "longrope", "yarn": "longrope"},
        windowed="all layers",
    ),
    "GraniteForCausalLM": Family(mlp_bias=None, factors="multipliers"),
    "GraniteMoeHybridForCausalLM": Family(
        linear_names=LinearNames(gate_up=("shared_mlp.input_linear",), down="shared_mlp.output_linear"),
        width_key="shared_intermediate_size",
        factors="multipliers",
        names_layer_types=True,
        served={"num_local_experts": (0,), "position_embedding_type": ("rope",)},
    ),
    "MixtralForCausalLM": Family(
        qkv_bias=False,
        output_bias=False,
        default_kv_heads=8,
        default_theta=1_000_000.0,
        windowed="all layers",
        mixture=Mixture(ExpertNames("block_sparse_moe", "w1", "w3", "w2"), 8, 2),
    ),
}


_GPT_OSS = (
    "its attention has sinks, its experts have biases and an activation of their own, and its answers are written in "
    "channels, none of which this engine knows"
)
REFUSED = {"GptOssForCausalLM": _GPT_OSS, "gpt-oss": _GPT_OSS}
"""Why architectures that many ask for are not served, by their names in config.json and in GGUF files."""


def family_of(raw: StoredConfig) -> Family:
    names = raw.architectures
    if len(names) == 1 and names[0] in REFUSED:
        raise CheckpointError(f"config.json: {names[0]} is not supported: {REFUSED[names[0]]}; {ELSEWHERE}")
    if len(names) != 1 or names[0] not in FAMILIES:
        raise CheckpointError(
            f"config.json: architectures {names} are not supported; this engine serves {', '.join(FAMILIES)}; "
            f"{ELSEWHERE}"
        )
    return FAMILIES[names[0]]
