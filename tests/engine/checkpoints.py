"""Tiny random checkpoints of every supported architecture, written by transformers, and the same models as oracles.

Biases and norm weights are randomised too: transformers initialises them to zero and one, which would hide a bug.
`initializer_range` is large enough that attention patterns and logits differ visibly between positions.
"""

from __future__ import annotations

from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()

EOS = 2
VOCABULARY = 320
CONTEXT = 256

_COMMON: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 112,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": CONTEXT,
    "initializer_range": 0.15,
    "bos_token_id": 1,
    "eos_token_id": EOS,
    "pad_token_id": 0,
}

ARCHITECTURES: dict[str, dict[str, Any]] = {
    "llama": {"model_type": "llama"},
    "llama-tied": {"model_type": "llama", "tie_word_embeddings": True, "num_key_value_heads": 4},
    "llama-bias": {"model_type": "llama", "attention_bias": True, "mlp_bias": True, "num_key_value_heads": 1},
    "mistral": {"model_type": "mistral", "sliding_window": 24, "head_dim": 24},
    "qwen2": {"model_type": "qwen2"},
    "qwen2-sliding": {
        "model_type": "qwen2",
        "use_sliding_window": True,
        "sliding_window": 20,
        "max_window_layers": 1,
    },
    "qwen3": {"model_type": "qwen3", "head_dim": 32, "tie_word_embeddings": True},
    "smollm3": {
        "model_type": "smollm3",
        "num_hidden_layers": 4,
        "no_rope_layer_interval": 2,
        "use_sliding_window": True,
        "sliding_window": 26,
    },
    "gemma3": {
        "model_type": "gemma3_text",
        "head_dim": 32,
        "sliding_window": 22,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        "rope_parameters": {
            "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1_000_000.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
        },
        "query_pre_attn_scalar": 20,
        "attention_bias": True,
        "tie_word_embeddings": True,
    },
    "phi3": {"model_type": "phi3", "sliding_window": 27, "partial_rotary_factor": 0.75, "tie_word_embeddings": True},
    "granite": {
        "model_type": "granite",
        "embedding_multiplier": 6.0,
        "residual_multiplier": 0.22,
        "attention_multiplier": 0.11,
        "logits_scaling": 3.0,
        "attention_bias": True,
        "mlp_bias": True,
    },
    "granite4": {
        "model_type": "granitemoehybrid",
        "layer_types": ["full_attention"] * 3,
        "position_embedding_type": "rope",
        "num_local_experts": 0,
        "shared_intermediate_size": 96,
        "embedding_multiplier": 6.0,
        "residual_multiplier": 0.22,
        "attention_multiplier": 0.11,
        "logits_scaling": 3.0,
        "tie_word_embeddings": True,
    },
    "olmo3": {
        "model_type": "olmo3",
        "sliding_window": 23,
        "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
        "rope_parameters": {
            "full_attention": {
                "rope_type": "yarn",
                "factor": 4.0,
                "original_max_position_embeddings": 64,
                "rope_theta": 500_000.0,
            },
            "sliding_attention": {"rope_type": "default", "rope_theta": 500_000.0},
        },
        "attention_bias": True,
    },
    "mixtral": {"model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2},
    "qwen3-moe": {
        "model_type": "qwen3_moe",
        "num_experts": 6,
        "num_experts_per_tok": 3,
        "moe_intermediate_size": 40,
        "norm_topk_prob": True,
        "head_dim": 32,
        "use_sliding_window": True,
        "sliding_window": 28,
    },
}
MIXTURES = {"mixtral", "qwen3-moe"}
"""Those with experts."""

_PRETRAINED = 64
ROPE_SCALINGS: dict[str, dict[str, Any]] = {
    "linear": {"rope_type": "linear", "factor": 4.0},
    "dynamic": {"rope_type": "dynamic", "factor": 2.0},
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": _PRETRAINED},
    "longrope": {
        "rope_type": "longrope",
        "short_factor": [1.0 + 0.05 * i for i in range(8)],
        "long_factor": [1.5 + 0.5 * i for i in range(8)],
        "factor": 4.0,
        "original_max_position_embeddings": _PRETRAINED,
    },
    "llama3": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": _PRETRAINED,
        "rope_theta": 10_000.0,
    },
}
"""`rope_parameters` for a head dimension of 16; all but linear change behaviour beyond 64 (dynamic: beyond the
context) tokens."""


def write_checkpoint(directory: Path, architecture: str = "llama", *, seed: int = 0, **overrides: Any) -> Path:
    """Write a random fp32 checkpoint of one of `ARCHITECTURES` into `directory`, with `overrides` of its config.

    `max_shard_size` and `dtype` among the overrides go to the saving, everything else to the config.
    """
    shard = overrides.pop("max_shard_size", "1GB")
    dtype = overrides.pop("dtype", torch.float32)
    fields = _COMMON | ARCHITECTURES[architecture] | overrides
    config = AutoConfig.for_model(fields.pop("model_type"), **fields)
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(0.1 * torch.randn_like(parameter))
    model.to(dtype).save_pretrained(directory, max_shard_size=shard)
    return directory


@cache
def write_similar(directory: Path) -> Path:
    """A model beside the one in `directory` that often says the same: its weights with some noise."""
    similar = directory.with_name(f"{directory.name}-similar")
    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(1)
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.add_(0.03 * parameter.std() * torch.randn_like(parameter))
    model.save_pretrained(similar)
    return similar


@cache
def load_oracle(directory: Path, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    """The checkpoint as transformers' own model, in eval mode on the CPU."""
    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(directory, dtype=dtype)
    return model.eval()


@cache
def load_exact(directory: Path) -> PreTrainedModel:
    """The same in fp64, norms too, which transformers always computes in fp32; rotary frequencies are those of fp32."""
    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
        directory, dtype=torch.float64, experts_implementation="eager"
    )
    for module in model.modules():
        if type(module).__name__.endswith("RMSNorm"):
            module.forward = partial(_rms_norm, module)
    return model.eval()


def _rms_norm(module: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
    gemma = type(module).__name__.startswith("Gemma")
    weight, eps = (1 + module.weight, module.eps) if gemma else (module.weight, module.variance_epsilon)
    found: torch.Tensor = weight * (x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps))
    return found


@torch.inference_mode()
def exact_logits(directory: Path, tokens: list[int]) -> torch.Tensor:
    """`oracle_logits` in fp64."""
    logits: torch.Tensor = load_exact(directory)(input_ids=torch.tensor([tokens]), use_cache=False).logits
    return logits[0]


@torch.inference_mode()
def oracle_logits(directory: Path, tokens: list[int]) -> torch.Tensor:
    """Logits of every position of one sequence without a KV cache, [len(tokens), vocabulary] in fp32."""
    logits: torch.Tensor = load_oracle(directory)(input_ids=torch.tensor([tokens]), use_cache=False).logits
    return logits[0]


def oracle_greedy(directory: Path, prompt: list[int], new_tokens: int) -> list[int]:
    """Exactly `new_tokens` greedy tokens of transformers' `generate`, end-of-sequence tokens ignored."""
    return list(_greedy(directory, tuple(prompt), new_tokens))


@cache
@torch.inference_mode()
def _greedy(directory: Path, prompt: tuple[int, ...], new_tokens: int) -> tuple[int, ...]:
    output: torch.Tensor = load_oracle(directory).generate(
        torch.tensor([prompt]),
        attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
        do_sample=False,
        max_new_tokens=new_tokens,
        eos_token_id=-1,
        pad_token_id=0,
    )
    return tuple(output[0, len(prompt) :].tolist())


def random_prompt(length: int, seed: int = 0) -> list[int]:
    """Token ids without the special ones (0, 1, EOS)."""
    generator = torch.Generator().manual_seed(1000 * seed + length)
    return torch.randint(3, VOCABULARY, (length,), generator=generator).tolist()
