"""Replayed decode steps give, bit for bit, what the same steps give as they come."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import engine.execution.recorded
import kernels
from engine.cache.blocks import BLOCK_SIZE, blocks_of
from engine.execution.batch import BlockTables
from engine.execution.recorded import DecodeInputs
from engine.execution.runner import ModelRunner
from engine.plan import Row, Sampled
from engine.request import Request
from kernels import library
from tests.engine.checkpoints import ARCHITECTURES, ROPE_SCALINGS, random_prompt
from tests.engine.conftest import Checkpoint
from tests.engine.driver import BLOCKS, drive, request
from tests.engine.execution.test_batch import read_after_an_end

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


def _inputs(rows: list[Row], inputs: DecodeInputs, shift: int | None) -> None:
    """Write a step, and compare what is read with what the rows say."""
    rotations = None if shift is None else np.array([row.start + shift for row in rows])
    inputs.write(rows, rotations)
    tokens, step = inputs.step(len(rows), torch.zeros(1, 2), [None], adapted=False)
    plan = step.plans[None]
    starts = [row.start for row in rows]
    assert tokens.tolist() == [(*row.request.tokens(row.start, row.start + 1), *row.draft)[0] for row in rows]
    assert step.rotations.tolist() == [start + (shift or 0) for start in starts]
    assert plan.starts.tolist() == starts
    assert plan.counts.tolist() == [1] * len(rows)
    for row, table, slot in zip(rows, plan.tables.tolist(), step.slots.tolist(), strict=True):
        block, offset = divmod(row.start, BLOCK_SIZE)
        assert table[: block + 1] == [6 * each for each in row.request.block_table[: block + 1]]
        assert slot == 6 * row.request.block_table[block] * BLOCK_SIZE + offset


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32))
def test_what_is_kept_from_step_to_step_never_shows(seed: int) -> None:
    """Requests decode, draft in vain, change places, lose their blocks and go."""
    chance = random.Random(seed)
    tables = BlockTables(6)
    inputs = DecodeInputs(6, tables, width=8)
    free = list(range(100))
    chance.shuffle(free)
    live: list[Request] = []
    for step in range(60):
        if len(live) < 6 and chance.random() < 0.4:
            live.append(request([chance.randrange(1000) for _ in range(chance.randint(1, 40))], str(step)))
        for one in [one for one in live if chance.random() < 0.1 or one.length > 100]:
            tables.release(one)
            inputs.release(one)
            free = one.block_table + free
            one.block_table = []
            if chance.random() < 0.5 or one.length > 100:
                live.remove(one)
        if chance.random() < 0.2:
            chance.shuffle(live)
        rows = []
        for one in live:
            ahead = chance.choice((0, 0, 0, 1, 17))
            while len(one.block_table) * BLOCK_SIZE < one.length + ahead:
                one.block_table.append(free.pop())
            if ahead == 0:
                rows.append(Row(one, one.length - 1, 1, sample=True))
            else:
                rows.append(Row(one, one.length - 1 + ahead, 0, sample=True, draft=(chance.randrange(1000),)))
        if rows:
            _inputs(rows, inputs, chance.choice((None, 5)))
        for one in live:
            one.output += [chance.randrange(1000) for _ in range(chance.randint(0, 2))]
            kept = blocks_of(one.length)
            free = one.block_table[kept:] + free
            del one.block_table[kept:]


def test_the_end_of_a_request_costs_the_others_none_of_their_blocks() -> None:
    tables = BlockTables(6)
    inputs = DecodeInputs(12, tables, width=110)

    def release(one: Request) -> None:
        tables.release(one)
        inputs.release(one)

    # And one of each row: where it writes.
    assert read_after_an_end(lambda rows: inputs.write(rows, None), release) == [12 * 101, 12 * 2, 11]


def _compare(runner: ModelRunner, monkeypatch: pytest.MonkeyPatch, **how: Any) -> int:
    """How many steps were replayed of those that gave what they give as they come."""
    with monkeypatch.context() as patch:
        patch.setattr(runner._decodes, "_enabled", False)
        expected = _answers(runner, **how)
    assert runner._decodes.replayed == 0
    assert _answers(runner, **how, seed=1) == expected
    return runner._decodes.replayed


@pytest.mark.parametrize("architecture", sorted(set(ARCHITECTURES) - {"mixtral"}))
def test_answers_are_those_of_steps_as_they_come(
    checkpoint: Checkpoint, architecture: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert _compare(ModelRunner(checkpoint(architecture), blocks=BLOCKS), monkeypatch) > 20


@pytest.mark.parametrize(
    "served",
    [
        {"dtype": "bfloat16"},
        {"dtype": "bfloat16", "quantize": "int8"},
        {"dtype": "bfloat16", "quantize": "int4", "kv_dtype": "fp8"},
        {"dtype": "bfloat16", "kv_dtype": "int8"},
    ],
)
def test_answers_in_all_types(checkpoint: Checkpoint, served: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    assert _compare(ModelRunner(checkpoint("llama"), blocks=BLOCKS, **served), monkeypatch) > 20


@pytest.mark.parametrize(
    "kinds", [({},) * 4, ({}, {"min_tokens": 9}, {}, {"logprobs": 0}), ({"temperature": 1.0}, {}, {}, {})]
)
def test_answers_of_requests_that_ask_for_nothing(
    checkpoint: Checkpoint, kinds: tuple[dict[str, Any], ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Alone, and beside others: where all are greedy nothing is sampled."""
    assert _compare(ModelRunner(checkpoint("llama"), blocks=BLOCKS), monkeypatch, kinds=kinds) > 20


def test_more_rows_than_there_was_room_for(checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine.execution.recorded, "_ROWS", 1)
    runner = ModelRunner(checkpoint("llama"), blocks=BLOCKS)
    assert _compare(runner, monkeypatch) > 20
    assert _answers(runner) == _answers(ModelRunner(checkpoint("llama"), blocks=BLOCKS))


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


def test_memory_of_recordings_is_bounded(checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    runner = ModelRunner(checkpoint("llama"), blocks=BLOCKS)
    _answers(runner)
    sizes = {kind.rows: each.recording.nbytes for kind, each in runner._decodes._recorded.items()}
    assert sorted(sizes) == [1, 2, 3, 4]
    monkeypatch.setattr(engine.execution.recorded, "_ALL_BYTES", sizes[1] + sizes[2])
    few = ModelRunner(checkpoint("llama"), blocks=BLOCKS)
    assert _answers(few) == _answers(runner)
    assert sorted(kind.rows for kind in few._decodes._recorded) == [1, 2]
    monkeypatch.setattr(engine.execution.recorded, "_MOST_BYTES", sizes[2] - 1)
    small = ModelRunner(checkpoint("llama"), blocks=BLOCKS)
    assert _answers(small) == _answers(runner)
    assert sorted(kind.rows for kind in small._decodes._recorded) == [1]


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
