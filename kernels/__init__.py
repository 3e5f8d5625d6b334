"""Ops with one meaning on every device; `reference` is the specification and this module what the engine sees."""

from __future__ import annotations

from kernels.attention.plan import AttentionPlan, fixed_plan, plan_attention
from kernels.formats import PackedWeight, Quantization, pack_stacked, pack_weight
from kernels.formats.stored import PLAIN, STORED_TYPES, StoredRows, Unpack, stored_numbers
from kernels.formats.stored.folders import StoredWeight, read_parts, typed
from kernels.lora.layout import LoraAdapter, LoraEmbedding, LoraLayout, LoraPart, LoraSite
from kernels.lora.ops import LoraExperts, adapt_embedding, adapt_experts, adapt_linear
from kernels.lora.plan import LoraPlan, LoraWorkspace
from kernels.lora.tables import LoraPlanBuffers, TablePlan
from kernels.memory import zeros_in_huge_pages
from kernels.ops.activation import gelu_and_mul, silu_and_mul
from kernels.ops.attention import attention_is_built, paged_attention
from kernels.ops.embedding import embedding, quantized_embedding
from kernels.ops.moe import PackedExperts, SeparateExperts, moe, pack_experts
from kernels.ops.norm import add_rms_norm, rms_norm
from kernels.ops.rotary import rope_and_store
from kernels.ops.sampling import apply_penalties, apply_token_bitmask, argmax, log_sum_exp, sample
from kernels.recording import Recording, RecordingMemory, can_record, record
from kernels.reference.kv import LayerCache

__all__ = [
    "PLAIN",
    "STORED_TYPES",
    "AttentionPlan",
    "LayerCache",
    "LoraAdapter",
    "LoraEmbedding",
    "LoraExperts",
    "LoraLayout",
    "LoraPart",
    "LoraPlan",
    "LoraPlanBuffers",
    "LoraSite",
    "LoraWorkspace",
    "PackedExperts",
    "PackedWeight",
    "Quantization",
    "Recording",
    "RecordingMemory",
    "SeparateExperts",
    "StoredRows",
    "StoredWeight",
    "TablePlan",
    "Unpack",
    "adapt_embedding",
    "adapt_experts",
    "adapt_linear",
    "add_rms_norm",
    "apply_penalties",
    "apply_token_bitmask",
    "argmax",
    "attention_is_built",
    "can_record",
    "embedding",
    "fixed_plan",
    "gelu_and_mul",
    "log_sum_exp",
    "moe",
    "pack_experts",
    "pack_stacked",
    "pack_weight",
    "paged_attention",
    "plan_attention",
    "quantized_embedding",
    "read_parts",
    "record",
    "rms_norm",
    "rope_and_store",
    "sample",
    "silu_and_mul",
    "stored_numbers",
    "typed",
    "zeros_in_huge_pages",
]
