"""A batch says where every token is and which blocks it may see, whatever the batches before it held."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from engine.cache.blocks import BLOCK_SIZE
from engine.execution.batch import Batch, batch_of
from engine.execution.step_buffers import StepBuffers
from engine.plan import Row
from engine.request import Request
from engine.wire import SamplingParams
from tests.amounts import examples

_STRIDE = 6


def request(id: str, prompt: int) -> Request:
    return Request(id, [random.Random(id).randrange(1000) + i for i in range(prompt)], SamplingParams(), arrival=0.0)


def cover(request: Request, tokens: int, free: list[int]) -> None:
    while len(request.block_table) * BLOCK_SIZE < tokens:
        request.block_table.append(free.pop())


def check(batch: Batch, rows: list[Row]) -> None:
    """Compare a batch with what its rows say, token by token."""
    expected = [
        (index, row.start + i, (*row.request.tokens(row.start, row.start + row.count), *row.draft)[i])
        for index, row in enumerate(rows)
        for i in range(row.tokens)
    ]
    found = zip(batch.row_of_token.tolist(), batch.positions.tolist(), batch.tokens.tolist(), strict=True)
    assert list(found) == expected
    assert batch.starts.tolist() == [row.start for row in rows]
    assert batch.counts.tolist() == [row.tokens for row in rows]
    assert batch.ends == [sum(row.tokens for row in rows[: index + 1]) for index in range(len(rows))]
    for row, table in zip(rows, batch.tables.tolist(), strict=True):
        blocks = -(-(row.start + row.tokens) // BLOCK_SIZE)
        assert table[:blocks] == [block * _STRIDE for block in row.request.block_table[:blocks]]
    cells = [
        rows[index].request.block_table[position // BLOCK_SIZE] * _STRIDE * BLOCK_SIZE + position % BLOCK_SIZE
        for index, position, _ in expected
    ]
    assert batch.slots.tolist() == cells
    prompts = [len(rows[index].request.prompt) for index, _, _ in expected]
    assert batch.lengths.tolist() == [max(prompt, at + 1) for prompt, (_, at, _) in zip(prompts, expected, strict=True)]


def test_a_decode_and_a_chunk_lie_behind_each_other() -> None:
    first, second = request("a", 20), request("b", 40)
    first.block_table, second.block_table = [7, 3], [1, 2, 0]
    rows = [Row(first, 19, 1, sample=True), Row(second, 16, 10, sample=False)]
    batch = batch_of(rows, StepBuffers(_STRIDE, width=4))
    check(batch, rows)
    assert batch.ends == [1, 11]
    assert batch.tables[0, :2].tolist() == [7 * _STRIDE, 3 * _STRIDE]


def test_a_released_request_is_asked_for_all_its_blocks_again() -> None:
    buffers, one = StepBuffers(_STRIDE, width=3), request("a", 33)
    one.block_table = [4, 5, 6]
    batch_of([Row(one, 0, 33, sample=True)], buffers)
    buffers.release(one)
    one.block_table = [9, 8, 7]
    rows = [Row(one, 32, 1, sample=True)]
    check(batch_of(rows, buffers), rows)


@settings(max_examples=examples(20), deadline=None)
@given(st.integers(0, 2**32))
def test_what_is_kept_from_step_to_step_never_shows(seed: int) -> None:
    """Requests come, run in chunks, decode, draft in vain, change places, are preempted and go."""
    chance = random.Random(seed)
    buffers = StepBuffers(_STRIDE, width=100)
    free = list(range(400))
    chance.shuffle(free)
    live: list[Request] = []
    for step in range(40):
        if len(live) < 20 and chance.random() < 0.6:
            live.append(request(f"{step}", chance.randint(1, 60)))
        for one in [one for one in live if chance.random() < 0.05]:
            buffers.release(one)
            free = one.block_table + free
            one.block_table, one.computed = [], 0
            if chance.random() < 0.5:
                live.remove(one)
        if chance.random() < 0.1:
            chance.shuffle(live)
        rows = []
        for one in live if chance.random() < 0.9 else live[1:]:
            count = min(one.uncomputed, chance.randint(1, 40))
            sample = count == one.uncomputed
            draft = tuple(chance.randrange(1000) for _ in range(chance.choice((0, 0, 3, 17)))) if sample else ()
            row = Row(one, one.computed, count, sample, draft)
            cover(one, row.start + row.tokens, free)
            rows.append(row)
        if not rows:
            continue
        check(batch_of(rows, buffers), rows)
        for row in rows:
            one = row.request
            one.computed += row.count
            if row.sample:
                confirmed = chance.randint(0, len(row.draft))
                one.output += [*row.draft[:confirmed], chance.randrange(1000)]
                one.computed += confirmed
                kept = -(-one.length // BLOCK_SIZE)
                free = one.block_table[kept:] + free
                del one.block_table[kept:]
