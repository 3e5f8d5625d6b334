"""Folders whose weights GPTQ, AWQ and others have quantised are served as they are stored, as transformers does the
same numbers in fp32."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from engine.checkpoint.errors import CheckpointError
from engine.execution.precision import Precision
from engine.execution.runner import ModelRunner
from kernels.formats.groups import GroupedWeight
from kernels.formats.stacked import StackedWeight
from tests.amounts import some_of
from tests.engine.adapters.collection import Collection, ask, bank_of
from tests.engine.adapters.zoo import peft_greedy, write_adapter
from tests.engine.checkpoints import VOCABULARY, oracle_greedy, oracle_logits, random_prompt
from tests.engine.driver import BLOCKS, drive, request, tokens_of
from tests.engine.quantized_folders import (
    Folder,
    awq,
    eight_bits,
    gptq,
    packed,
    write_quantized,
    write_with_bitsandbytes,
)

GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": False, "sym": True}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 64, "zero_point": True, "version": "gemm"}


EXACT = Precision("float32", kv_dtype="fp32")


def load(path: Path, precision: Precision = EXACT) -> ModelRunner:
    return ModelRunner(path, blocks=BLOCKS, precision=precision)


def check(folder: Folder) -> ModelRunner:
    """Answers are those of transformers on the dequantised weights, and its log-probabilities too."""
    runner, prompt = load(folder.stored), random_prompt(20)
    assert tokens_of(runner, [request(prompt, max_tokens=12)])[0] == oracle_greedy(folder.dense, prompt, 12)
    ((*_, last),) = drive(runner, [request(prompt, max_tokens=1, logprobs=VOCABULARY)])
    found = torch.full((VOCABULARY,), torch.nan)
    for token, value in (last.logprobs or ())[0].top:
        found[token] = value
    expected = oracle_logits(folder.dense, prompt)[-1].log_softmax(-1)
    # Activations are rounded to 16 bits per 128 inputs.
    assert torch.allclose(found, expected, atol=5e-3)
    assert float((expected.exp() * (expected - found)).sum()) < 1e-6
    return runner


def check_packed(runner: ModelRunner) -> None:
    """Weights of layers are packed as they are stored, and queries, keys and values are multiplied with in one call."""
    for layer in runner._model._layers:
        for linear in (layer._attention._qkv, layer._attention._output):
            assert isinstance(linear._packed, GroupedWeight) and not isinstance(linear._packed, StackedWeight)


@pytest.mark.parametrize(
    ("desc_act", "architecture"), some_of([*product([False, True], ["llama", "llama-bias", "qwen3"])], 2)
)
def test_gptq_answers_as_transformers_does(tmp_path: Path, architecture: str, desc_act: bool) -> None:
    config = GPTQ | {"desc_act": desc_act, "sym": False}
    runner = check(write_quantized(tmp_path, config, gptq(4, 32, symmetric=False, desc_act=desc_act), architecture))
    check_packed(runner)


@pytest.mark.parametrize(
    ("bits", "group", "zeros"),
    some_of([*product([4, 8], [32, 64, 128, -1], [(True, False), (False, False), (False, True)])], 5),
)
def test_variants_of_gptq(tmp_path: Path, bits: int, group: int, zeros: tuple[bool, bool]) -> None:
    symmetric, v2 = zeros
    config = GPTQ | {"bits": bits, "group_size": group, "checkpoint_format": "gptq_v2" if v2 else "gptq"}
    runner = check(write_quantized(tmp_path, config, gptq(bits, group, symmetric=symmetric, v2=v2)))
    check_packed(runner)


@pytest.mark.parametrize(("architecture", "group"), some_of([*product(["llama", "qwen2"], [32, 128])], 3))
def test_awq_answers_as_transformers_does(tmp_path: Path, architecture: str, group: int) -> None:
    check_packed(check(write_quantized(tmp_path, AWQ | {"group_size": group}, awq(group), architecture)))


CT = {"quant_method": "compressed-tensors"}


@pytest.mark.parametrize("symmetric", [True, False])
def test_compressed_tensors_in_four_bits(tmp_path: Path, symmetric: bool) -> None:
    config = CT | {"format": "pack-quantized", "quantization_status": "compressed"}
    check_packed(check(write_quantized(tmp_path, config, packed(32, symmetric=symmetric), "qwen2")))


@pytest.mark.parametrize(("kind", "strategy"), some_of([*product(["int", "float"], ["channel", "tensor"])], 3))
def test_compressed_tensors_in_eight_bits(tmp_path: Path, kind: str, strategy: str) -> None:
    config = CT | {"format": f"{kind}-quantized"}
    check_packed(check(write_quantized(tmp_path, config, eight_bits(kind, strategy))))


def test_blocks_of_fp8(tmp_path: Path) -> None:
    folder = write_quantized(
        tmp_path, {"quant_method": "fp8", "weight_block_size": [64, 64]}, eight_bits("float", "block")
    )
    check_packed(check(folder))
    # As the models of DeepSeek and Qwen name them, and read by transformers itself.
    path = folder.stored / "model.safetensors"
    tensors = load_file(path)
    save_file({name.replace("weight_scale", "weight_scale_inv"): x for name, x in tensors.items()}, path)
    check(Folder(folder.stored, folder.stored))


def test_scales_of_activations_and_kv_are_not_read(tmp_path: Path) -> None:
    folder = write_quantized(tmp_path, {"quant_method": "fp8"}, eight_bits("float", "tensor"))
    path = folder.stored / "model.safetensors"
    tensors = load_file(path)
    scales = {f"model.layers.0.self_attn.{name}_scale": torch.ones(()) for name in ("q_proj.input", "k", "v")}
    save_file(tensors | scales, path)
    check(folder)


@pytest.mark.parametrize(
    "options",
    [
        {"load_in_8bit": True},
        {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4", "bnb_4bit_use_double_quant": True},
        {"load_in_4bit": True, "bnb_4bit_quant_type": "fp4"},
    ],
    ids=["int8", "nf4", "fp4"],
)
def test_bitsandbytes_answers_as_transformers_does(tmp_path: Path, options: dict[str, Any]) -> None:
    check_packed(check(write_with_bitsandbytes(tmp_path, **options)))


def test_biases_of_zeros_that_a_model_does_not_have_are_left_out(tmp_path: Path) -> None:
    folder = write_quantized(tmp_path, GPTQ, gptq(4, 32))
    path = folder.stored / "model.safetensors"
    tensors = load_file(path)
    name = "model.layers.0.mlp.down_proj.bias"
    save_file(tensors | {name: torch.zeros(128, dtype=torch.float16)}, path)
    check(folder)
    save_file(tensors | {name: torch.ones(128, dtype=torch.float16)}, path)
    with pytest.raises(CheckpointError, match=r"unexpected tensor .*down_proj.bias"):
        load(folder.stored)


def test_tensors_that_are_no_weight_are_named(tmp_path: Path) -> None:
    folder = write_quantized(tmp_path, GPTQ, gptq(4, 32))
    path = folder.stored / "model.safetensors"
    tensors = load_file(path)
    name = "model.layers.1.self_attn.o_proj"
    del tensors[f"{name}.scales"]
    save_file(tensors, path)
    with pytest.raises(CheckpointError, match=rf"{name}.weight' \(gptq\): scales is missing"):
        load(folder.stored)
    del tensors[f"{name}.qweight"]
    save_file(tensors, path)
    with pytest.raises(CheckpointError, match=rf"'{name}' is stored as g_idx \(i32\), qzeros \(i32\): no weight"):
        load(folder.stored)


@pytest.mark.parametrize("kind", [pytest.param("rank 8", marks=pytest.mark.deep), "dora embeddings"])
def test_adapters_are_those_of_peft_over_the_dequantised_weights(tmp_path: Path, kind: str) -> None:
    folder = write_quantized(tmp_path, GPTQ | {"desc_act": True}, gptq(4, 32, desc_act=True))
    adapters = {kind: write_adapter(tmp_path / "adapter", folder.dense, kind)}
    collection, prompts = Collection(folder.stored, adapters), [random_prompt(20, seed) for seed in (1, 2)]
    runner = ModelRunner(folder.stored, blocks=2 * BLOCKS, precision=EXACT, adapters=collection)
    bank = bank_of(runner)
    bank.install(kind, range(BLOCKS, BLOCKS + bank.prepare(kind)))
    both = [ask(kind, prompts[0], max_tokens=12), ask(None, prompts[1], max_tokens=12)]
    expected = peft_greedy(folder.dense, adapters[kind], prompts[0], 12), oracle_greedy(folder.dense, prompts[1], 12)
    assert tuple(tokens_of(runner, both)) == expected


def test_experts_are_served_as_they_are_stored(tmp_path: Path) -> None:
    check(write_quantized(tmp_path, GPTQ, gptq(4, 32), "mixtral"))


def test_activations_and_kv_are_those_of_quantised_checkpoints_unless_asked_for_otherwise(tmp_path: Path) -> None:
    folder = write_quantized(tmp_path, AWQ, awq(64), dtype=torch.bfloat16)
    precision = ModelRunner(folder.stored, blocks=BLOCKS).precision
    assert (precision.dtype, precision.kv_dtype) == ("float32", "fp16")


def test_what_is_quantised_is_not_quantised_again(tmp_path: Path) -> None:
    folder = write_quantized(tmp_path, GPTQ, gptq(4, 32))
    with pytest.raises(CheckpointError, match="weights are quantised already; leave out quantize = 'int8'"):
        load(folder.stored, Precision(quantize="int8"))
