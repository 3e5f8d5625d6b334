"""Reads a checkpoint's `config.json` strictly into one `ModelConfig` that drives the decoder.

Fields and defaults are those of transformers' configuration classes (5.x and the older forms it still reads), which are
the meaning of the format. Keys that transformers does not read for these architectures have no effect there and are
ignored here; options that would change the computation in a way this engine does not implement are refused by name.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec

from engine.checkpoint.errors import CheckpointError
from engine.checkpoint.families import ExpertNames, Family, LinearNames, Mixture, QkNorm, family_of
from engine.checkpoint.quantization import read_quantization
from engine.checkpoint.rope import RopeParameters, read_rope, read_ropes
from engine.checkpoint.stored_config import Positive, StoredConfig, read_eos_token_ids, read_file
from engine.checkpoint.windows import read_windows
from engine.wire import RopeRegimes

Activation = Literal["silu", "gelu", "gelu_tanh"]
_ACTIVATIONS: dict[str, Activation] = {
    "silu": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
}
"""Activations by their names in transformers; the last two are one function."""


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
    linear_names: LinearNames
    qk_norm: QkNorm
    norm_names: tuple[str | None, ...]
    """A layer's norms before attention and before the MLP, and of what each of them gives; None: it has no such one."""
    norm_offset: float
    """What is added to the stored weights of all norms."""
    tied_embeddings: bool
    windows: tuple[int | None, ...]
    """Attention window of each layer: positions that a token sees, itself included; None is all."""
    experts: int
    """Number of experts per layer; 0 for dense MLPs."""
    experts_per_token: int
    expert_names: ExpertNames | None
    """Names of the experts' tensors; None for dense MLPs."""
    embedding_scale: float
    """What embeddings are multiplied with."""
    score_scale: float
    """What scores of attention are multiplied with beyond 1 / sqrt(head_dim)."""
    logits_scale: float
    rope: RopeParameters
    """Rotary embedding of whole sequences: the context and its scaling are this one's."""
    ropes: tuple[RopeParameters | None, ...]
    """Rotary embedding of each layer; None: it rotates nothing."""
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
        raw = read_file(directory / "config.json", StoredConfig)
        return cls.from_stored(raw, read_eos_token_ids(directory))

    @classmethod
    def from_stored(cls, raw: StoredConfig, eos_token_ids: tuple[int, ...]) -> ModelConfig:
        """Make sense of a config's keys, wherever they were read.

        Raises:
            CheckpointError: a field names something unsupported, or two do not fit each other.
        """
        family = family_of(raw)
        _refuse_unsupported(raw, family)
        heads, mixture = raw.num_attention_heads, family.mixture
        head_dim = raw.head_dim or family.default_head_dim or raw.hidden_size // heads
        factors = _factors(raw, family, head_dim)
        rope = read_rope(raw, family, head_dim)
        windows = read_windows(raw, family)
        config = cls(
            architecture=raw.architectures[0],
            vocabulary=raw.vocab_size,
            hidden_size=raw.hidden_size,
            intermediate_size=_intermediate_size(raw, family),
            layers=raw.num_hidden_layers,
            heads=heads,
            kv_heads=raw.num_key_value_heads or family.default_kv_heads or heads,
            head_dim=head_dim,
            # Where what layers add is multiplied with m, all of the residual is kept over m: a norm does not see that,
            # but for its epsilon.
            norm_eps=raw.rms_norm_eps / factors.residual**2,
            qkv_bias=raw.attention_bias if family.qkv_bias is None else family.qkv_bias,
            output_bias=raw.attention_bias if family.output_bias is None else family.output_bias,
            mlp_bias=raw.mlp_bias if family.mlp_bias is None else family.mlp_bias,
            activation=_activation(raw, family),
            linear_names=family.linear_names,
            qk_norm=family.qk_norm,
            norm_names=family.norm_names,
            norm_offset=family.norm_offset,
            tied_embeddings=family.default_tied if raw.tie_word_embeddings is None else raw.tie_word_embeddings,
            windows=windows,
            experts=0 if mixture is None else _experts(raw, mixture),
            experts_per_token=0 if mixture is None else raw.num_experts_per_tok or mixture.experts_per_token,
            expert_names=None if mixture is None else mixture.names,
            embedding_scale=factors.embedding / factors.residual,
            score_scale=factors.score,
            logits_scale=factors.logits,
            rope=rope,
            ropes=read_ropes(raw, family, rope, windows, head_dim),
            max_position_embeddings=raw.max_position_embeddings,
            eos_token_ids=eos_token_ids,
            stored_dtype=raw.dtype or raw.torch_dtype or "float32",
        )
        config._check_sizes()
        return config

    def stretched(self, factor: float | None) -> ModelConfig:
        """Return the same with a context that YaRN makes `factor` times as long (Peng et al., 2023); None: as it is.

        It is what `rope_scaling` of type "yarn" in config.json says, with the checkpoint's context as the original one.

        Raises:
            CheckpointError: the context is stretched already, or layers differ in their rotary embeddings.
        """
        if factor is None:
            return self
        plain = self.rope
        if plain.rope_type != "default":
            raise CheckpointError(f"its context is stretched already, with rope_type {plain.rope_type!r}")
        if not {*self.ropes} <= {plain, None}:
            raise CheckpointError(f"layers of {self.architecture} have different rotary embeddings")
        pretrained = self.max_position_embeddings
        rope = msgspec.structs.replace(
            plain, rope_type="yarn", factor=factor, original_max_position_embeddings=pretrained
        )
        return replace(self, rope=rope, ropes=tuple(each and rope for each in self.ropes))

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
    def rope_tables(self) -> tuple[RopeParameters | None, ...]:
        """The rotary embeddings that layers have, each once: a table of a step is for one of them."""
        return tuple(dict.fromkeys((self.rope, *self.ropes)))

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


class _Factors(NamedTuple):
    """What a family multiplies its numbers with."""

    embedding: float
    residual: float
    """Of what a layer adds to the residual."""
    score: float
    """Of scores, beyond 1 / sqrt(head_dim)."""
    logits: float


def _factors(raw: StoredConfig, family: Family, head_dim: int) -> _Factors:
    match family.factors:
        case "none":
            return _Factors(1.0, 1.0, 1.0, 1.0)
        case "sizes":
            return _Factors(raw.hidden_size**0.5, 1.0, (head_dim / raw.query_pre_attn_scalar) ** 0.5, 1.0)
        case "multipliers":
            score = raw.attention_multiplier * head_dim**0.5
            return _Factors(raw.embedding_multiplier, raw.residual_multiplier, score, 1.0 / raw.logits_scaling)


def _experts(raw: StoredConfig, mixture: Mixture) -> int:
    stored = raw.num_local_experts if raw.num_experts is None else raw.num_experts
    return mixture.experts if stored is None else stored


def _intermediate_size(raw: StoredConfig, family: Family) -> int:
    """Width of the feed-forward layers, which are the experts where there are any."""
    if family.mixture is None or family.mixture.width is None:
        width: int | None = getattr(raw, family.width_key)
        if width is None:
            raise CheckpointError(f"config.json: {family.width_key} is missing")
        return width
    return raw.moe_intermediate_size or family.mixture.width


def _refuse_unsupported(raw: StoredConfig, family: Family) -> None:
    if raw.quantization_config is not None:
        read_quantization(raw.quantization_config)
    for name, served in family.served.items():
        found = getattr(raw, name)
        if found not in served:
            raise CheckpointError(f"config.json: {name} {found!r} is not supported; only {served[0]!r} is")
    dtype = raw.dtype or raw.torch_dtype
    if dtype not in (None, "float32", "bfloat16", "float16"):
        raise CheckpointError(f"config.json: dtype {dtype!r} is not supported; store float32, bfloat16 or float16")


def _activation(raw: StoredConfig, family: Family) -> Activation:
    key = family.activation_key
    name = getattr(raw, key) or family.default_activation
    found = _ACTIVATIONS.get(name)
    if found is None:
        names = ", ".join(_ACTIVATIONS)
        raise CheckpointError(f"config.json: {key} {name!r} is not supported; these are: {names}")
    if family.mixture is not None and found != "silu":
        raise CheckpointError(f"config.json: {key} {name!r} is not supported for experts; 'silu' is")
    return found
