"""The base model of the adapters: a GGUF file's weights, dequantised exactly, as a model of transformers in fp32."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedModel, Qwen2Config

from engine.checkpoint.opening import open_checkpoint

_CONFIGS: dict[str, type[LlamaConfig | Qwen2Config]] = {
    "LlamaForCausalLM": LlamaConfig,
    "Qwen2ForCausalLM": Qwen2Config,
}


def load_base(path: Path) -> PreTrainedModel:
    """Return transformers' model with the numbers that the file's blocks stand for.

    transformers can read GGUF files itself, but is not asked to: its tokenizer for SmolLM2's file is wrong, so that
    token ids come from `TextProcessor`, as in the engine.

    Raises:
        CheckpointError: the file cannot be used.
        ValueError: it holds another architecture than Llama or Qwen2.
    """
    checkpoint = open_checkpoint(path)
    of = checkpoint.config
    if of.architecture not in _CONFIGS:
        raise ValueError(f"{path.name} is a {of.architecture}; adapters are trained on {', '.join(_CONFIGS)}")
    fields: dict[str, Any] = {
        "vocab_size": of.vocabulary,
        "hidden_size": of.hidden_size,
        "intermediate_size": of.intermediate_size,
        "num_hidden_layers": of.layers,
        "num_attention_heads": of.heads,
        "num_key_value_heads": of.kv_heads,
        "max_position_embeddings": of.max_position_embeddings,
        "rms_norm_eps": of.norm_eps,
        "rope_parameters": {"rope_type": "default", "rope_theta": of.rope.rope_theta},
        "tie_word_embeddings": of.tied_embeddings,
        "eos_token_id": list(of.eos_token_ids),
    }
    model: PreTrainedModel = AutoModelForCausalLM.from_config(_CONFIGS[of.architecture](**fields), dtype=torch.float32)
    weights = {
        tensor.name: torch.tensor(
            gguf.dequantize(tensor.data, gguf.GGMLQuantizationType[tensor.type.upper()]).reshape(tensor.shape)
        )
        for tensor in checkpoint.tensors()
    }
    if of.tied_embeddings:
        weights["lm_head.weight"] = weights["model.embed_tokens.weight"]
    model.load_state_dict(weights)
    model.eval()
    return model
