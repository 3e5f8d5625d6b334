"""Names of tensors: from those in GGUF files to those of transformers, by which the model knows them."""

from __future__ import annotations

import re
from collections.abc import Mapping

from engine.checkpoint.families import ExpertNames

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
}
_ROUTER = "ffn_gate_inp"
_OF_LAYER = re.compile(r"blk\.(\d+)\.(\w+?)(_exps)?(?:\.(\d+))?\.(weight|bias)")
ROPE_FREQUENCIES, ROPE_LONG, ROPE_SHORT = "rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight"
ROPE_TENSORS = (ROPE_FREQUENCIES, ROPE_LONG, ROPE_SHORT)
"""Tensors that say by what each rotary frequency is divided, in all or in long and short sequences: they belong to the
configuration."""


def checkpoint_names(
    name: str, experts: int, names: ExpertNames | None, modules: Mapping[str, str]
) -> list[str] | None:
    """Return the names under which a tensor is known, one for each of the model's `experts` if it stacks them.

    `modules` has parts of a layer that are called otherwise than in Llama. None: the model has no such tensor.
    """
    if name in _ENDS:
        return [_ENDS[name]]
    found = _OF_LAYER.fullmatch(name)
    if found is None:
        return None
    layer, module, stacked, expert, kind = found.groups()
    prefix = f"model.layers.{layer}"
    known = modules.get(module) or _MODULES.get(module)
    if stacked is None and expert is None and known is not None:
        return [f"{prefix}.{known}.{kind}"]
    if names is None:
        return None
    if module == _ROUTER:
        return [f"{prefix}.{names.block}.gate.{kind}"]
    projection = {"ffn_gate": names.gate, "ffn_up": names.up, "ffn_down": names.down}.get(module)
    if projection is None or (stacked and expert):
        return None
    each = range(experts) if stacked else [int(expert)]
    return [f"{prefix}.{names.block}.experts.{index}.{projection}.{kind}" for index in each]
