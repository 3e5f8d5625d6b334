"""Replayed decode steps give, bit for bit, what the same steps give as they come."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

import engine.execution.recorded
import engine.execution.step_buffers
import kernels
from engine.execution.precision import Precision
from engine.execution.runner import ModelRunner
from engine.plan import Sampled
from kernels import library
from tests.engine.checkpoints import ARCHITECTURES, MIXTURES, ROPE_SCALINGS, random_prompt
from tests.engine.conftest import Checkpoint
from tests.engine.driver import BLOCKS, drive, request

pytestmark = pytest.mark.skipif(library.cpu is None, reason="there is no built library to record")


_KINDS: tuple[dict[str, Any], ...] = (
    {"logprobs": 2},
    {"temperature": 0.9, "seed": 3, "top_p": 0.9, "logprobs": 0},
    {"repetition_penalty": 1.2, "prompt_logprobs": 1},
    {"logit_bias": {7: 2.0}, "logprobs": 1},
)


def _answers(runner: ModelRunner, kinds: Sequence[dict[str, Any]] = _KINDS, **how: Any) -> list[list[Sampled]]:
    """Requests of all lengths and kinds, one of which after the other ends."""
    requests = [
        request(random_prompt(9 * index + 1), str(index), max_tokens=14 + 11 * index, **kind)
        for index, kind in enumerate(kinds)
    ]
    return drive(runner, requests, **how)


def _compare(runner: ModelRunner, monkeypatch: pytest.MonkeyPatch, **how: Any) -> int:
    """How many steps were replayed of those that gave what they give as they come."""
    with monkeypatch.context() as patch:
        patch.setattr(runner._decodes, "_enabled", False)
        expected = _answers(runner, **how)
    assert runner._decodes.replayed == 0
    assert _answers(runner, **how, seed=1) == expected
    return runner._decodes.replayed


@pytest.mark.parametrize("architecture", sorted(set(ARCHITECTURES) - MIXTURES))
def test_answers_are_those_of_steps_as_they_come(
    checkpoint: Checkpoint, architecture: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert _compare(ModelRunner(checkpoint(architecture), blocks=BLOCKS), monkeypatch) > 20


@pytest.mark.parametrize(
    "served",
    [
        Precision("bfloat16"),
        Precision("bfloat16", "int8"),
        Precision("bfloat16", "int4", "fp8"),
        Precision("bfloat16", kv_dtype="int8"),
    ],
)
def test_answers_in_all_types(checkpoint: Checkpoint, served: Precision, monkeypatch: pytest.MonkeyPatch) -> None:
    assert _compare(ModelRunner(checkpoint("llama"), blocks=BLOCKS, precision=served), monkeypatch) > 20


@pytest.mark.parametrize(
    "kinds", [({},) * 4, ({}, {"min_tokens": 9}, {}, {"logprobs": 0}), ({"temperature": 1.0}, {}, {}, {})]
)
def test_answers_of_requests_that_ask_for_nothing(
    checkpoint: Checkpoint, kinds: tuple[dict[str, Any], ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Alone, and beside others: where all are greedy nothing is sampled."""
    assert _compare(ModelRunner(checkpoint("llama"), blocks=BLOCKS), monkeypatch, kinds=kinds) > 20


def test_more_rows_than_there_was_room_for(checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine.execution.step_buffers, "_LINES", 1)
    runner = ModelRunner(checkpoint("llama"), blocks=BLOCKS)
    expected = [_answers(runner, kinds) for kinds in (_KINDS[:1], _KINDS)]
    assert len(runner._buffers.tables) > 1
    with monkeypatch.context() as patch:
        patch.setattr(runner._decodes, "_enabled", False)
        assert [_answers(runner, kinds, seed=1) for kinds in (_KINDS[:1], _KINDS)] == expected
    assert runner._decodes.replayed > 20


@pytest.mark.parametrize("scaling", sorted(ROPE_SCALINGS))
def test_answers_under_scalings_of_rotary_embeddings(
    checkpoint: Checkpoint, scaling: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also of one whose table is another one in each step beyond the trained length: these run as they come."""
    directory = checkpoint("llama", rope_scaling=ROPE_SCALINGS[scaling])
    assert _compare(ModelRunner(directory, blocks=BLOCKS), monkeypatch) > 5


def test_prompts_and_drafts_between_them_run_as_they_come(
    checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = ModelRunner(checkpoint("llama"), blocks=BLOCKS)
    generous = [1, 2, 3]
    replayed = _compare(runner, monkeypatch, draft=lambda one: generous if len(one.output) % 5 == 4 else ())
    assert replayed > 5


def test_experts_run_as_they_come(checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    """What an expert gets is known in Python only."""
    assert _compare(ModelRunner(checkpoint("mixtral"), blocks=BLOCKS), monkeypatch) == 0


def test_without_a_library_steps_run_as_they_come(checkpoint: Checkpoint) -> None:
    with library.using(None):
        runner = ModelRunner(checkpoint("llama"), blocks=BLOCKS)
        _answers(runner)
    assert runner._decodes.replayed == 0


def test_a_change_of_the_library_is_noticed(checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    """Recordings of one instruction set are not replayed while another one serves."""
    body = library.cpu
    assert body is not None
    other = library.load("avx2") if body.isa != "avx2" else None
    if other is None:
        pytest.skip("there is only one instruction set")
    runner = ModelRunner(checkpoint("llama"), blocks=BLOCKS)
    _answers(runner)
    assert runner._decodes.replayed
    recorded = [each.recording for each in runner._decodes._recorded.values()]
    with library.using(other):
        assert not any(recording.serves for recording in recorded)
        _answers(runner)
        assert all(each.recording.serves for each in runner._decodes._recorded.values())


def test_recordings_share_memory_that_is_bounded(checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    runner = ModelRunner(checkpoint("llama"), blocks=BLOCKS)
    _answers(runner)
    assert sorted(kind.rows for kind in runner._decodes._recorded) == [1, 2, 3, 4]
    shared = runner._decodes._memory.nbytes
    logits = max(each.decoded.logits.nbytes for each in runner._decodes._recorded.values())
    assert logits < shared < 20 * logits
    monkeypatch.setattr(engine.execution.recorded, "_MOST_BYTES", shared // 2)
    small = ModelRunner(checkpoint("llama"), blocks=BLOCKS)
    assert _answers(small) == _answers(runner)
    recorded = {kind.rows for kind in small._decodes._recorded}
    assert recorded and 4 not in recorded
    assert small._decodes._memory.nbytes <= shared // 2


def test_the_recording_unused_for_longest_is_dropped(checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine.execution.recorded, "_MOST_RECORDINGS", 2)
    few = ModelRunner(checkpoint("llama"), blocks=BLOCKS)
    assert _answers(few) == _answers(ModelRunner(checkpoint("llama"), blocks=BLOCKS))
    assert len(few._decodes._recorded) == 2


def test_what_cannot_be_replayed_is_tried_once(checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    runner = ModelRunner(checkpoint("llama"), blocks=BLOCKS)
    expected = _answers(runner)
    plain = ModelRunner(checkpoint("llama"), blocks=BLOCKS)
    norm = kernels.add_rms_norm
    monkeypatch.setattr(kernels, "add_rms_norm", lambda x, *rest: norm(x + 0, *rest))
    records: list[int] = []
    record = plain._decodes._record

    def spy(kind: Any, *rest: Any) -> Any:
        records.append(kind.rows)
        return record(kind, *rest)

    monkeypatch.setattr(plain._decodes, "_record", spy)
    assert _answers(plain) == expected
    assert plain._decodes.replayed == 0
    assert sorted(records) == [1, 2, 3, 4]
