"""The engine on the CUDA bodies, under their emulator: all that it can be set to runs on them, near transformers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import pytest
import torch

from engine.cache.memory import KVDtype
from engine.execution.precision import Precision
from engine.execution.runner import ModelRunner
from kernels import library
from tests.amounts import some_of
from tests.engine.checkpoints import VOCABULARY, oracle_greedy, oracle_logits, random_prompt
from tests.engine.conftest import Checkpoint
from tests.engine.driver import BLOCKS, drive, request, tokens_of
from tests.engine.model.test_decoder import distribution

SETTINGS: list[tuple[Literal["float32", "bfloat16"], KVDtype, int]] = [
    ("float32", "bf16", 16),
    ("float32", "auto", 16),
    ("float32", "fp8", 16),
    ("float32", "int8", 64),
    ("bfloat16", "auto", 64),
    ("bfloat16", "fp8", 64),
    ("bfloat16", "int8", 80),
    ("bfloat16", "int8", 64),
]
"""Types of the model and of its keys and values, and dimensions of its heads: tensor cores take 64, in bf16."""
ERROR = {"float32": 1e-4, "bfloat16": 0.02}
"""Largest root mean square difference of log-probabilities from transformers in fp32, with KV of the same type."""
KV_ERROR = {"auto": 0.0, "bf16": 0.01, "fp8": 0.12, "int8": 0.02}
"""What they add in fewer bits."""


@pytest.fixture(autouse=True)
def emulator(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The CUDA bodies serve tensors of the CPU, and for attention nothing else does."""
    try:
        body = library.load_cuda(library.EMULATOR)
    except FileNotFoundError as error:
        pytest.skip(str(error))
    monkeypatch.delattr("kernels.attention.fast_torch.paged_attention")
    for name in ("rope_and_store", "sample", "argmax", "log_sum_exp"):
        monkeypatch.delattr(f"kernels.reference.{name}")
    with library.using(body):
        yield


@pytest.mark.parametrize(("dtype", "kv_dtype", "dim"), some_of(SETTINGS, 2))
def test_logprobs_are_near_those_of_transformers(
    checkpoint: Checkpoint, dtype: Literal["float32", "bfloat16"], kv_dtype: KVDtype, dim: int
) -> None:
    directory = checkpoint("llama", head_dim=dim)
    runner = ModelRunner(directory, blocks=BLOCKS, precision=Precision(dtype, kv_dtype=kv_dtype))
    prompt = random_prompt(90)
    one = request(prompt, max_tokens=2, prompt_logprobs=VOCABULARY, logprobs=VOCABULARY)
    (given,) = drive(runner, [one], chunk=40)
    entries = [entry for sampled in given for entry in sampled.prompt_logprobs or []]
    ours = torch.stack([distribution(entry) for entry in entries])
    theirs = oracle_logits(directory, prompt).log_softmax(-1)[:-1]
    assert float((ours - theirs).square().mean().sqrt()) < ERROR[dtype] + KV_ERROR[kv_dtype]


def test_tokens_in_fp32_are_those_of_transformers(checkpoint: Checkpoint) -> None:
    directory = checkpoint("llama")
    prompts = [random_prompt(length, seed) for seed, length in enumerate((33, 1, 16))]
    runner = ModelRunner(directory, blocks=BLOCKS, precision=Precision("float32"))
    found = tokens_of(runner, [request(prompt, str(i), max_tokens=6) for i, prompt in enumerate(prompts)], chunk=20)
    assert found == [oracle_greedy(directory, prompt, 6) for prompt in prompts]


@pytest.mark.parametrize("kv_dtype", ["fp8", "int8"])
def test_answers_do_not_depend_on_batches_and_chunks(checkpoint: Checkpoint, kv_dtype: KVDtype) -> None:
    directory = checkpoint("llama", head_dim=64)
    runner = ModelRunner(directory, blocks=BLOCKS, precision=Precision("bfloat16", kv_dtype=kv_dtype))
    prompts = [random_prompt(length, seed) for seed, length in enumerate((35, 1, 16))]

    def answers(chosen: list[list[int]], chunk: int | None) -> list[list[int]]:
        return tokens_of(runner, [request(p, str(i), max_tokens=5) for i, p in enumerate(chosen)], chunk=chunk)

    alone = [answers([prompt], None)[0] for prompt in prompts]
    assert answers(prompts, None) == alone
    assert answers(prompts, 7) == alone
