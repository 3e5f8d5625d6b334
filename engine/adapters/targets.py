"""Derives the tensors that an adapter's config asks for on a base model, by peft 0.21's rules. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Set
from dataclasses import dataclass, field

import msgspec

from engine.adapters.config import CONFIG, MAX_RANK, AdapterConfig, AdapterError
from engine.adapters.manifest import BaseBias, LoraTarget, Module
from engine.checkpoint.config import ModelConfig
from engine.checkpoint.families import ExpertNames

PREFIX = "base_model.model."
EMBEDDING, HEAD = "model.embed_tokens", "lm_head"
_QKV: tuple[Module, ...] = ("qkv_proj", "q_proj", "k_proj", "v_proj")
_GATE_UP: tuple[Module, ...] = ("gate_up_proj", "gate_proj", "up_proj")
_Place = tuple[Module, int, str]
"""A module of one layer, and the parameter's name in the base model, by which ranks and alphas are looked up."""


@dataclass
class Expected:
    """Tensors that the file must hold, and those that it may hold besides."""

    tensors: dict[str, tuple[int, ...]] = field(default_factory=dict)
    base_copies: dict[str, str] = field(default_factory=dict)
    """Keys of base weights that peft saves along with targeted embeddings -> the base model's tensor that they must be
    equal to."""
    targets: list[LoraTarget] = field(default_factory=list)
    base_biases: list[BaseBias] = field(default_factory=list)
    tied: bool = False
    """Whether lm_head's LoRA must be the transposed one of embed_tokens."""


@dataclass(frozen=True, slots=True)
class _Linear:
    module: Module
    layer: int | None
    name: str
    inputs: int
    outputs: int
    bias: bool


def expected_tensors(config: AdapterConfig, model: ModelConfig, keys: Set[str]) -> Expected:
    """Return the tensors that peft would load for this config, with their shapes and meanings.

    `keys` only decide between the two forms of a mixture's experts.

    Raises:
        AdapterError: the config asks for something that is not supported, or for nothing.
    """
    if model.expert_names is not None:
        config = _with_merged_experts(config, model.expert_names)
    if isinstance(config.target_modules, str) and config.target_modules.lower() == "all-linear":
        linears = [each.name for each in _linears(model) if each.module != "lm_head"]
        config = msgspec.structs.replace(config, target_modules=linears)
    expected = Expected()
    config = _with_tied_targets(config, model, expected)
    for linear in _linears(model):
        _add_linear(expected, config, linear)
    _add_embedding(expected, config, model)
    if model.expert_names is not None:
        _add_experts(expected, config, model, model.expert_names, keys)
    if not expected.targets:
        raise AdapterError(
            f"{CONFIG}: target_modules {config.target_modules!r} and target_parameters {config.target_parameters!r} "
            f"name nothing that this {model.architecture} has"
        )
    for target in expected.targets:
        if target.rank > MAX_RANK:
            raise AdapterError(
                f"{CONFIG}: {target.module} has rank {target.rank}; ranks from 1 to {MAX_RANK} are supported"
            )
    for name, copied in ((EMBEDDING, EMBEDDING), (HEAD, EMBEDDING if model.tied_embeddings else HEAD)):
        for form in (f"{name}.weight", f"{name}.base_layer.weight"):
            expected.base_copies[PREFIX + form] = f"{copied}.weight"
    return expected


def _linears(model: ModelConfig) -> Iterator[_Linear]:
    hidden, inner = model.hidden_size, model.intermediate_size
    queries, keys = model.heads * model.head_dim, model.kv_heads * model.head_dim
    for layer in range(model.layers):
        prefix, names = f"model.layers.{layer}", model.linear_names
        for module, name, outputs in _parts(names.qkv, _QKV, (queries, keys, keys)):
            yield _Linear(module, layer, f"{prefix}.{name}", hidden, outputs, model.qkv_bias)
        yield _Linear("o_proj", layer, f"{prefix}.self_attn.o_proj", queries, hidden, model.output_bias)
        if not model.experts:
            for module, name, outputs in _parts(names.gate_up, _GATE_UP, (inner, inner)):
                yield _Linear(module, layer, f"{prefix}.{name}", hidden, outputs, model.mlp_bias)
            yield _Linear("down_proj", layer, f"{prefix}.{names.down}", inner, hidden, model.mlp_bias)
    yield _Linear("lm_head", None, HEAD, hidden, model.vocabulary, False)


def _parts(
    names: tuple[str, ...], modules: tuple[Module, ...], sizes: tuple[int, ...]
) -> Iterator[tuple[Module, str, int]]:
    """Module, name and outputs of each part; the first of `modules` is all of them in one tensor."""
    if len(names) == 1:
        yield modules[0], names[0], sum(sizes)
    else:
        yield from zip(modules[1:], names, sizes, strict=True)


def _add_linear(expected: Expected, config: AdapterConfig, linear: _Linear) -> None:
    name = linear.name
    by_module, by_parameter = config.targets_module(name), config.targets_parameter(f"{name}.weight")
    targeted = by_module or by_parameter
    if by_module and by_parameter:
        raise AdapterError(f"{CONFIG}: target_modules and target_parameters both name {name!r}; name it once")
    if by_parameter:
        _refuse_for_parameters(config, f"{name}.weight")
    if linear.bias and (config.bias == "all" or (config.bias == "lora_only" and targeted)):
        key = f"{PREFIX}{name}.base_layer.bias" if targeted else f"{PREFIX}{name}.bias"
        expected.tensors[key] = (linear.outputs,)
        expected.base_biases.append(BaseBias(linear.module, linear.layer, key))
    if not targeted:
        return
    matched = f"{name}.weight" if by_parameter else name
    rank = config.rank(matched)
    a, b = f"{PREFIX}{name}.lora_A.weight", f"{PREFIX}{name}.lora_B.weight"
    expected.tensors |= {a: (rank, linear.inputs), b: (linear.outputs, rank)}
    b_bias = f"{PREFIX}{name}.lora_B.bias" if config.lora_bias else None
    magnitude = f"{PREFIX}{name}.lora_magnitude_vector" if config.use_dora else None
    expected.tensors |= {key: (linear.outputs,) for key in (b_bias, magnitude) if key}
    scaling = config.scaling(matched)
    expected.targets.append(LoraTarget(linear.module, linear.layer, rank, scaling, (a,), (b,), b_bias, magnitude))


def _add_embedding(expected: Expected, config: AdapterConfig, model: ModelConfig) -> None:
    if config.targets_parameter(f"{EMBEDDING}.weight"):
        raise AdapterError(f"{CONFIG}: target_parameters names {EMBEDDING!r}; name it in target_modules")
    if not config.targets_module(EMBEDDING):
        return
    if config.lora_bias:
        raise AdapterError(f"{CONFIG}: lora_bias is not supported on embed_tokens, by peft either")
    rank, prefix = config.rank(EMBEDDING), PREFIX + EMBEDDING
    a, b = f"{prefix}.lora_embedding_A", f"{prefix}.lora_embedding_B"
    expected.tensors |= {a: (rank, model.vocabulary), b: (model.hidden_size, rank)}
    magnitude = f"{prefix}.lora_magnitude_vector" if config.use_dora else None
    if magnitude:
        expected.tensors[magnitude] = (model.hidden_size,)
    scaling = config.scaling(EMBEDDING)
    expected.targets.append(LoraTarget("embed_tokens", None, rank, scaling, (a,), (b,), magnitude=magnitude))


def _add_experts(
    expected: Expected, config: AdapterConfig, model: ModelConfig, names: ExpertNames, keys: Set[str]
) -> None:
    """Add the router and the experts of every layer, in the form of transformers 5 (stacked) or 4 (listed).

    With transformers 4 every expert was a module of its own, and the block was called as in the checkpoint.
    """
    old = re.compile(rf"\.{names.block}\." if names.block != "mlp" else r"\.mlp\.experts\.[0-9]")
    listed = any(old.search(key) for key in keys)
    hidden, inner, experts = model.hidden_size, model.intermediate_size, model.experts
    for layer in range(model.layers):
        block = f"model.layers.{layer}.mlp"
        stored = f"{PREFIX}model.layers.{layer}.{names.block if listed else 'mlp'}"
        router, gate_up, down = f"{block}.gate.weight", f"{block}.experts.gate_up_proj", f"{block}.experts.down_proj"
        found = [name for name in (router, gate_up, down) if config.targets_parameter(name)]
        for name in found:
            _refuse_for_parameters(config, name)
        if router in found:
            _add_stacked(expected, config, ("router", layer, router), f"{stored}.gate", 1, hidden, experts)
        gates: _Place = ("experts.gate_up_proj", layer, gate_up)
        downs: _Place = ("experts.down_proj", layer, down)
        if gate_up in found and listed:
            gate, up = f"{stored}.experts.{{}}.{names.gate}", f"{stored}.experts.{{}}.{names.up}"
            _add_listed(expected, config, ("experts.gate_proj", layer, gate_up), gate, experts, hidden, inner)
            _add_listed(expected, config, ("experts.up_proj", layer, gate_up), up, experts, hidden, inner)
        elif gate_up in found:
            # peft wraps the module once per parameter; gate_up_proj comes first and is inside where both are wrapped.
            inside = f"{stored}.experts.base_layer" if down in found else f"{stored}.experts"
            _add_stacked(expected, config, gates, inside, experts, hidden, 2 * inner)
        if down in found and listed:
            _add_listed(expected, config, downs, f"{stored}.experts.{{}}.{names.down}", experts, inner, hidden)
        elif down in found:
            _add_stacked(expected, config, downs, f"{stored}.experts", experts, inner, hidden)


def _add_stacked(
    expected: Expected,
    config: AdapterConfig,
    target: _Place,
    key: str,
    experts: int,
    inputs: int,
    outputs: int,
) -> None:
    module, layer, name = target
    rank = config.rank(name)
    a, b = f"{key}.lora_A.weight", f"{key}.lora_B.weight"
    expected.tensors |= {a: (experts * rank, inputs), b: (outputs, rank * experts)}
    expected.targets.append(LoraTarget(module, layer, rank, config.scaling(name), (a,), (b,)))


def _add_listed(
    expected: Expected,
    config: AdapterConfig,
    target: _Place,
    key: str,
    experts: int,
    inputs: int,
    outputs: int,
) -> None:
    module, layer, name = target
    merged = module != "experts.down_proj"
    if merged and config.use_rslora:
        raise AdapterError(
            f"{CONFIG}: use_rslora is ambiguous for experts saved with transformers 4 (peft 0.21 scales them by 1.41 "
            "times what they were trained with); save the adapter with transformers 5"
        )
    rank = config.rank(name) // 2 if merged else config.rank(name)
    a = tuple(f"{key.format(expert)}.lora_A.weight" for expert in range(experts))
    b = tuple(f"{key.format(expert)}.lora_B.weight" for expert in range(experts))
    expected.tensors |= dict.fromkeys(a, (rank, inputs)) | dict.fromkeys(b, (outputs, rank))
    expected.targets.append(LoraTarget(module, layer, rank, config.scaling(name), a, b))


def _refuse_for_parameters(config: AdapterConfig, name: str) -> None:
    for key in ("use_dora", "lora_bias"):
        if getattr(config, key):
            raise AdapterError(
                f"{CONFIG}: {key} is not supported on {name!r}, by peft either; leave target_parameters and the "
                "experts out, or train without it"
            )


def _with_merged_experts(config: AdapterConfig, names: ExpertNames) -> AdapterConfig:
    """Read a config from transformers 4 as peft does: gate and up of the experts are one parameter of twice the rank.

    Its modules become the parameters of transformers 5 that peft puts their LoRA on.
    """
    merged = {"gate": "gate.weight", names.gate: "gate_up_proj", names.up: "gate_up_proj", names.down: "down_proj"}
    if isinstance(config.target_modules, str):
        raise AdapterError(
            f"{CONFIG}: target_modules is an expression, whose meaning changed for mixtures of experts; list the "
            "modules by name"
        )
    kept, parts = [], set()
    for target in config.target_modules or ():
        part = target.rpartition(".")[2]
        if part in merged:
            parts.add(part)
        else:
            kept.append(target)
    if not parts:
        return config
    ranks, alphas = dict(config.rank_pattern or {}), dict(config.alpha_pattern or {})
    if (names.gate in parts) != (names.up in parts):
        raise AdapterError(
            f"{CONFIG}: target_modules names one of {names.gate} and {names.up}; they are one matrix now: name both"
        )
    if names.gate in parts:
        ranks[r".*\.gate_up_proj"] = 2 * config.r
        alphas[r".*\.gate_up_proj"] = 2 * config.lora_alpha
    parameters = [*(config.target_parameters or ()), *(merged[part] for part in sorted(parts))]
    return msgspec.structs.replace(
        config, target_modules=kept, target_parameters=parameters, rank_pattern=ranks, alpha_pattern=alphas
    )


def _with_tied_targets(config: AdapterConfig, model: ModelConfig, expected: Expected) -> AdapterConfig:
    """Apply peft's `ensure_weight_tying`: with tied embeddings, LoRA on one of embed_tokens and lm_head is on both."""
    targets = config.target_modules
    if not (config.ensure_weight_tying and model.tied_embeddings) or targets is None:
        return config
    if isinstance(targets, str):
        raise AdapterError(f"{CONFIG}: ensure_weight_tying needs target_modules to be a list; list the modules by name")
    if not {target.rpartition(".")[2] for target in targets} & {"embed_tokens", "lm_head"}:
        return config
    expected.tied = True
    return msgspec.structs.replace(config, target_modules=[*targets, EMBEDDING, HEAD])
