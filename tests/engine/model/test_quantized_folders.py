"""Folders whose weights GPTQ, AWQ and others have quantised are served as they are stored, as transformers does the
same numbers in fp32."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from engine.checkpoint.errors import CheckpointError
from engine.execution.precision import Precision
from engine.execution.runner import ModelRunner
from kernels.formats.groups import GroupedWeight
from kernels.formats.stacked import StackedWeight
from tests.engine.checkpoints import VOCABULARY, oracle_greedy, oracle_logits, random_prompt
from tests.engine.driver import BLOCKS, drive, request, tokens_of
from tests.engine.quantized_folders import Folder, awq, gptq, write_quantized

GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": False, "sym": True}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 64, "zero_point": True, "version": "gemm"}


def load(path: Path, dtype: str = "float32", **options: Any) -> ModelRunner:
    return ModelRunner(path, blocks=BLOCKS, precision=Precision(dtype, **options))  # type: ignore[arg-type]


def check(folder: Folder) -> ModelRunner:
    """Answers are those of transformers on the dequantised weights, and its log-probabilities too."""
    runner, prompt = load(folder.stored), random_prompt(20)
    assert tokens_of(runner, [request(prompt, max_tokens=12)])[0] == oracle_greedy(folder.dense, prompt, 12)
    ((*_, last),) = drive(runner, [request(prompt, max_tokens=1, logprobs=VOCABULARY)])
    found = torch.full((VOCABULARY,), torch.nan)
    for token, value in (last.logprobs or ())[0].top:
        found[token] = value
    expected = oracle_logits(folder.dense, prompt)[-1].log_softmax(-1)
    assert torch.allclose(found, expected, atol=1e-4)
    return runner


def check_packed(runner: ModelRunner) -> None:
    """Weights of layers are packed as they are stored, and queries, keys and values are multiplied with in one call."""
    for layer in runner._model._layers:
        for linear in (layer._attention._qkv, layer._attention._output):
            assert isinstance(linear._packed, GroupedWeight) and not isinstance(linear._packed, StackedWeight)


@pytest.mark.parametrize("architecture", ["llama", "llama-bias", "qwen3"])
@pytest.mark.parametrize("desc_act", [False, True])
def test_gptq_answers_as_transformers_does(tmp_path: Path, architecture: str, desc_act: bool) -> None:
    config = GPTQ | {"desc_act": desc_act, "sym": False}
    runner = check(write_quantized(tmp_path, config, gptq(4, 32, symmetric=False, desc_act=desc_act), architecture))
    check_packed(runner)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("group", [32, 64, 128, -1])
@pytest.mark.parametrize(("symmetric", "v2"), [(True, False), (False, False), (False, True)])
def test_variants_of_gptq(tmp_path: Path, bits: int, group: int, symmetric: bool, v2: bool) -> None:
    config = GPTQ | {"bits": bits, "group_size": group, "checkpoint_format": "gptq_v2" if v2 else "gptq"}
    runner = check(write_quantized(tmp_path, config, gptq(bits, group, symmetric=symmetric, v2=v2)))
    check_packed(runner)


@pytest.mark.parametrize("architecture", ["llama", "qwen2"])
@pytest.mark.parametrize("group", [32, 128])
def test_awq_answers_as_transformers_does(tmp_path: Path, architecture: str, group: int) -> None:
    check_packed(check(write_quantized(tmp_path, AWQ | {"group_size": group}, awq(group), architecture)))


def test_experts_are_served_as_they_are_stored(tmp_path: Path) -> None:
    check(write_quantized(tmp_path, GPTQ, gptq(4, 32), "mixtral"))


def test_what_is_quantised_is_not_quantised_again(tmp_path: Path) -> None:
    folder = write_quantized(tmp_path, GPTQ, gptq(4, 32))
    with pytest.raises(CheckpointError, match="is quantised already, to gptq; leave out quantize = 'int8'"):
        load(folder.stored, "bfloat16", quantize="int8")
