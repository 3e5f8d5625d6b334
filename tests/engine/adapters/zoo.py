"""Adapters of every supported kind on the tiny random checkpoints, written by peft, and the same as peft models.

    base = write_checkpoint(tmp_path / "base", ZOO["dora"].architecture)
    folder = write_adapter(tmp_path / "adapter", base, "dora")
    logits = peft_logits(base, folder, tokens)

All of an adapter's tensors are random and large enough to change every logit visibly; peft initialises them so that
they have no effect.
"""

from __future__ import annotations

import warnings
from copy import deepcopy
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from engine.adapters.format import WEIGHTS

ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]
LINEAR = [*ATTENTION, "gate_proj", "up_proj", "down_proj"]
FUSED = {
    "phi3": ["qkv_proj", "o_proj", "gate_up_proj", "down_proj"],
    "granite4": [*ATTENTION, "input_linear", "output_linear"],
}
"""Linear layers of architectures in which some are one tensor."""
EXPERTS = ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]


@dataclass(frozen=True)
class Kind:
    """An architecture of tests/engine/checkpoints.py and the fields of peft's LoraConfig."""

    architecture: str
    config: dict[str, Any]
    dtype: torch.dtype = torch.float32
    copies: bool = True
    """Whether embeddings that are targets are saved along, as peft does by itself."""
    listed: bool = False
    """Whether experts are saved as transformers 4 did."""


def _kind(architecture: str = "llama", **config: Any) -> Kind:
    options = {name: config.pop(name) for name in ("dtype", "copies", "listed") if name in config}
    return Kind(architecture, {"r": 8, "lora_alpha": 16, "target_modules": LINEAR} | config, **options)


ZOO: dict[str, Kind] = {
    # A scaling of 16 on rank 1 would make the model amplify rounding errors, peft's as well as ours.
    **{f"rank {rank}": _kind(r=rank, lora_alpha=min(16, 4 * rank)) for rank in (1, 2, 3, 8, 16, 64, 128)},
    **{f"{name} all-linear": _kind(name, target_modules="all-linear") for name in ("llama-tied", "mistral", "qwen2")},
    "gemma3 dora embeddings": _kind("gemma3", use_dora=True, target_modules=[*LINEAR, "embed_tokens"]),
    "gemma3 all-linear": _kind("gemma3", target_modules="all-linear"),
    "phi3 all-linear": _kind("phi3", target_modules="all-linear"),
    "phi3 dora": _kind(
        "phi3", use_dora=True, target_modules=[*FUSED["phi3"], "embed_tokens"], rank_pattern={"qkv_proj": 5}
    ),
    "phi3 LoRA bias": _kind("phi3", lora_bias=True, target_modules=["qkv_proj", "gate_up_proj"]),
    "granite dora embeddings": _kind("granite", use_dora=True, target_modules=[*LINEAR, "embed_tokens", "lm_head"]),
    "granite LoRA bias": _kind("granite", lora_bias=True, target_modules=[*LINEAR, "lm_head"]),
    "granite4 all-linear": _kind("granite4", target_modules="all-linear"),
    "granite4 dora": _kind("granite4", use_dora=True, target_modules=[*FUSED["granite4"], "embed_tokens"]),
    "olmo3 dora embeddings": _kind("olmo3", use_dora=True, target_modules=[*LINEAR, "embed_tokens", "lm_head"]),
    "smollm3 all-linear": _kind("smollm3", target_modules="all-linear"),
    "qwen3 all-linear": _kind("qwen3", target_modules="all-linear", r=4),
    **{f"only {module}": _kind(target_modules=[module]) for module in LINEAR},
    "patterns": _kind(
        rank_pattern={"q_proj": 4, "layers.0.mlp.up_proj": 32, r"layers\.[12]\.self_attn\.v_proj": 1},
        alpha_pattern={"down_proj": 3, r"^model\.layers\.1\.mlp\.gate_proj": 40, "q_proj": 5},
    ),
    "rslora": _kind(use_rslora=True),
    "rslora patterns": _kind(use_rslora=True, rank_pattern={"k_proj": 2, "v_proj": 5}, alpha_pattern={"k_proj": 7}),
    "zero alpha": _kind(lora_alpha=0),
    "expression": _kind(target_modules=r".*\.layers\.[02]\.(self_attn\.[qv]_proj|mlp\.down_proj)"),
    "some layers": _kind(layers_to_transform=[0, 2], layers_pattern="layers"),
    "one layer": _kind(layers_to_transform=1),
    "exclusions": _kind(exclude_modules=["layers.1.self_attn.q_proj", "down_proj"]),
    "dropout": _kind(lora_dropout=0.3),
    "gaussian": _kind(init_lora_weights="gaussian"),
    "mica": _kind(init_lora_weights="mica"),
    "bfloat16": _kind(dtype=torch.bfloat16),
    "float16": _kind(dtype=torch.float16),
    "dora": _kind(use_dora=True),
    "dora rslora patterns": _kind(use_dora=True, use_rslora=True, rank_pattern={"up_proj": 3}),
    "dora with biases": _kind("llama-bias", use_dora=True, bias="all"),
    "dora embeddings": _kind("llama", use_dora=True, target_modules=[*LINEAR, "embed_tokens", "lm_head"]),
    "dora tied embeddings": _kind("llama-tied", use_dora=True, target_modules=["embed_tokens", "lm_head"]),
    "LoRA bias": _kind("llama-bias", lora_bias=True, target_modules=[*LINEAR, "lm_head"]),
    "LoRA bias without base bias": _kind(lora_bias=True),
    "all biases": _kind("llama-bias", bias="all", target_modules=["q_proj", "up_proj"]),
    "targets' biases": _kind("llama-bias", bias="lora_only", target_modules=["q_proj", "up_proj"]),
    "qwen2 biases": _kind("qwen2", bias="all"),
    "bias without biases": _kind(bias="all"),
    "embeddings": _kind(target_modules=["embed_tokens"]),
    "head": _kind(target_modules=["lm_head"]),
    "embeddings and head": _kind(target_modules=[*LINEAR, "embed_tokens", "lm_head"]),
    "embeddings without copies": _kind(target_modules=["embed_tokens", "lm_head"], copies=False),
    "head as parameter": _kind(target_modules=["q_proj"], target_parameters=["lm_head.weight"]),
    "linear as parameter": _kind(target_modules=[], target_parameters=["self_attn.q_proj.weight"]),
    "tied embeddings": _kind("llama-tied", target_modules=["embed_tokens"]),
    "tied head": _kind("llama-tied", target_modules=["lm_head"]),
    "tied embeddings and head": _kind("llama-tied", target_modules=["embed_tokens", "lm_head"]),
    "tied adapters": _kind("llama-tied", target_modules=["q_proj", "embed_tokens"], ensure_weight_tying=True),
    "mixtral attention": _kind("mixtral", target_modules=ATTENTION),
    "mixtral all-linear": _kind("mixtral", target_modules="all-linear", r=4),
    "experts": _kind("mixtral", target_modules=["q_proj"], target_parameters=EXPERTS),
    "experts patterns": _kind(
        "mixtral",
        target_modules=["q_proj"],
        target_parameters=EXPERTS,
        use_rslora=True,
        rank_pattern={r".*\.gate_up_proj": 6, r"layers\.1\.mlp\.experts\.down_proj": 2},
        alpha_pattern={"experts.down_proj": 5},
    ),
    "experts' gates": _kind("mixtral", target_modules=[], target_parameters=["experts.gate_up_proj"]),
    "experts' outputs": _kind("mixtral", target_modules=[], target_parameters=["experts.down_proj"]),
    "router": _kind("mixtral", target_modules=[], target_parameters=["mlp.gate.weight"]),
    "experts by old names": _kind("mixtral", target_modules=["q_proj", "gate", "w1", "w2", "w3"], r=3),
    "listed experts": _kind("mixtral", target_modules=["w1", "w2", "w3"], r=3, listed=True),
    "listed experts and router": _kind("mixtral", target_modules=["q_proj", "gate", "w1", "w2", "w3"], listed=True),
    "listed outputs": _kind("mixtral", target_modules=["w2"], listed=True),
    "qwen3-moe experts": _kind("qwen3-moe", target_modules=ATTENTION, target_parameters=EXPERTS),
    "qwen3-moe listed": _kind("qwen3-moe", target_modules=["gate", "gate_proj", "up_proj", "down_proj"], listed=True),
}
"""Kinds by name. Every kind is supported."""


def write_adapter(folder: Path, base: Path, kind: str | Kind, *, seed: int = 0) -> Path:
    """Write a random adapter of a kind for the checkpoint `base` into `folder`."""
    kind = ZOO[kind] if isinstance(kind, str) else kind
    if kind.listed:
        _write_listed(folder, base, kind, seed)
    else:
        with warnings.catch_warnings(action="ignore"):
            model = get_peft_model(_load_base(base), LoraConfig(task_type="CAUSAL_LM", **kind.config))
            _randomise(model, seed)
            # The page that describes an adapter takes a third of the time.
            model.create_or_update_model_card = lambda _: None
            model.save_pretrained(folder, save_embedding_layers="auto" if kind.copies else False)
    if kind.dtype != torch.float32:
        tensors = load_file(folder / WEIGHTS)
        save_file({name: tensor.to(kind.dtype) for name, tensor in tensors.items()}, folder / WEIGHTS)
    return folder


@cache
def load_peft(base: Path, folder: Path) -> PeftModel:
    """Return the adapter on its base as peft's own model, in eval mode, fp32, on the CPU."""
    with warnings.catch_warnings(action="ignore"):
        warnings.filterwarnings("error", message=".*missing adapter keys")
        return PeftModel.from_pretrained(_load_base(base), folder).eval()


@torch.inference_mode()
def peft_logits(base: Path, folder: Path, tokens: list[int]) -> torch.Tensor:
    """Return the logits of every position of one sequence without a KV cache, [len(tokens), vocabulary] in fp32."""
    logits: torch.Tensor = load_peft(base, folder)(input_ids=torch.tensor([tokens]), use_cache=False).logits
    return logits[0]


@torch.inference_mode()
def peft_greedy(base: Path, folder: Path, prompt: list[int], new_tokens: int) -> list[int]:
    """Return exactly `new_tokens` greedy tokens of the peft model's `generate`, end-of-sequence tokens ignored."""
    output: torch.Tensor = load_peft(base, folder).generate(
        input_ids=torch.tensor([prompt]),
        attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
        do_sample=False,
        max_new_tokens=new_tokens,
        eos_token_id=-1,
        pad_token_id=0,
    )
    return output[0, len(prompt) :].tolist()


@torch.inference_mode(False)
def _load_base(base: Path) -> Any:
    return deepcopy(_read_base(base))


@cache
def _read_base(base: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)


@torch.no_grad()
def _randomise(model: PeftModel, seed: int) -> None:
    """Give every trained tensor values; what is shared between two modules stays shared."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        if "lora_magnitude_vector" in name:
            parameter.mul_(1 + 0.3 * noise)
        elif "lora_" in name:
            parameter.copy_(noise * 0.15)
        elif parameter.requires_grad:
            parameter.add_(0.3 * noise)


def _write_listed(folder: Path, base: Path, kind: Kind, seed: int) -> None:
    """Write the keys that peft wrote while transformers had a module per expert."""
    generator = torch.Generator().manual_seed(seed)
    shapes = _load_base(base).config
    hidden, experts = shapes.hidden_size, shapes.num_local_experts
    inner = getattr(shapes, "moe_intermediate_size", shapes.intermediate_size)
    mixtral = kind.architecture == "mixtral"
    gate, down, up = ("w1", "w2", "w3") if mixtral else ("gate_proj", "down_proj", "up_proj")
    sizes = {gate: (hidden, inner), down: (inner, hidden), up: (hidden, inner)}
    modules: dict[str, tuple[int, int]] = {}
    for layer in range(shapes.num_hidden_layers):
        block = f"base_model.model.model.layers.{layer}.{'block_sparse_moe' if mixtral else 'mlp'}"
        for target in kind.config["target_modules"]:
            if target in sizes:
                modules |= {f"{block}.experts.{expert}.{target}": sizes[target] for expert in range(experts)}
            elif target == "gate":
                modules[f"{block}.gate"] = (hidden, experts)
            else:
                modules[f"base_model.model.model.layers.{layer}.self_attn.{target}"] = (hidden, hidden)
    tensors = {}
    for module, (inputs, outputs) in modules.items():
        rank = kind.config["r"]
        tensors[f"{module}.lora_A.weight"] = 0.15 * torch.randn(rank, inputs, generator=generator)
        tensors[f"{module}.lora_B.weight"] = 0.15 * torch.randn(outputs, rank, generator=generator)
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / WEIGHTS)
    LoraConfig(task_type="CAUSAL_LM", inference_mode=True, **kind.config).save_pretrained(folder)
