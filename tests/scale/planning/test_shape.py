"""Parameters and bytes of models, beside what transformers counts and what models are published with."""

from __future__ import annotations

import msgspec
import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, LlamaConfig, MixtralConfig, Qwen2Config

from engine.checkpoint.config import ModelConfig
from engine.checkpoint.stored_config import StoredConfig
from scale.planning.shape import ModelShape, known_shapes


@pytest.mark.parametrize(("name", "billions"), [("llama-2-7b", 6.74), ("llama-2-70b", 68.98), ("mixtral-8x7b", 46.70)])
def test_known_shapes_have_the_published_number_of_parameters(name: str, billions: float) -> None:
    assert known_shapes()[name].parameters / 1e9 == pytest.approx(billions, rel=0.002)


SIZES = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4}


@pytest.mark.parametrize(
    "config",
    [
        LlamaConfig(**SIZES, num_key_value_heads=2, vocab_size=160),
        Qwen2Config(**SIZES, num_key_value_heads=1, vocab_size=160, tie_word_embeddings=True),
        MixtralConfig(**SIZES, num_key_value_heads=2, vocab_size=160, num_local_experts=4, num_experts_per_tok=2),
    ],
    ids=["llama", "qwen2 tied", "mixtral"],
)
def test_a_shape_counts_what_transformers_makes(config: AutoConfig) -> None:
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    matrices = sum(each.numel() for each in model.parameters() if each.dim() > 1)
    plain = {**config.to_dict(), "architectures": [type(model).__name__]}
    stored = msgspec.convert(plain, StoredConfig)
    assert ModelShape.of("tiny", ModelConfig.from_stored(stored, ())).parameters == matrices


def test_fewer_bits_take_less_and_scales_count() -> None:
    shape = known_shapes()["llama-3.1-8b"]
    assert shape.weight_bytes("bf16") == 2 * shape.parameters
    assert shape.weight_bytes("int4") < shape.weight_bytes("int8") < shape.weight_bytes("bf16")
    assert shape.kv_bytes("int8") == 2 * 32 * 8 * (128 + 4)


def test_a_tied_head_in_fewer_bits_is_a_copy() -> None:
    shape = msgspec.structs.replace(known_shapes()["llama-3.1-8b"], tied=True)
    assert shape.weight_bytes("bf16") == 2 * shape.parameters
    layers = shape.parameters - shape.head
    assert shape.weight_bytes("int8") == layers + 2 * shape.head + shape.head


def test_steps_of_a_mixture_touch_more_experts_the_more_tokens_they_have() -> None:
    shape = known_shapes()["mixtral-8x7b"]
    assert shape.touched(1) == pytest.approx(shape.active)
    assert shape.touched(1) < shape.touched(4) < shape.touched(64)
    assert shape.touched(1000) == pytest.approx(shape.layers * (shape.attention + 8 * shape.mlp))
