"""Reads a checkpoint's `config.json` strictly into one `ModelConfig` that drives the decoder.

Fields and defaults are those of transformers' configuration classes (5.x and the older forms it still reads), which are
the meaning of the format. Keys that transformers does not read for these architectures have no effect there and are
ignored here; options that would change the computation in a way this engine does not implement are refused by name.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import msgspec

from engine.wire import RopeRegimes

RopeType = Literal["default", "linear", "dynamic", "llama3", "yarn", "longrope"]
T = TypeVar("T")
Positive = Annotated[int, msgspec.Meta(gt=0)]
Activation = Literal["silu", "gelu", "gelu_tanh"]
_ACTIVATIONS: dict[str, Activation] = {
    "silu": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
}
"""Activations by their names in transformers; the last two are one function."""


class CheckpointError(ValueError):
    """A model directory cannot be served. The message names the field or tensor and the remedy."""


class RopeParameters(msgspec.Struct, frozen=True):
    """Rotary position embedding, with the names of config.json; which fields matter depends on `rope_type`."""

    rope_type: RopeType = "default"
    rope_theta: float = 10_000.0
    factor: float | None = None
    original_max_position_embeddings: int | None = None
    attention_factor: float | None = None
    beta_fast: float | None = None
    beta_slow: float | None = None
    mscale: float | None = None
    mscale_all_dim: float | None = None
    truncate: bool = True
    low_freq_factor: float | None = None
    high_freq_factor: float | None = None
    short_factor: tuple[float, ...] | None = None
    long_factor: tuple[float, ...] | None = None
    partial_rotary_factor: float = 1.0


_ROPE_REQUIRED: dict[RopeType, tuple[str, ...]] = {
    "default": (),
    "linear": ("factor",),
    "dynamic": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor"),
    "yarn": (),
    "longrope": ("short_factor", "long_factor"),
}


class _Config(msgspec.Struct, frozen=True):
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
    hidden_act: str = "silu"
    tie_word_embeddings: bool = False
    attention_bias: bool = False
    mlp_bias: bool = False
    sliding_window: Positive | msgspec.UnsetType | None = msgspec.UNSET
    use_sliding_window: bool = False
    max_window_layers: int = 28
    layer_types: list[str] | None = None
    num_local_experts: Positive = 8
    num_experts_per_tok: Positive = 2
    rope_parameters: dict[str, Any] | None = None
    rope_scaling: dict[str, Any] | None = None
    rope_theta: float | None = None
    original_max_position_embeddings: int | None = None
    partial_rotary_factor: float | None = None
    quantization_config: dict[str, Any] | None = None
    eos_token_id: int | list[int] | None = None
    dtype: str | None = None
    torch_dtype: str | None = None


class _GenerationConfig(msgspec.Struct, frozen=True):
    """The one key of generation_config.json that the engine honours."""

    eos_token_id: int | list[int] | None = None


@dataclass(frozen=True, slots=True)
class _Family:
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


_FAMILIES = {
    "LlamaForCausalLM": _Family(mlp_bias=None),
    "MistralForCausalLM": _Family(
        qkv_bias=False, output_bias=False, default_kv_heads=8, windowed="all layers", default_window=4096
    ),
    "Qwen2ForCausalLM": _Family(qkv_bias=True, output_bias=False, default_kv_heads=32, windowed="by layer"),
    "Qwen3ForCausalLM": _Family(qk_norm=True, default_kv_heads=32, default_head_dim=128, windowed="by layer"),
    "MixtralForCausalLM": _Family(
        qkv_bias=False,
        output_bias=False,
        default_kv_heads=8,
        default_theta=1_000_000.0,
        windowed="all layers",
        experts=True,
    ),
}


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """A decoder-only transformer: RMSNorm, rotary attention with grouped KV heads, gated MLPs or mixtures of them."""

    architecture: str
    vocabulary: int
    hidden_size: Positive
    intermediate_size: Positive
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    norm_eps: float
    qkv_bias: bool
    output_bias: bool
    mlp_bias: bool
    activation: Activation
    qk_norm: bool
    tied_embeddings: bool
    windows: tuple[int | None, ...]
    """Attention window of each layer: positions that a token sees, itself included; None is all."""
    experts: int
    """Number of experts per layer; 0 for dense MLPs."""
    experts_per_token: int
    rope: RopeParameters
    max_position_embeddings: Positive
    eos_token_ids: tuple[int, ...]
    stored_dtype: str
    """Type of the checkpoint's weights as its config names it: "float32", "bfloat16" or "float16"."""

    @classmethod
    def from_directory(cls, directory: Path) -> ModelConfig:
        """Read `config.json` (and end-of-sequence ids from `generation_config.json`).

        Raises:
            CheckpointError: a file or field is missing, has the wrong type, or names something unsupported.
        """
        raw = _read(directory / "config.json", _Config)
        family = _family(raw)
        _refuse_unsupported(raw)
        heads = raw.num_attention_heads
        head_dim = raw.head_dim or family.default_head_dim or raw.hidden_size // heads
        config = cls(
            architecture=raw.architectures[0],
            vocabulary=raw.vocab_size,
            hidden_size=raw.hidden_size,
            intermediate_size=raw.intermediate_size,
            layers=raw.num_hidden_layers,
            heads=heads,
            kv_heads=raw.num_key_value_heads or family.default_kv_heads or heads,
            head_dim=head_dim,
            norm_eps=raw.rms_norm_eps,
            qkv_bias=raw.attention_bias if family.qkv_bias is None else family.qkv_bias,
            output_bias=raw.attention_bias if family.output_bias is None else family.output_bias,
            mlp_bias=raw.mlp_bias if family.mlp_bias is None else family.mlp_bias,
            activation=_activation(raw, family),
            qk_norm=family.qk_norm,
            tied_embeddings=raw.tie_word_embeddings,
            windows=_windows(raw, family),
            experts=raw.num_local_experts if family.experts else 0,
            experts_per_token=raw.num_experts_per_tok if family.experts else 0,
            rope=_rope(raw, family, head_dim),
            max_position_embeddings=raw.max_position_embeddings,
            eos_token_ids=_eos_token_ids(directory, raw),
            stored_dtype=raw.dtype or raw.torch_dtype or "float32",
        )
        config._check_sizes()
        return config

    @property
    def context(self) -> int:
        """Longest sequence in tokens. Scaled RoPE reaches `factor` times as far as the length of pretraining.

        The same rule as vLLM's: llama3 and longrope checkpoints already state the extended length.
        """
        rope, length = self.rope, self.max_position_embeddings
        if rope.rope_type == "yarn":
            length = rope.original_max_position_embeddings or length
        if rope.rope_type in ("linear", "dynamic", "yarn"):
            length = int(length * (rope.factor or 1.0))
        return max(length, self.max_position_embeddings)

    @property
    def rope_regimes(self) -> RopeRegimes | None:
        """Which prompts get the same rotary frequencies; None if all do, as in most models.

        Under "dynamic" and "longrope" scaling the KV of a token depends on its prompt's length, not on the tokens
        before it alone. KV may only be shared between requests of one regime: it belongs into the prefix cache's key.
        """
        rope = self.rope
        if rope.rope_type == "dynamic":
            return RopeRegimes(self.max_position_embeddings, each_length=True)
        if rope.rope_type == "longrope":
            return RopeRegimes(rope.original_max_position_embeddings or 0)
        return None

    def _check_sizes(self) -> None:
        if self.heads % self.kv_heads:
            raise CheckpointError(
                f"config.json: num_attention_heads ({self.heads}) must be a multiple of num_key_value_heads "
                f"({self.kv_heads})"
            )
        if self.head_dim % 2:
            raise CheckpointError(f"config.json: head_dim must be even for rotary embeddings, got {self.head_dim}")
        if self.experts and (self.hidden_size % 8 or self.intermediate_size % 8):
            raise CheckpointError(
                f"config.json: hidden_size ({self.hidden_size}) and intermediate_size ({self.intermediate_size}) of a "
                "mixture of experts must be multiples of 8"
            )
        if self.experts_per_token > self.experts:
            raise CheckpointError(
                f"config.json: num_experts_per_tok ({self.experts_per_token}) must not exceed num_local_experts "
                f"({self.experts})"
            )


def _read(path: Path, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except FileNotFoundError:
        raise CheckpointError(f"{path} does not exist; name a directory in Hugging Face format") from None
    except msgspec.DecodeError as error:
        raise CheckpointError(f"{path.name}: {error}") from error


def _family(raw: _Config) -> _Family:
    names = raw.architectures
    if len(names) != 1 or names[0] not in _FAMILIES:
        raise CheckpointError(
            f"config.json: architectures {names} are not supported; this engine serves {', '.join(_FAMILIES)}; "
            "any other model can stand behind an OpenAI-compatible server named as a pool"
        )
    return _FAMILIES[names[0]]


def _refuse_unsupported(raw: _Config) -> None:
    if raw.quantization_config is not None:
        method = raw.quantization_config.get("quant_method", "unknown")
        raise CheckpointError(
            f"config.json: quantization_config (quant_method {method!r}) is not supported; "
            "name the unquantised checkpoint in float32, bfloat16 or float16"
        )
    dtype = raw.dtype or raw.torch_dtype
    if dtype not in (None, "float32", "bfloat16", "float16"):
        raise CheckpointError(f"config.json: dtype {dtype!r} is not supported; store float32, bfloat16 or float16")


def _activation(raw: _Config, family: _Family) -> Activation:
    found = _ACTIVATIONS.get(raw.hidden_act)
    if found is None:
        names = ", ".join(_ACTIVATIONS)
        raise CheckpointError(f"config.json: hidden_act {raw.hidden_act!r} is not supported; these are: {names}")
    if family.experts and found != "silu":
        raise CheckpointError(f"config.json: hidden_act {raw.hidden_act!r} is not supported for experts; 'silu' is")
    return found


def _windows(raw: _Config, family: _Family) -> tuple[int | None, ...]:
    layers = raw.num_hidden_layers
    window = family.default_window if raw.sliding_window is msgspec.UNSET else raw.sliding_window
    assert not isinstance(window, msgspec.UnsetType)
    if family.windowed == "by layer":
        if not raw.use_sliding_window:
            window = None
        elif raw.sliding_window is msgspec.UNSET:
            window = 4096
        kinds = raw.layer_types
        if kinds is None:
            return tuple(window if index >= raw.max_window_layers else None for index in range(layers))
        return tuple(_layer_window(kind, window) for kind in _check_layer_types(kinds, layers))
    if family.windowed == "never" and window is not None:
        raise CheckpointError(
            f"config.json: sliding_window is not an option of {raw.architectures[0]}; set it to null, "
            "or name the architecture MistralForCausalLM"
        )
    expected = "full_attention" if window is None else "sliding_attention"
    if raw.layer_types is not None and set(_check_layer_types(raw.layer_types, layers)) != {expected}:
        raise CheckpointError(
            f"config.json: layer_types must all be {expected!r} for {raw.architectures[0]}; remove layer_types"
        )
    return (window,) * layers


def _check_layer_types(kinds: list[str], layers: int) -> list[str]:
    if len(kinds) != layers:
        raise CheckpointError(f"config.json: layer_types has {len(kinds)} entries for {layers} layers")
    return kinds


def _layer_window(kind: str, window: int | None) -> int | None:
    if kind == "full_attention":
        return None
    if kind != "sliding_attention":
        raise CheckpointError(
            f"config.json: layer type {kind!r} is not supported; only 'full_attention' and 'sliding_attention' are"
        )
    if window is None:
        raise CheckpointError("config.json: layer_types has 'sliding_attention' but use_sliding_window is not set")
    return window


def _rope(raw: _Config, family: _Family, head_dim: int) -> RopeParameters:
    fields = dict(raw.rope_scaling or raw.rope_parameters or {})
    for name, value in fields.items():
        if isinstance(value, dict):
            raise CheckpointError(f"config.json: rope_parameters per layer type ({name!r}) are not supported")
    fields.setdefault("rope_type", fields.pop("type", "default"))
    if fields["rope_type"] not in _ROPE_REQUIRED:
        raise CheckpointError(
            f"config.json: rope_type {fields['rope_type']!r} is not supported; these are: {', '.join(_ROPE_REQUIRED)}"
        )
    theta = raw.rope_theta if raw.rope_theta is not None else family.default_theta
    fields.setdefault("rope_theta", theta)
    if raw.partial_rotary_factor is not None:
        fields.setdefault("partial_rotary_factor", raw.partial_rotary_factor)
    if raw.original_max_position_embeddings is not None:  # transformers gives the outer field priority
        fields["original_max_position_embeddings"] = raw.original_max_position_embeddings
    if fields.get("original_max_position_embeddings") is None:
        fields["original_max_position_embeddings"] = raw.max_position_embeddings
    fields = {name: value for name, value in fields.items() if value is not None}
    try:
        rope = msgspec.convert(fields, RopeParameters)
    except msgspec.ValidationError as error:
        raise CheckpointError(f"config.json: rope_parameters: {error}") from error
    _check_rope(rope, head_dim)
    return rope


def _check_rope(rope: RopeParameters, head_dim: int) -> None:
    for name in _ROPE_REQUIRED[rope.rope_type]:
        if getattr(rope, name) is None:
            raise CheckpointError(f"config.json: rope_parameters of type {rope.rope_type!r} need {name!r}")
    for name in ("short_factor", "long_factor"):
        factors = getattr(rope, name)
        if factors is not None and len(factors) != head_dim // 2:
            raise CheckpointError(
                f"config.json: rope_parameters: {name} has {len(factors)} entries; head_dim {head_dim} "
                f"needs {head_dim // 2}"
            )
    if rope.partial_rotary_factor != 1.0:
        raise CheckpointError(
            f"config.json: partial_rotary_factor {rope.partial_rotary_factor} is not supported; only 1.0 is"
        )


def _eos_token_ids(directory: Path, raw: _Config) -> tuple[int, ...]:
    """Read end-of-sequence ids by transformers' rule: those of generation_config.json, else those of config.json."""
    path = directory / "generation_config.json"
    ids = _read(path, _GenerationConfig).eos_token_id if path.exists() else None
    if ids is None:
        ids = raw.eos_token_id
    if ids is None:
        return ()
    return (ids,) if isinstance(ids, int) else tuple(ids)
