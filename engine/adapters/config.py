"""Reads an adapter's `adapter_config.json`, with the meaning that peft 0.21 gives it.

Every key is in one of four groups: used, without effect on inference (ignored), refused because it changes the
computation in a way that the engine does not implement, and unknown (refused unless it is empty). Nothing is skipped
silently.
"""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any, Literal

import msgspec

from engine.adapters.expressions import ExpressionError, compiled, repetitions

CONFIG = "adapter_config.json"
MAX_CONFIG_BYTES = 4 * 1024 * 1024
MAX_RANK = 256
_MAX_ENTRIES = 8192
"""Most entries of any list or table."""
_MAX_REPEATING = 64
"""Most keys of `rank_pattern` and `alpha_pattern` with repetitions: each is matched against every module."""


class AdapterError(ValueError):
    """An adapter cannot be served. The message names the key or tensor and the remedy."""


class AdapterConfig(msgspec.Struct, frozen=True):
    """The keys that decide the computation, with peft's names, defaults and meanings."""

    r: int = 8
    lora_alpha: float = 8
    rank_pattern: dict[str, int] | None = None
    alpha_pattern: dict[str, float] | None = None
    use_rslora: bool = False
    bias: Literal["none", "all", "lora_only"] = "none"
    lora_bias: bool = False
    use_dora: bool = False
    target_modules: str | list[str] | None = None
    exclude_modules: str | list[str] | None = None
    layers_to_transform: int | list[int] | None = None
    layers_pattern: str | list[str] | None = None
    target_parameters: list[str] | None = None
    init_lora_weights: bool | str | None = True
    ensure_weight_tying: bool = False

    def rank(self, name: str) -> int:
        """Return the rank of one target; `name` is the module's or parameter's full name in the base model."""
        return int(_first_match(self.rank_pattern or {}, name, self.r))

    def scaling(self, name: str) -> float:
        """Return the factor of the low-rank product: alpha / r, or alpha / sqrt(r) with rank-stabilised LoRA."""
        alpha = _first_match(self.alpha_pattern or {}, name, self.lora_alpha)
        return alpha / (math.sqrt(self.rank(name)) if self.use_rslora else self.rank(name))

    def targets_module(self, name: str) -> bool:
        """Whether peft puts LoRA on this module, by `target_modules`, `exclude_modules` and the layer filters."""
        if self.exclude_modules and _named(self.exclude_modules, name):
            return False
        if self.target_modules is None or not _named(self.target_modules, name):
            return False
        if isinstance(self.target_modules, str) or self.layers_to_transform in (None, []):
            return True
        layer = _layer_of(name, self.layers_pattern)
        wanted = self.layers_to_transform
        return layer is not None and (layer == wanted if isinstance(wanted, int) else layer in (wanted or ()))

    def targets_parameter(self, name: str) -> bool:
        """Whether peft puts LoRA on this parameter, by `target_parameters`."""
        return any(name == each or name.endswith(f".{each}") for each in self.target_parameters or ())


_IGNORED = frozenset(
    {
        "auto_mapping",
        "base_model_name_or_path",
        "corda_config",
        "eva_config",
        "inference_mode",
        "lora_dropout",
        "lora_ga_config",
        "loftq_config",
        "megatron_core",
        "peft_type",
        "peft_version",
        "qalora_group_size",
        "revision",
        "runtime_config",
        "task_type",
    }
)
_REFUSED = {
    "alora_invocation_tokens": "train a LoRA without invocation tokens",
    "arrow_config": "register the task adapters one by one",
    "fan_in_fan_out": "the served models store linear weights as (out, in): save it as false",
    "kasa_config": "it changes the base weights: merge the adapter and serve the result as a model",
    "layer_replication": "serve the model with the replicated layers as a model of its own",
    "megatron_config": "save the adapter from an unsharded model",
    "modules_to_save": "it replaces whole matrices: put LoRA on them (embed_tokens and lm_head can be targets), or "
    "merge the adapter and serve the result as a model",
    "monteclora_config": "train a LoRA without sampling",
    "trainable_token_indices": "target embed_tokens instead",
    "use_bdlora": "save the factors as full matrices, without the block-diagonal form",
    "use_qalora": "train a LoRA without pooled inputs",
    "velora_config": "it has no effect after training: set it to null",
}
_SIZED = (
    "alpha_pattern",
    "exclude_modules",
    "layers_pattern",
    "layers_to_transform",
    "rank_pattern",
    "target_modules",
    "target_parameters",
)
_CHANGES_BASE = ("corda", "loftq", "lora_ga", "olora", "pissa")
"""Values (or beginnings of values) of `init_lora_weights` with which peft changes the base weights, also on loading."""


def read_config(path: Path) -> tuple[AdapterConfig, bytes]:
    """Read and check `adapter_config.json` -> the config, and the file's content as canonical JSON (for digests).

    Raises:
        AdapterError: it is missing, malformed, or asks for something that is not supported.
    """
    if not path.is_file():
        raise AdapterError(f"{path} is missing: name a folder that peft's save_pretrained wrote")
    if path.stat().st_size > MAX_CONFIG_BYTES:
        raise AdapterError(f"{path} is larger than {MAX_CONFIG_BYTES} bytes: that is no adapter's config")
    return parse_config(path.read_bytes())


def parse_config(content: bytes) -> tuple[AdapterConfig, bytes]:
    """Check the file's content as `read_config` does."""
    try:
        raw = msgspec.json.decode(content, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise AdapterError(f"{CONFIG}: {error}") from error
    if raw.get("peft_type") != "LORA":
        raise AdapterError(f"{CONFIG}: peft_type {raw.get('peft_type')!r} is not supported; only 'LORA' is")
    used = set(AdapterConfig.__struct_fields__)
    for key, value in raw.items():
        if key in _REFUSED:
            if value:
                raise AdapterError(f"{CONFIG}: {key} is not supported; {_REFUSED[key]}")
        elif key not in used and key not in _IGNORED and value:
            raise AdapterError(f"{CONFIG}: unknown key {key!r}; remove it if it has no effect after training")
    try:
        config = msgspec.convert({key: raw[key] for key in used & raw.keys()}, AdapterConfig)
    except msgspec.ValidationError as error:
        raise AdapterError(f"{CONFIG}: {error}") from error
    _check(config)
    return config, msgspec.json.encode(raw, order="sorted")


def _check(config: AdapterConfig) -> None:
    initialisation = config.init_lora_weights
    if isinstance(initialisation, str) and initialisation.lower().startswith(_CHANGES_BASE):
        raise AdapterError(
            f"{CONFIG}: init_lora_weights {initialisation!r} changes the base weights; save the adapter with "
            "path_initial_model_for_weight_conversion, which turns it into a plain LoRA"
        )
    if config.target_modules is None:
        raise AdapterError(f"{CONFIG}: target_modules is missing; list the modules by name, as save_pretrained does")
    if isinstance(config.target_modules, str) and (config.layers_to_transform is not None or config.layers_pattern):
        raise AdapterError(f"{CONFIG}: layers_to_transform and layers_pattern need target_modules to be a list")
    if config.layers_pattern and config.layers_to_transform is None:
        raise AdapterError(f"{CONFIG}: layers_pattern needs layers_to_transform")
    if config.lora_bias and config.use_dora:
        raise AdapterError(f"{CONFIG}: lora_bias is not supported together with use_dora, by peft either")
    for key in _SIZED:
        value = getattr(config, key)
        if isinstance(value, list | dict) and len(value) > _MAX_ENTRIES:
            raise AdapterError(f"{CONFIG}: {key} has {len(value)} entries; the most is {_MAX_ENTRIES}")
    patterns = [(key, each) for key in ("rank_pattern", "alpha_pattern") for each in getattr(config, key) or ()]
    if sum(_check_expression(key, each, _whole(each)) > 1 for key, each in patterns) > _MAX_REPEATING:
        raise AdapterError(
            f"{CONFIG}: rank_pattern and alpha_pattern: more than {_MAX_REPEATING} expressions have repetitions; list "
            "the modules by name"
        )
    for key in ("target_modules", "exclude_modules"):
        value = getattr(config, key)
        if isinstance(value, str):
            _check_expression(key, value, value)
    for each in _listed(config.layers_pattern):
        _check_expression("layers_pattern", each, _behind(each))
    for key, rank in {"r": config.r, **(config.rank_pattern or {})}.items():
        if not 1 <= rank <= MAX_RANK:
            where = "r" if key == "r" else f"rank_pattern[{key!r}]"
            raise AdapterError(f"{CONFIG}: {where} is {rank}; ranks from 1 to {MAX_RANK} are supported")
    for alpha in (config.lora_alpha, *(config.alpha_pattern or {}).values()):
        if not math.isfinite(alpha):
            raise AdapterError(f"{CONFIG}: lora_alpha and alpha_pattern must be finite numbers")


def _first_match(patterns: dict[str, Any], name: str, default: float) -> float:
    """Find a value by peft's rule: the first pattern, in the file's order, that is the name or its end behind a dot."""
    for pattern, value in patterns.items():
        if compiled(_whole(pattern)).match(name):
            return float(value)
    return default


def _named(patterns: str | list[str], name: str) -> bool:
    """Match by peft's rule for modules: a string is an expression for the whole name, a list names modules or ends."""
    if isinstance(patterns, str):
        return re.fullmatch(patterns, name) is not None
    return any(name == each or name.endswith(f".{each}") for each in patterns)


def _layer_of(name: str, patterns: str | list[str] | None) -> int | None:
    """Return peft's index for `layers_to_transform`: the first numbered part, or the one behind a pattern."""
    expressions = [_behind(pattern) for pattern in _listed(patterns)] or [r".*?\.[^.]*\.(?P<idx>\d+)\."]
    found = next(filter(None, (compiled(expression).match(name) for expression in expressions)), None)
    return int(found["idx"]) if found else None


def _whole(pattern: str) -> str:
    """Return the expression that peft makes of a key of `rank_pattern` and `alpha_pattern`."""
    return rf"(.*\.)?({pattern})$"


def _behind(pattern: str) -> str:
    """Return the expression that peft makes of an entry of `layers_pattern`."""
    return rf"(?:^|.*?\.){pattern}\.(?P<idx>\d+)\."


def _listed(value: str | list[str] | None) -> list[str]:
    return [value] if isinstance(value, str) and value else list(value or ())


def _check_expression(key: str, pattern: str, expression: str) -> int:
    """Refuse an expression that cannot be used -> how many repetitions it has."""
    try:
        return repetitions(pattern, expression)
    except ExpressionError as error:
        raise AdapterError(f"{CONFIG}: {key}: {error}") from error
