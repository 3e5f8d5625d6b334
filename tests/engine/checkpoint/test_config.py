"""config.json is read as transformers reads it, and what this engine cannot do is refused by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoConfig, Gemma3TextConfig

from engine.checkpoint.config import ModelConfig
from engine.checkpoint.errors import CheckpointError
from engine.checkpoint.stored_config import StoredConfig
from tests.engine.checkpoints import ARCHITECTURES, CONTEXT, EOS, ROPE_SCALINGS
from tests.engine.conftest import Checkpoint

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 100,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
}


GRANITE4: dict[str, Any] = {
    "architectures": ["GraniteMoeHybridForCausalLM"],
    "num_local_experts": 0,
    "position_embedding_type": "rope",
    "layer_types": ["attention"] * 4,
    "shared_intermediate_size": 96,
}


def read(directory: Path, **fields: Any) -> ModelConfig:
    (directory / "config.json").write_text(json.dumps(LLAMA | fields))
    return ModelConfig.from_directory(directory)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_every_architecture_is_read_as_transformers_reads_it(checkpoint: Checkpoint, architecture: str) -> None:
    directory = checkpoint(architecture)
    ours, theirs = ModelConfig.from_directory(directory), AutoConfig.from_pretrained(directory)
    assert ours.architecture == theirs.architectures[0]
    assert ours.vocabulary == theirs.vocab_size
    widths = (getattr(theirs, f"{kind}_intermediate_size", None) for kind in ("moe", "shared"))
    inner = next(filter(None, widths), theirs.intermediate_size)
    assert (ours.hidden_size, ours.intermediate_size) == (theirs.hidden_size, inner)
    assert (ours.layers, ours.heads) == (theirs.num_hidden_layers, theirs.num_attention_heads)
    assert ours.kv_heads == theirs.num_key_value_heads
    assert ours.head_dim == getattr(theirs, "head_dim", None) or theirs.hidden_size // theirs.num_attention_heads
    assert ours.norm_eps == theirs.rms_norm_eps / getattr(theirs, "residual_multiplier", 1.0) ** 2
    theirs_rope = theirs.rope_parameters
    assert ours.rope.rope_theta == theirs_rope.get("full_attention", theirs_rope)["rope_theta"]
    assert ours.tied_embeddings == theirs.tie_word_embeddings
    assert ours.experts == getattr(theirs, "num_local_experts", 0)
    assert ours.eos_token_ids == (EOS,)
    assert ours.stored_dtype == "float32"


@pytest.mark.parametrize("name", ROPE_SCALINGS)
def test_both_forms_of_rope_scaling_mean_the_same(tmp_path: Path, name: str) -> None:
    parameters = ROPE_SCALINGS[name]
    new = read(tmp_path, rope_parameters=parameters | {"rope_theta": 5000.0})
    older = {key: value for key, value in parameters.items() if key not in ("rope_type", "rope_theta")}
    old = read(tmp_path, rope_scaling=older | {"type": parameters["rope_type"]}, rope_theta=5000.0)
    assert new.rope == old.rope
    assert new.rope.rope_theta == 5000.0


def test_defaults_of_an_old_llama_config(tmp_path: Path) -> None:
    config = read(tmp_path)
    assert (config.kv_heads, config.head_dim) == (4, 16)
    assert (config.rope.rope_type, config.rope.rope_theta) == ("default", 10_000.0)
    assert (config.qkv_bias, config.mlp_bias, config.tied_embeddings) == (False, False, False)
    assert config.windows == (None,) * 4
    assert config.eos_token_ids == ()


def test_keys_without_effect_are_ignored(tmp_path: Path) -> None:
    assert read(tmp_path, pretraining_tp=2, attention_dropout=0.1, some_tool="1.0") == read(tmp_path)


@pytest.mark.parametrize(
    ("fields", "windows"),
    [
        ({"architectures": ["MistralForCausalLM"], "sliding_window": 8}, (8, 8, 8, 8)),
        ({"architectures": ["MistralForCausalLM"], "sliding_window": None}, (None,) * 4),
        ({"architectures": ["MistralForCausalLM"]}, (4096,) * 4),
        ({"architectures": ["SmolLM3ForCausalLM"], "sliding_window": 8}, (None,) * 4),
        (
            {"architectures": ["SmolLM3ForCausalLM"], "sliding_window": 8, "use_sliding_window": True},
            (None, None, None, 8),
        ),
        ({"architectures": ["Gemma3ForCausalLM"], "sliding_window_pattern": 3}, (4096, 4096, None, 4096)),
        ({"architectures": ["Olmo3ForCausalLM"], "sliding_window": 9}, (9, 9, 9, None)),
        ({"architectures": ["MixtralForCausalLM"]}, (None,) * 4),
        ({"architectures": ["Qwen3MoeForCausalLM"], "norm_topk_prob": True}, (None,) * 4),
        (
            {"architectures": ["Qwen3MoeForCausalLM"], "norm_topk_prob": True, "use_sliding_window": True},
            (4096,) * 4,
        ),
        ({"architectures": ["Qwen2ForCausalLM"], "sliding_window": 8}, (None,) * 4),
        (
            {
                "architectures": ["Qwen2ForCausalLM"],
                "sliding_window": 8,
                "use_sliding_window": True,
                "max_window_layers": 3,
            },
            (None, None, None, 8),
        ),
        (
            {
                "architectures": ["Qwen3ForCausalLM"],
                "sliding_window": 8,
                "use_sliding_window": True,
                "layer_types": ["sliding_attention", "full_attention"] * 2,
            },
            (8, None, 8, None),
        ),
    ],
)
def test_windows_by_layer(tmp_path: Path, fields: dict[str, Any], windows: tuple[int | None, ...]) -> None:
    assert read(tmp_path, num_key_value_heads=4, **fields).windows == windows


@pytest.mark.parametrize(
    ("fields", "rotated"),
    [
        ({}, [True, True, True, False]),
        ({"no_rope_layer_interval": 2}, [True, False, True, False]),
        ({"no_rope_layers": [0, 1, 1, 0, 1]}, [False, True, True, False]),
    ],
)
def test_smollm3_rotates_some_layers(tmp_path: Path, fields: dict[str, Any], rotated: list[bool]) -> None:
    config = read(tmp_path, architectures=["SmolLM3ForCausalLM"], **fields)
    assert [rope == config.rope for rope in config.ropes] == rotated
    assert set(config.ropes) == {config.rope, None} == set(config.rope_tables)


@pytest.mark.parametrize(
    "fields",
    [
        {
            "rope_theta": 5e5,
            "rope_local_base_freq": 2e4,
            "rope_scaling": {"rope_type": "linear", "factor": 8.0},
        },
        {
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 5e5},
                "sliding_attention": {"rope_type": "default", "rope_theta": 2e4},
            },
        },
    ],
    ids=["old form", "new form"],
)
def test_gemma3_has_rotary_embeddings_by_layer(tmp_path: Path, fields: dict[str, Any]) -> None:
    config = read(tmp_path, architectures=["Gemma3ForCausalLM"], sliding_window_pattern=2, **fields)
    assert [rope and (rope.rope_type, rope.rope_theta) for rope in config.ropes] == [
        ("default", 2e4),
        ("linear", 5e5),
    ] * 2
    assert config.rope == config.ropes[1]


def test_defaults_of_gemma3_are_those_of_transformers(tmp_path: Path) -> None:
    config = read(tmp_path, architectures=["Gemma3ForCausalLM"])
    theirs = Gemma3TextConfig(num_hidden_layers=4)
    assert (config.kv_heads, config.head_dim) == (theirs.num_key_value_heads, theirs.head_dim)
    assert [rope and rope.rope_theta for rope in config.rope_tables] == [1e6, 1e4]
    assert config.activation == "gelu_tanh"
    assert config.tied_embeddings
    assert config.score_scale * config.head_dim**-0.5 == pytest.approx(theirs.query_pre_attn_scalar**-0.5)


@pytest.mark.parametrize("name", ["su", "yarn", "longrope"])
def test_phi3_has_older_names_of_longrope(tmp_path: Path, name: str) -> None:
    factors = {"short_factor": [1.0] * 6, "long_factor": [2.0] * 6}
    scaling = {"type": name, **factors}
    config = read(tmp_path, architectures=["Phi3ForCausalLM"], partial_rotary_factor=0.75, rope_scaling=scaling)
    assert (config.rope.rope_type, config.rope.rotated(config.head_dim)) == ("longrope", 12)


@given(heads=st.integers(1, 8), size=st.integers(1, 40), factor=st.floats(-0.5, 1.5))
def test_phi3_rotates_an_even_number_of_dimensions_or_is_refused(heads: int, size: int, factor: float) -> None:
    raw = msgspec.convert(
        LLAMA
        | {"architectures": ["Phi3ForCausalLM"], "num_attention_heads": heads, "head_dim": 2 * size}
        | {"partial_rotary_factor": factor},
        StoredConfig,
    )
    try:
        config = ModelConfig.from_stored(raw, ())
    except CheckpointError as error:
        assert "partial_rotary_factor" in str(error)
        assert factor < 0 or factor > 1 or int(2 * size * factor) % 2 or int(2 * size * factor) == 0
    else:
        rotated = config.rope.rotated(config.head_dim)
        assert 0 < rotated <= 2 * size
        assert rotated % 2 == 0


@pytest.mark.parametrize(
    ("generation", "expected"),
    [({"eos_token_id": [7, 8]}, (7, 8)), ({"eos_token_id": 9}, (9,)), ({}, (3,)), (None, (3,))],
)
def test_generation_config_names_the_end_of_sequence_first(
    tmp_path: Path, generation: dict[str, Any] | None, expected: tuple[int, ...]
) -> None:
    if generation is not None:
        (tmp_path / "generation_config.json").write_text(json.dumps(generation))
    assert read(tmp_path, eos_token_id=3).eos_token_ids == expected


@pytest.mark.parametrize(
    ("rope", "context"),
    [
        (None, 512),
        ({"rope_type": "linear", "factor": 4.0}, 2048),
        ({"rope_type": "dynamic", "factor": 2.0}, 1024),
        ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 256}, 1024),
        (ROPE_SCALINGS["llama3"], 512),
    ],
)
def test_context_grows_with_the_scaling(tmp_path: Path, rope: dict[str, Any] | None, context: int) -> None:
    assert read(tmp_path, rope_parameters=rope).context == context


@pytest.mark.parametrize("architecture", ["qwen2", "smollm3", "granite"])
def test_a_stretched_config_is_that_of_a_checkpoint_with_yarn(checkpoint: Checkpoint, architecture: str) -> None:
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": CONTEXT}
    plain = ModelConfig.from_directory(checkpoint(architecture))
    expected = ModelConfig.from_directory(
        checkpoint(architecture, rope_parameters=yarn | {"rope_theta": plain.rope.rope_theta})
    )
    assert plain.stretched(4.0) == expected
    assert plain.stretched(4.0).context == 4 * CONTEXT


def test_what_is_stretched_or_differs_between_layers_cannot_be_stretched(
    tmp_path: Path, checkpoint: Checkpoint
) -> None:
    with pytest.raises(CheckpointError, match="stretched already, with rope_type 'linear'"):
        read(tmp_path, rope_parameters=ROPE_SCALINGS["linear"]).stretched(4.0)
    thetas = {"full_attention": 1e6, "sliding_attention": 1e4}
    plain = {kind: {"rope_type": "default", "rope_theta": theta} for kind, theta in thetas.items()}
    with pytest.raises(CheckpointError, match="layers of Gemma3ForCausalLM have different rotary embeddings"):
        ModelConfig.from_directory(checkpoint("gemma3", rope_parameters=plain)).stretched(4.0)


def test_only_scalings_that_depend_on_the_length_have_regimes(tmp_path: Path) -> None:
    plain = read(tmp_path)
    assert plain.rope_regimes is None
    longrope = read(tmp_path, rope_parameters=ROPE_SCALINGS["longrope"]).rope_regimes
    assert longrope is not None
    assert [longrope.of(length) for length in (1, 64, 65, 500)] == [0, 0, 1, 1]
    dynamic = read(tmp_path, rope_parameters=ROPE_SCALINGS["dynamic"]).rope_regimes
    assert dynamic is not None
    assert [dynamic.of(length) for length in (1, 512, 513, 600)] == [0, 0, 513, 600]


REFUSALS: dict[str, tuple[dict[str, Any], str]] = {
    "architecture": ({"architectures": ["GPT2LMHeadModel"]}, "GPT2LMHeadModel.*OpenAI-compatible"),
    "gpt-oss": ({"architectures": ["GptOssForCausalLM"]}, "attention has sinks.*OpenAI-compatible"),
    "no architecture": ({"architectures": []}, "architectures"),
    "wrong type": ({"hidden_size": "64"}, r"Expected `int`, got `str` - at `\$\.hidden_size`"),
    "missing": ({"vocab_size": None}, "vocab_size"),
    "negative": ({"num_hidden_layers": 0}, "num_hidden_layers"),
    "activation": ({"hidden_act": "relu"}, "hidden_act 'relu'"),
    "activation of experts": (
        {"architectures": ["MixtralForCausalLM"], "num_key_value_heads": 4, "hidden_act": "gelu"},
        "hidden_act 'gelu' is not supported for experts",
    ),
    "quantised": (
        {"quantization_config": {"quant_method": "eetq"}},
        "quant_method 'eetq' is not supported",
    ),
    "dtype": ({"torch_dtype": "float8_e4m3fn"}, "float8_e4m3fn"),
    "heads": ({"num_key_value_heads": 3}, "multiple of num_key_value_heads"),
    "odd head": ({"head_dim": 15}, "head_dim must be even"),
    "window of llama": ({"sliding_window": 8}, "sliding_window is not an option of LlamaForCausalLM"),
    "layer type": (
        {
            "architectures": ["Qwen2ForCausalLM"],
            "num_key_value_heads": 4,
            "layer_types": ["chunked_attention"] * 4,
        },
        "chunked_attention",
    ),
    "layer types without window": (
        {
            "architectures": ["Qwen2ForCausalLM"],
            "num_key_value_heads": 4,
            "layer_types": ["sliding_attention"] * 4,
        },
        "use_sliding_window is not set",
    ),
    "layer types too short": (
        {"architectures": ["Qwen2ForCausalLM"], "num_key_value_heads": 4, "layer_types": ["full_attention"]},
        "1 entries for 4 layers",
    ),
    "layer types of mistral": (
        {
            "architectures": ["MistralForCausalLM"],
            "num_key_value_heads": 4,
            "sliding_window": 8,
            "layer_types": ["full_attention"] * 4,
        },
        "remove layer_types",
    ),
    "multiplier": ({"architectures": ["GraniteForCausalLM"], "residual_multiplier": 0}, "residual_multiplier"),
    "experts of granite 4": (
        GRANITE4 | {"num_local_experts": 8},
        "num_local_experts 8 is not supported; only 0 is",
    ),
    "no rotation in granite 4": (
        GRANITE4 | {"position_embedding_type": "nope"},
        "position_embedding_type 'nope' is not supported; only 'rope' is",
    ),
    "states of granite 4": (GRANITE4 | {"layer_types": ["mamba", *["attention"] * 3]}, "layer type 'mamba'"),
    "no layer types in granite 4": (GRANITE4 | {"layer_types": None}, "layer_types is missing, which Granite"),
    "no width in granite 4": (GRANITE4 | {"shared_intermediate_size": None}, "shared_intermediate_size is missing"),
    "soft caps": (
        {"architectures": ["Gemma3ForCausalLM"], "final_logit_softcapping": 30.0},
        "final_logit_softcapping 30.0 is not supported; only None is",
    ),
    "one rotary embedding of gemma3": (
        {"architectures": ["Gemma3ForCausalLM"], "rope_parameters": {"rope_type": "default"}},
        "must be given for 'full_attention' and 'sliding_attention', not as rope_type",
    ),
    "rotary embedding of gemma3 by length": (
        {"architectures": ["Gemma3ForCausalLM"], "rope_scaling": {"rope_type": "dynamic", "factor": 2.0}},
        "rope_type 'dynamic' is not supported where layers",
    ),
    "rotated layers": (
        {"architectures": ["SmolLM3ForCausalLM"], "no_rope_layers": [1, 0]},
        "no_rope_layers has 2 entries for 4 layers",
    ),
    "rope type": ({"rope_scaling": {"type": "su", "factor": 2.0}}, "rope_type 'su'"),
    "rope per layer type": ({"rope_parameters": {"full_attention": {"rope_type": "default"}}}, "full_attention"),
    "rope without factor": ({"rope_scaling": {"rope_type": "linear"}}, "need 'factor'"),
    "rope field": ({"rope_scaling": {"rope_type": "linear", "factor": "4"}}, r"\$\.factor"),
    "longrope factors": (
        {"rope_scaling": {"rope_type": "longrope", "short_factor": [1.0], "long_factor": [1.0]}},
        "short_factor has 1 entries",
    ),
    "partial rotary": ({"partial_rotary_factor": 0.5}, "partial_rotary_factor 0.5 is not supported; only 1.0 is"),
    "odd partial rotary": (
        {"architectures": ["Phi3ForCausalLM"], "partial_rotary_factor": 0.32},
        "partial_rotary_factor 0.32 is not supported; what leaves an even number",
    ),
    "experts": (
        {"architectures": ["MixtralForCausalLM"], "num_key_value_heads": 4, "num_experts_per_tok": 9},
        "must not exceed num_local_experts",
    ),
    "shares of experts": (
        {"architectures": ["Qwen3MoeForCausalLM"], "num_key_value_heads": 4},
        "norm_topk_prob False is not supported; only True is",
    ),
    "layers without experts": (
        {
            "architectures": ["Qwen3MoeForCausalLM"],
            "num_key_value_heads": 4,
            "norm_topk_prob": True,
            "mlp_only_layers": [1],
        },
        r"mlp_only_layers \[1\] is not supported",
    ),
    "sizes of experts": (
        {"architectures": ["MixtralForCausalLM"], "num_key_value_heads": 4, "intermediate_size": 100},
        "multiples of 8",
    ),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_what_cannot_be_served_is_refused_by_name(tmp_path: Path, case: str) -> None:
    fields, message = REFUSALS[case]
    with pytest.raises(CheckpointError, match=message):
        read(tmp_path, **fields)


def test_a_file_that_is_not_json_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(b"\xff{")
    with pytest.raises(CheckpointError, match=r"config\.json: "):
        ModelConfig.from_directory(tmp_path)


def test_granite_4_has_another_name_for_full_attention(tmp_path: Path) -> None:
    assert read(tmp_path, **GRANITE4).windows == (None,) * 4
