"""Logits are the sums of the last product, in fp32: tokens that would be equal in bf16 are told apart everywhere."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import get_args

import pytest
import torch
from safetensors.torch import load_file, save_file

from engine.execution.precision import Precision
from engine.execution.runner import ModelRunner
from engine.request import Request
from kernels import Quantization, library
from tests.engine.checkpoints import VOCABULARY, oracle_greedy, oracle_logits, write_checkpoint
from tests.engine.driver import BLOCKS, drive, request, tokens_of

LENGTH = 12


@pytest.fixture(scope="module")
def close(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose likeliest tokens come in pairs that bf16 cannot tell apart, and which nothing else rounds.

    Layers add nothing, and embeddings are 1 and -1, so that hidden states are, too. Weights of the head are whole
    numbers of up to 127, and those of a pair differ in one place, by 1.
    """
    directory = write_checkpoint(tmp_path_factory.mktemp("close"), dtype=torch.bfloat16)
    file = directory / "model.safetensors"
    tensors = load_file(file)
    chance = torch.Generator().manual_seed(7)
    for name, tensor in tensors.items():
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            tensor.zero_()
        elif "norm" in name:
            tensor.fill_(1)
    hidden = tensors["lm_head.weight"].shape[1]
    signs = torch.randint(0, 2, (VOCABULARY, hidden), generator=chance) * 2 - 1
    tensors["model.embed_tokens.weight"] = signs.bfloat16()
    head = torch.randint(-126, 127, (VOCABULARY // 2, hidden), generator=chance).repeat_interleave(2, 0)
    head[:, 0] = 127  # so that int8 holds all of them as they are
    head[1::2, 1] += 1
    tensors["lm_head.weight"] = (head / 64).bfloat16()
    save_file(tensors, file, metadata={"format": "pt"})
    return directory


@pytest.fixture(params=[None, *get_args(Quantization)], ids=str)
def quantize(request: pytest.FixtureRequest) -> Quantization | None:
    found: Quantization | None = request.param
    return found


@pytest.fixture(params=["built", "plain torch"])
def bodies(request: pytest.FixtureRequest) -> str:
    if request.param == "built" and library.cpu is None:
        pytest.skip("there is no built library")
    return str(request.param)


def test_the_model_cannot_be_told_apart_in_bf16(close: Path) -> None:
    logits = oracle_logits(close, [5, 9, 11])
    best, second = logits.topk(2).values.T
    assert (best > second).all() and torch.equal(best.bfloat16(), second.bfloat16())


def test_every_path_says_what_the_model_says_in_fp32(close: Path, quantize: Quantization | None, bodies: str) -> None:
    """Prompts at once and in pieces, decodes as they come and replayed, drafts that are right and wrong."""
    prompts = [[5, 9, 11], list(range(3, 40)), [8]]
    expected = [oracle_greedy(close, prompt, LENGTH) for prompt in prompts]

    def draft(one: Request) -> Sequence[int]:
        answer, done = expected[int(one.id)], len(one.output)
        return [*answer[done : done + 2], answer[done] ^ 1]

    with library.using(library.cpu if bodies == "built" else None):
        runner = ModelRunner(close, blocks=BLOCKS, precision=Precision(quantize=quantize))
        for how in ({}, {"chunk": 5}, {"draft": draft}):
            requests = [request(prompt, str(i), max_tokens=LENGTH) for i, prompt in enumerate(prompts)]
            assert tokens_of(runner, requests, **how) == expected


def test_log_probabilities_are_told_apart(close: Path, quantize: Quantization | None, bodies: str) -> None:
    with library.using(library.cpu if bodies == "built" else None):
        runner = ModelRunner(close, blocks=BLOCKS, precision=Precision(quantize=quantize))
        asked = request([5, 9, 11], max_tokens=4, logprobs=4, prompt_logprobs=4)
        [sampled] = drive(runner, [asked])
    entries = [entry for each in sampled for entry in (*(each.prompt_logprobs or []), *(each.logprobs or []))]
    assert len(entries) == 2 + 4
    logits = oracle_logits(close, [5, 9, 11, *asked.output[:-1]]).double()
    for entry, row in zip(entries, logits.log_softmax(-1), strict=True):
        values = [value for _, value in entry.top]
        assert all(more > less for more, less in pairwise(values))
        torch.testing.assert_close(
            torch.tensor(values), row[[token for token, _ in entry.top]].float(), rtol=0, atol=1e-4
        )
