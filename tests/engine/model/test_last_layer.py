"""The last layer runs the tokens whose hidden states somebody reads, and answers as if it had run all of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

import engine.model.layers
from engine.execution.batch import Batch
from engine.execution.precision import Precision
from engine.execution.runner import ModelRunner
from engine.plan import Row, Sampled, StepPlan
from engine.request import Request
from kernels import LoraPlan, library
from tests.engine.checkpoints import ARCHITECTURES, random_prompt
from tests.engine.conftest import Checkpoint
from tests.engine.driver import BLOCKS, drive, request


@contextmanager
def all_wanted(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The last layer runs everything, like those before it."""
    with monkeypatch.context() as patch:
        patch.setattr(Batch, "wanted", property(lambda batch: batch.counts))
        yield


def feed_forward_rows(runner: ModelRunner, rows: Sequence[Row], monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many tokens each layer's feed-forward part runs in a step."""
    found: list[int] = []
    run = engine.model.layers.Mlp.__call__

    def spy(mlp: engine.model.layers.Mlp, x: torch.Tensor, lora: LoraPlan | None) -> torch.Tensor:
        found.append(len(x))
        return run(mlp, x, lora)

    with monkeypatch.context() as patch:
        patch.setattr(engine.model.layers.Mlp, "__call__", spy)
        runner.launch(StepPlan(list(rows))).result()
    return found


def row(
    id: str, blocks: list[int], start: int, count: int, *, sample: bool = True, draft: int = 0, **sampling: object
) -> Row:
    one = request(random_prompt(start + count + (not sample)), id, **sampling)
    one.block_table = blocks
    return Row(one, start, count, sample, tuple(random_prompt(draft)))


@pytest.fixture
def runner(checkpoint: Checkpoint, device: str) -> ModelRunner:
    return ModelRunner(checkpoint("llama", num_hidden_layers=3), blocks=BLOCKS, device=device)


def test_it_runs_what_is_sampled_from_and_prompts_with_log_probabilities(
    runner: ModelRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [
        row("decode", [0, 1], 20, 1),
        row("draft", [2, 3], 18, 1, draft=3),
        row("prompt", [4, 5], 0, 21),
        row("piece", [6], 0, 12, sample=False),
        row("log-probabilities", [7], 0, 9, prompt_logprobs=0),
    ]
    assert feed_forward_rows(runner, rows, monkeypatch) == [47, 47, 1 + 4 + 1 + 0 + 9]


def test_it_only_stores_where_nobody_reads(runner: ModelRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    piece = row("piece", [1, 0], 0, 24, sample=False)
    assert feed_forward_rows(runner, [piece], monkeypatch) == [24, 24]
    stored = runner._cache.sectors.clone()
    runner._cache.sectors.zero_()
    with all_wanted(monkeypatch):
        assert feed_forward_rows(runner, [piece], monkeypatch) == [24, 24, 24]
    assert torch.equal(runner._cache.sectors, stored)


def answers(directory: Path, device: str) -> list[list[Sampled]]:
    """Of prompts in pieces of any size beside decodes, drafts of any length, and log-probabilities."""
    runner = ModelRunner(directory, blocks=BLOCKS, device=device, precision=Precision("bfloat16"))

    def draft(one: Request) -> list[int]:
        return random_prompt(one.length % 4) if one.id != "0" else []

    requests = [
        request(random_prompt(7 + 19 * number), str(number), max_tokens=9, **sampling)
        for number, sampling in enumerate(
            [
                {"logprobs": 2},
                {"temperature": 0.8, "seed": 3},
                {"prompt_logprobs": 1, "logprobs": 0},
                {"frequency_penalty": 0.5},
            ]
        )
    ]
    return drive(runner, requests, chunk=0, draft=draft)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_answers_are_the_same_to_the_bit(
    checkpoint: Checkpoint, device: str, architecture: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if device == "cpu" and library.cpu is None:
        pytest.skip("torch's products depend on how many rows they have")
    directory = checkpoint(architecture)
    found = answers(directory, device)
    with all_wanted(monkeypatch):
        assert answers(directory, device) == found
