"""The attention window of each layer."""

from __future__ import annotations

import msgspec

from engine.checkpoint.errors import CheckpointError
from engine.checkpoint.families import Family
from engine.checkpoint.rope import rotated_layers
from engine.checkpoint.stored_config import StoredConfig

_OLDER_KINDS = {"attention": "full_attention"}


def read_windows(raw: StoredConfig, family: Family) -> tuple[int | None, ...]:
    layers = raw.num_hidden_layers
    if family.names_layer_types and raw.layer_types is None:
        raise CheckpointError(f"config.json: layer_types is missing, which {raw.architectures[0]} needs")
    window = family.default_window if raw.sliding_window is msgspec.UNSET else raw.sliding_window
    assert not isinstance(window, msgspec.UnsetType)
    if family.window_is_opt_in and not raw.use_sliding_window:
        window = None
    if family.windowed not in ("never", "all layers"):
        kinds = raw.layer_types
        if kinds is None:
            return tuple(window if windowed else None for windowed in _windowed_layers(raw, family))
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


def _windowed_layers(raw: StoredConfig, family: Family) -> list[bool]:
    """Which layers have windows, where `layer_types` does not say."""
    if family.windowed == "layers without rotation":
        return [not rotated for rotated in rotated_layers(raw)]
    if family.windowed == "all but every nth":
        pattern = raw.sliding_window_pattern or family.default_pattern
        return [(index + 1) % pattern != 0 for index in range(raw.num_hidden_layers)]
    return [index >= raw.max_window_layers for index in range(raw.num_hidden_layers)]


def _check_layer_types(kinds: list[str], layers: int) -> list[str]:
    if len(kinds) != layers:
        raise CheckpointError(f"config.json: layer_types has {len(kinds)} entries for {layers} layers")
    named = [_OLDER_KINDS.get(kind, kind) for kind in kinds]
    for kind in named:
        if kind not in ("full_attention", "sliding_attention"):
            raise CheckpointError(
                f"config.json: layer type {kind!r} is not supported; only 'full_attention' and 'sliding_attention' are"
            )
    return named


def _layer_window(kind: str, window: int | None) -> int | None:
    if kind == "full_attention":
        return None
    if window is None:
        raise CheckpointError("config.json: layer_types has 'sliding_attention' but use_sliding_window is not set")
    return window
