"""Names of tensors: from those in GGUF files to those of transformers, by which the model knows them."""

from __future__ import annotations

import re

_ENDS = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_MODULES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "ffn_gate_inp": "block_sparse_moe.gate",
}
_EXPERTS = {"ffn_gate": "w1", "ffn_up": "w3", "ffn_down": "w2"}
"""Mixtral's names of an expert's three weights."""
_OF_LAYER = re.compile(r"blk\.(\d+)\.(\w+?)(_exps)?(?:\.(\d+))?\.(weight|bias)")
ROPE_FREQUENCIES = "rope_freqs.weight"
"""Name of the tensor that says by what each rotary frequency is divided; it belongs to the configuration."""


def checkpoint_names(name: str, experts: int) -> list[str] | None:
    """Return the names under which a tensor is known, one for each of its `experts` if it stacks them.

    None: the model has no such tensor.
    """
    if name in _ENDS:
        return [_ENDS[name]]
    found = _OF_LAYER.fullmatch(name)
    if found is None:
        return None
    layer, module, stacked, expert, kind = found.groups()
    if stacked is None and expert is None:
        return None if module not in _MODULES else [f"model.layers.{layer}.{_MODULES[module]}.{kind}"]
    if module not in _EXPERTS or (stacked and expert):
        return None
    each = range(experts) if stacked else [int(expert)]
    return [f"model.layers.{layer}.block_sparse_moe.experts.{index}.{_EXPERTS[module]}.{kind}" for index in each]
