"""Replayed decode steps of rows with adapters give, bit for bit, what the same steps give as they come."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

import engine.execution.step_buffers
from engine.execution.precision import Dtype
from engine.execution.runner import ModelRunner
from engine.plan import Sampled
from kernels import library
from tests.engine.adapters.collection import BLOCKS, Collection, ask
from tests.engine.adapters.conftest import Collections
from tests.engine.checkpoints import random_prompt
from tests.engine.driver import drive

pytestmark = pytest.mark.skipif(library.cpu is None, reason="there is no built library to record")


@pytest.fixture
def collection(collections: Collections) -> Collection:
    return collections("llama")


def _answers(runner: ModelRunner, kinds: Sequence[str | None], **how: int) -> list[list[Sampled]]:
    """Requests with these adapters, one of which after the other ends."""
    requests = [
        ask(kind, random_prompt(9 * (index % 7) + 1), max_tokens=9 + 5 * (index % 5), logprobs=1)
        for index, kind in enumerate(kinds)
    ]
    return drive(runner, requests, blocks=BLOCKS, **how)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_answers_are_those_of_steps_as_they_come(
    collection: Collection, dtype: Dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of all kinds of adapters: of any rank, with DoRA, biases, on the embedding and the head."""
    kinds = collection.mixture()
    runner = collection.runner(*collection.folders, dtype=dtype)
    with monkeypatch.context() as patch:
        patch.setattr(runner._decodes, "_enabled", False)
        expected = _answers(runner, kinds)
    assert _answers(runner, kinds, seed=1) == expected
    assert runner._decodes.replayed > 5


def test_one_recording_serves_any_adapters(collection: Collection, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also those that need more room than the first ones, and rows without any."""
    runner = collection.runner("rank 1", "rank 8", "rank 128")
    mixtures: list[list[str | None]] = [
        ["rank 1", "rank 1", None],
        ["rank 8", None, "rank 1"],
        [None, None, None],
        ["rank 128", "rank 8", "rank 128"],
        ["rank 1", None, None],
        ["rank 8", "rank 128", "rank 1"],
    ]
    with monkeypatch.context() as patch:
        patch.setattr(runner._decodes, "_enabled", False)
        expected = [_answers(runner, kinds) for kinds in mixtures]
    for turn in range(2):
        for kinds, answers in zip(mixtures, expected, strict=True):
            before = runner._decodes.replayed
            assert _answers(runner, kinds, seed=turn) == answers
            # 9 steps of three rows, 5 of two and 5 of one; those that are recorded, or precede it, come first.
            assert turn == 0 or runner._decodes.replayed - before >= 15


def test_more_rows_with_adapters_than_there_was_room_for(
    collection: Collection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the first step on, as where all requests come at once."""
    monkeypatch.setattr(engine.execution.step_buffers, "_LINES", 2)
    kinds = ["rank 1", "rank 8", None, "rank 1"]
    runner = collection.runner("rank 1", "rank 8")
    with monkeypatch.context() as patch:
        patch.setattr(runner._decodes, "_enabled", False)
        expected = _answers(runner, kinds)
    assert _answers(runner, kinds, seed=1) == expected
    assert runner._decodes.replayed > 5


def test_an_adapter_that_comes_back_elsewhere_is_read_there(collection: Collection) -> None:
    """Two that swap their places between steps: what was planned for them is not used again."""
    runner = collection.runner("rank 8", "rank 16")
    expected = [_answers(runner, [kind]) for kind in ("rank 8", "rank 16")]
    bank = runner.bank
    assert bank is not None
    sectors = {kind: bank.prepare(kind) for kind in ("rank 8", "rank 16")}
    for kind in sectors:
        bank.remove(kind)
    bank.install("rank 16", range(BLOCKS, BLOCKS + sectors["rank 16"]))
    bank.install("rank 8", range(BLOCKS + sectors["rank 16"], BLOCKS + sum(sectors.values())))
    assert [_answers(runner, [kind]) for kind in ("rank 8", "rank 16")] == expected
