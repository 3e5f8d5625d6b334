"""Rotary position embedding as config.json describes it, in the new form and the older ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from engine.checkpoint.errors import CheckpointError
from engine.checkpoint.families import Family
from engine.checkpoint.stored_config import StoredConfig

RopeType = Literal["default", "linear", "dynamic", "llama3", "yarn", "longrope", "divided"]


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
    divisors: tuple[float, ...] | None = None
    """What each frequency is divided by under "divided", as GGUF files store the result of any scaling."""
    partial_rotary_factor: float = 1.0

    def rotated(self, head_dim: int) -> int:
        """Number of a head's dimensions that are rotated; the others stay as they are."""
        return int(head_dim * self.partial_rotary_factor)


_ROPE_REQUIRED: dict[RopeType, tuple[str, ...]] = {
    "default": (),
    "linear": ("factor",),
    "dynamic": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor"),
    "yarn": (),
    "longrope": ("short_factor", "long_factor"),
    "divided": ("divisors",),
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
    """Read the rotary embedding of layers that see the whole sequence."""
    if family.default_local_theta is not None:
        fields = _of_layers(raw, "full_attention") | (raw.rope_scaling or {})
    else:
        fields = raw.rope_scaling or raw.rope_parameters or {}
    theta = raw.rope_theta if raw.rope_theta is not None else family.default_theta
    return _parameters(raw, family, fields, theta, head_dim)


def read_ropes(
    raw: StoredConfig, family: Family, rope: RopeParameters, windows: Sequence[int | None], head_dim: int
) -> tuple[RopeParameters | None, ...]:
    """Read the rotary embedding of each layer, given that of layers without a window; None rotates nothing."""
    if family.skips_rotation:
        return tuple(rope if rotated else None for rotated in rotated_layers(raw))
    if family.default_local_theta is None:
        return (rope,) * len(windows)
    theta = family.default_local_theta if raw.rope_local_base_freq is None else raw.rope_local_base_freq
    local = _parameters(raw, family, _of_layers(raw, "sliding_attention"), theta, head_dim)
    for each in (rope, local):
        if each.rope_type in ("dynamic", "longrope"):
            raise CheckpointError(
                f"config.json: rope_type {each.rope_type!r} is not supported where layers have rotary embeddings of "
                "their own; 'default', 'linear', 'llama3' and 'yarn' are"
            )
    return tuple(rope if window is None else local for window in windows)


def _of_layers(raw: StoredConfig, kind: str) -> dict[str, Any]:
    """Rotary embedding of one kind of layers, of a family whose kinds each have their own."""
    kinds = raw.rope_parameters or {}
    unknown = kinds.keys() - {"full_attention", "sliding_attention"}
    if unknown:
        raise CheckpointError(
            f"config.json: rope_parameters of {raw.architectures[0]} must be given for 'full_attention' and "
            f"'sliding_attention', not as {', '.join(sorted(unknown))}"
        )
    return kinds.get(kind) or {}


def _parameters(
    raw: StoredConfig, family: Family, given: dict[str, Any], theta: float, head_dim: int
) -> RopeParameters:
    fields = dict(given)
    for name, value in fields.items():
        if isinstance(value, dict):
            raise CheckpointError(f"config.json: rope_parameters per layer type ({name!r}) are not supported")
    named = fields.setdefault("rope_type", fields.pop("type", "default"))
    fields["rope_type"] = family.rope_aliases.get(named, named)
    if fields["rope_type"] not in _ROPE_REQUIRED:
        raise CheckpointError(
            f"config.json: rope_type {fields['rope_type']!r} is not supported; these are: {', '.join(_ROPE_REQUIRED)}"
        )
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
    _check_rope(rope, head_dim, family)
    return rope


def _check_rope(rope: RopeParameters, head_dim: int, family: Family) -> None:
    for name in _ROPE_REQUIRED[rope.rope_type]:
        if getattr(rope, name) is None:
            raise CheckpointError(f"config.json: rope_parameters of type {rope.rope_type!r} need {name!r}")
    rotated = rope.rotated(head_dim)
    whole = rope.partial_rotary_factor == 1.0
    if not whole and not (family.partly_rotated and 0 < rotated <= head_dim and rotated % 2 == 0):
        served = "what leaves an even number of dimensions" if family.partly_rotated else "only 1.0"
        raise CheckpointError(
            f"config.json: partial_rotary_factor {rope.partial_rotary_factor} is not supported; {served} is"
        )
    for name in ("short_factor", "long_factor", "divisors"):
        factors = getattr(rope, name)
        if factors is not None and len(factors) != rotated // 2:
            raise CheckpointError(
                f"config.json: rope_parameters: {name} has {len(factors)} entries; {rotated} rotated dimensions of a "
                f"head need {rotated // 2}"
            )
