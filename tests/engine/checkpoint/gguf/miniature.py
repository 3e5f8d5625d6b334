"""Small GGUF files, written by the `gguf` package from checkpoints that transformers wrote."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType as Type
from gguf import TokenType
from safetensors.torch import load_file
from tokenizers import Tokenizer

from tests.engine.tokenizer_zoo import TEMPLATE, byte_level

ARCHITECTURES = {
    "LlamaForCausalLM": gguf.MODEL_ARCH.LLAMA,
    "MistralForCausalLM": gguf.MODEL_ARCH.LLAMA,
    "MixtralForCausalLM": gguf.MODEL_ARCH.LLAMA,
    "Qwen2ForCausalLM": gguf.MODEL_ARCH.QWEN2,
    "Qwen3ForCausalLM": gguf.MODEL_ARCH.QWEN3,
    "Qwen3MoeForCausalLM": gguf.MODEL_ARCH.QWEN3MOE,
    "SmolLM3ForCausalLM": gguf.MODEL_ARCH.SMOLLM3,
    "GraniteForCausalLM": gguf.MODEL_ARCH.GRANITE,
    "Gemma3ForCausalLM": gguf.MODEL_ARCH.GEMMA3,
    "Phi3ForCausalLM": gguf.MODEL_ARCH.PHI3,
}
_PAIRS = {gguf.MODEL_ARCH.LLAMA, gguf.MODEL_ARCH.SMOLLM3, gguf.MODEL_ARCH.GRANITE}
"""Architectures whose converter orders rows of queries and keys for rotations of neighbouring values."""


def write_gguf(
    path: Path,
    directory: Path,
    *,
    tokenizer: Tokenizer | None = None,
    type_of: Callable[[str], Type] = lambda name: Type.F32,
    template: str | None = TEMPLATE,
    change: Callable[[gguf.GGUFWriter], None] = lambda writer: None,
    keys: Mapping[str, Any] | None = None,
) -> Path:
    """Convert the checkpoint in `directory` as llama.cpp's converter does.

    Args:
        tokenizer: byte-level, or BPE with scores; with as many tokens as the model, or fewer.
        type_of: stored type of a tensor by its name in GGUF; vectors are stored in float32.
        change: called with the writer before the file is written.
        keys: replaces values of config.json before they are written.
    """
    config = json.loads((directory / "config.json").read_text()) | dict(keys or {})
    architecture = ARCHITECTURES[config["architectures"][0]]
    writer = gguf.GGUFWriter(path, gguf.MODEL_ARCH_NAMES[architecture])
    _add_config(writer, config)
    add_vocabulary(writer, tokenizer or byte_level(), config["vocab_size"])
    if template is not None:
        writer.add_chat_template(template)
    for name, tensor in _tensors(directory, config, architecture):
        kind = Type.F32 if tensor.ndim == 1 else type_of(name)
        writer.add_tensor(name, gguf.quantize(tensor, kind), raw_dtype=kind)
    change(writer)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def add_vocabulary(writer: gguf.GGUFWriter, tokenizer: Tokenizer, size: int, pre: str = "gpt-2") -> None:
    """Write a tokenizer's tokens, padded to `size`, with their types, and merges or scores."""
    description = json.loads(tokenizer.to_str())
    byte_fallback = description["model"]["byte_fallback"]
    vocabulary = {id: token for token, id in tokenizer.get_vocab(with_added_tokens=True).items()}
    added = tokenizer.get_added_tokens_decoder()
    tokens, types = [], []
    for id in range(size):
        token = vocabulary.get(id)
        if token is None:
            tokens.append(f"[PAD{id}]")
            types.append(TokenType.UNUSED)
        else:
            tokens.append(token)
            entry = added.get(id)
            control = entry is not None and entry.special
            byte = byte_fallback and token.startswith("<0x")
            other = TokenType.BYTE if byte else TokenType.NORMAL
            types.append(TokenType.CONTROL if control else TokenType.USER_DEFINED if entry is not None else other)
    merges = [" ".join(pair) for pair in description["model"]["merges"]]
    if byte_fallback:
        writer.add_tokenizer_model("llama")
        ranks = {merge.replace(" ", ""): -float(rank) for rank, merge in reversed([*enumerate(merges)])}
        writer.add_token_scores([ranks.get(token, -1e6) for token in tokens])
        writer.add_add_space_prefix(True)
    else:
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre(pre)
        writer.add_token_merges(merges)
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)


def change_keys(writer: gguf.GGUFWriter, change: dict[str, Any]) -> None:
    """Replace values of a writer; None removes a key."""
    values = writer.kv_data[0]
    for key, value in change.items():
        values.pop(key, None)
        if value is not None:
            kind = gguf.GGUFValueType.get_type(value)
            values[key] = gguf.gguf_writer.GGUFValue(value, kind)


def _add_config(writer: gguf.GGUFWriter, config: dict[str, Any]) -> None:
    rope = config["rope_parameters"]
    if "sliding_attention" in rope:
        writer.add_rope_freq_base_swa(rope["sliding_attention"]["rope_theta"])
        rope = rope["full_attention"]
    heads = config["num_attention_heads"]
    head_dim = config.get("head_dim") or config["hidden_size"] // heads
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(rope["rope_theta"])
    writer.add_rope_dimension_count(int(head_dim * rope.get("partial_rotary_factor", 1)))
    if rope["rope_type"] in ("linear", "yarn"):
        writer.add_rope_scaling_type(gguf.RopeScalingType(rope["rope_type"]))
        writer.add_rope_scaling_factor(rope["factor"])
        if rope["rope_type"] == "yarn":
            writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
    if original := config.get("original_max_position_embeddings"):
        writer.add_rope_scaling_orig_ctx_len(original)
    if rope["rope_type"] == "longrope":
        writer.add_rope_scaling_attn_factors(math.sqrt(1 + math.log(rope["factor"]) / math.log(original)))
        for name in ("long", "short"):
            writer.add_tensor(f"rope_factors_{name}.weight", np.array(rope[f"{name}_factor"], np.float32))
    if config["architectures"][0] in ("Gemma3ForCausalLM", "Phi3ForCausalLM"):
        writer.add_sliding_window(config["sliding_window"] or 0)
    if "layer_types" in config and config["layer_types"][0] != config["layer_types"][1]:
        writer.add_sliding_window_pattern(config["layer_types"].index("full_attention") + 1)
    if experts := config.get("num_local_experts") or config.get("num_experts"):
        writer.add_expert_count(experts)
        writer.add_expert_used_count(config["num_experts_per_tok"])
        if width := config.get("moe_intermediate_size"):
            writer.add_expert_feed_forward_length(width)
    if "logits_scaling" in config:
        writer.add_embedding_scale(config["embedding_multiplier"])
        writer.add_residual_scale(config["residual_multiplier"])
        writer.add_attention_scale(config["attention_multiplier"])
        writer.add_logit_scale(config["logits_scaling"])


def _tensors(
    directory: Path, config: dict[str, Any], architecture: gguf.MODEL_ARCH
) -> list[tuple[str, np.ndarray[Any, np.dtype[np.float32]]]]:
    names = gguf.get_tensor_name_map(architecture, config["num_hidden_layers"])
    stored = {name: tensor for file in directory.glob("*.safetensors") for name, tensor in load_file(file).items()}
    found: list[tuple[str, torch.Tensor]] = []
    for name, tensor in stored.items():
        tensor = in_pairs(name, tensor, config, architecture)
        if architecture == gguf.MODEL_ARCH.GEMMA3 and "norm" in name:
            tensor = tensor + 1
        if ".experts." not in name:
            found.append((name, tensor))
        elif ".experts.0." in name:
            count = config.get("num_local_experts") or config["num_experts"]
            stack = [stored[name.replace(".experts.0.", f".experts.{index}.")] for index in range(count)]
            found.append((name.replace(".experts.0.", ".experts."), torch.stack(stack)))
    mapped = []
    for name, tensor in found:
        target = names.get_name(name, try_suffixes=(".weight", ".bias"))
        assert target is not None, name
        mapped.append((target, tensor.float().contiguous().numpy()))
    return mapped


def in_pairs(name: str, tensor: torch.Tensor, config: Mapping[str, Any], architecture: gguf.MODEL_ARCH) -> torch.Tensor:
    """Order rows of a projection to queries or keys for rotations of neighbouring values, where a converter does so."""
    if architecture not in _PAIRS or not (".q_proj." in name or ".k_proj." in name):
        return tensor
    heads = config["num_attention_heads"] if ".q_proj." in name else config["num_key_value_heads"]
    return tensor.view(heads, 2, -1, *tensor.shape[1:]).transpose(1, 2).reshape(tensor.shape)
