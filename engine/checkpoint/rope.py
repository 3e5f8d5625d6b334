"""Rotary position embedding as config.json describes it, in the new form and the older ones."""

from __future__ import annotations

from typing import Literal

import msgspec

from engine.checkpoint.errors import CheckpointError
from engine.checkpoint.families import Family
from engine.checkpoint.stored_config import StoredConfig

RopeType = Literal["default", "linear", "dynamic", "llama3", "yarn", "longrope"]


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


def rotated_layers(raw: StoredConfig) -> list[bool]:
    """Which layers rotate queries and keys, of a family that skips some.

    Raises:
        CheckpointError: `no_rope_layers` says nothing of some layer.
    """
    layers, listed = raw.num_hidden_layers, raw.no_rope_layers
    if listed is None:
        return [(index + 1) % raw.no_rope_layer_interval != 0 for index in range(layers)]
    if len(listed) < layers:
        raise CheckpointError(f"config.json: no_rope_layers has {len(listed)} entries for {layers} layers")
    return [rotated != 0 for rotated in listed[:layers]]


def read_rope(raw: StoredConfig, family: Family, head_dim: int) -> RopeParameters:
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
