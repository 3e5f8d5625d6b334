"""Recorded steps of rows with adapters: one recording serves any of them, padded rows have them too."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch

from engine.execution.graphs.policy import CapturePolicy
from engine.execution.precision import Dtype
from engine.execution.runner import ModelRunner
from engine.plan import Sampled
from kernels import library
from kernels.formats import weight
from tests.engine.adapters.collection import BLOCKS, Collection, ask
from tests.engine.adapters.conftest import Collections
from tests.engine.checkpoints import CONTEXT, random_prompt
from tests.engine.driver import drive
from tests.engine.execution.graphs.test_decode import Recorder

KINDS = ("rank 1", "rank 8", "rank 128")
MIXTURES: list[list[str | None]] = [
    ["rank 1", "rank 1", None],
    ["rank 8", None, "rank 1", "rank 1", "rank 8"],
    [None, None, None],
    ["rank 128", "rank 8", "rank 128"],
    ["rank 1", None, None],
]
"""The fourth needs more room than those before it."""


_multiply = weight.multiply


def multiply_by_rows(x: torch.Tensor, *operands: Any) -> torch.Tensor:
    return torch.cat([_multiply(row, *operands) for row in x.split(1)])


@pytest.fixture(params=["cpu", "emulator"])
def body(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Which library serves; one that is not built is skipped."""
    if request.param == "cpu":
        if library.cpu is None:
            pytest.skip("the plain torch body of attention is not recorded")
        yield request.param
        return
    try:
        emulator = library.load_cuda(library.EMULATOR)
    except FileNotFoundError as error:
        pytest.skip(str(error))
    # Plain products are torch's there, whose last bits may depend on the number of rows; padding adds some.
    monkeypatch.setattr(weight, "multiply", multiply_by_rows)
    with library.using(emulator):
        yield request.param


@pytest.fixture
def collection(collections: Collections) -> Collection:
    return collections("llama")


def answers(runner: ModelRunner, kinds: Sequence[str | None], new_tokens: int) -> list[list[Sampled]]:
    """Requests with these adapters, one of which after the other ends."""
    requests = [
        ask(kind, random_prompt(9 * index + 1, index), max_tokens=new_tokens + index, logprobs=1)
        for index, kind in enumerate(kinds)
    ]
    return drive(runner, requests, blocks=BLOCKS)


@pytest.mark.parametrize("dtype", [pytest.param("float32", marks=pytest.mark.deep), "bfloat16"])
def test_recorded_steps_are_those_that_were_recorded(collection: Collection, body: str, dtype: Dtype) -> None:
    plain, recording = (collection.runner(*KINDS, dtype=dtype) for _ in range(2))
    recorder = Recorder()
    recording.record_decodes(CapturePolicy(8, CONTEXT, uses=0), recorder)
    new_tokens = 7 if body == "cpu" else 2
    for kinds in MIXTURES:
        expected = answers(plain, kinds, new_tokens)
        before = recorder.replayed
        assert answers(recording, kinds, new_tokens) == expected
        assert recorder.replayed - before == new_tokens + len(kinds) - 2  # all steps but that of the prompts
    # Of 4, 2 and 1 rows, once more for more room; of 8; and of 4, 2 and 1 rows without adapters.
    assert recorder.recorded == 3 + 1 + 3 + 3


def test_all_kinds_of_adapters_can_be_recorded(collection: Collection, body: str) -> None:
    """Of any rank, with DoRA, biases, on the embedding and the head; more rows of one than a tile has."""
    if body == "emulator":
        kinds: list[str | None] = ["rank 8"] * 17 + ["dora embeddings", None]
    else:
        kinds = [*collection.mixture(), *["rank 8"] * 17]
    folders = {kind: None for kind in kinds if kind is not None}
    plain, recording = (collection.runner(*folders) for _ in range(2))
    recorder = Recorder()
    recording.record_decodes(CapturePolicy(len(kinds) + 1, CONTEXT, uses=0), recorder)

    def run(runner: ModelRunner) -> list[list[Sampled]]:
        return drive(runner, [ask(kind, random_prompt(3), max_tokens=3, logprobs=1) for kind in kinds], blocks=BLOCKS)

    assert run(recording) == run(plain)
    assert recorder.replayed == 2
