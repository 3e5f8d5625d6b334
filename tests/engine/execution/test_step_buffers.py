"""What a step reads is what its rows say, whatever the steps before it held; only what is new is written."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.cache.blocks import BLOCK_SIZE, blocks_of
from engine.execution.batch import batch_of
from engine.execution.step_buffers import StepBuffers
from engine.plan import Row
from engine.request import Request
from tests.amounts import examples
from tests.engine.driver import request


def write(rows: list[Row], buffers: StepBuffers, shift: int | None) -> None:
    """Write a step of decodes, and compare what is read with what the rows say."""
    buffers.write(rows, None if shift is None else np.array([row.start + shift for row in rows]))
    tokens, rotations, slots = buffers.numbers[:, : len(rows)].tolist()
    starts = [row.start for row in rows]
    assert tokens == [(*row.request.tokens(row.start, row.start + 1), *row.draft)[0] for row in rows]
    assert rotations == [start + (shift or 0) for start in starts]
    assert buffers.starts[: len(rows)].tolist() == starts
    for row, table, slot in zip(rows, buffers.tables.tolist(), slots, strict=False):
        block, offset = divmod(row.start, BLOCK_SIZE)
        assert table[: block + 1] == [6 * each for each in row.request.block_table[: block + 1]]
        assert slot == 6 * row.request.block_table[block] * BLOCK_SIZE + offset


@settings(max_examples=examples(20), deadline=None)
@given(st.integers(0, 2**32))
def test_what_is_kept_from_step_to_step_never_shows(seed: int) -> None:
    """Requests decode, draft in vain, change places, lose their blocks and go."""
    chance = random.Random(seed)
    buffers = StepBuffers(6, width=8)
    free = list(range(200))
    chance.shuffle(free)
    live: list[Request] = []
    for step in range(60):
        if len(live) < 20 and chance.random() < 0.7:
            live.append(request([chance.randrange(1000) for _ in range(chance.randint(1, 40))], str(step)))
        for one in [one for one in live if chance.random() < 0.1 or one.length > 100]:
            buffers.release(one)
            free = one.block_table + free
            one.block_table = []
            if chance.random() < 0.5 or one.length > 100:
                live.remove(one)
        if chance.random() < 0.2:
            chance.shuffle(live)
        rows = []
        # Others wait with their blocks, as requests in their prompts do.
        for one in live[: chance.randint(0, len(live))] if chance.random() < 0.2 else live:
            ahead = chance.choice((0, 0, 0, 1, 17))
            while len(one.block_table) * BLOCK_SIZE < one.length + ahead:
                one.block_table.append(free.pop())
            if ahead == 0:
                rows.append(Row(one, one.length - 1, 1, sample=True))
            else:
                rows.append(Row(one, one.length - 1 + ahead, 0, sample=True, draft=(chance.randrange(1000),)))
        if rows:
            write(rows, buffers, chance.choice((None, 5)))
        for one in live:
            one.output += [chance.randrange(1000) for _ in range(chance.randint(0, 2))]
            kept = blocks_of(one.length)
            free = one.block_table[kept:] + free
            del one.block_table[kept:]


class Counted(list[int]):
    """A block table that counts the blocks that are read of it."""

    read = 0

    def __getitem__(self, key: Any) -> Any:
        found = super().__getitem__(key)
        self.read += len(found) if isinstance(key, slice) else 1
        return found


def read_after_an_end(step: Callable[[list[Row]], object], release: Callable[[Request], None]) -> list[int]:
    """Blocks read of 12 long requests' tables in their first step, in the next one, and in that after one has ended."""
    live = [request([number] * 1600, str(number)) for number in range(12)]
    for number, one in enumerate(live):
        one.block_table = Counted(range(101 * number, 101 * number + 101))
    read = []
    for ended in (None, None, 5):
        if ended is not None:
            release(live.pop(ended))
        before = sum(cast(Counted, one.block_table).read for one in live)
        step([Row(one, one.length - 1, 1, sample=True) for one in live])
        read.append(sum(cast(Counted, one.block_table).read for one in live) - before)
        for one in live:
            one.output.append(1)
    return read


@pytest.mark.parametrize("serve", [StepBuffers.write, lambda buffers, rows: batch_of(rows, buffers)])
def test_the_end_of_a_request_costs_the_others_none_of_their_blocks(serve: Callable[..., object]) -> None:
    """Only their rows' places in the step change."""
    buffers = StepBuffers(6, width=110)
    first, second, third = read_after_an_end(lambda rows: serve(buffers, rows), buffers.release)
    # A step of decodes also reads the block that each row writes to.
    writes = 12 if serve is StepBuffers.write else 0
    assert (first, second, third) == (12 * 100 + writes, 12 + writes, max(writes - 1, 0))


def test_a_request_that_sits_out_a_step_is_asked_for_no_block_again() -> None:
    """As one does for which there is no free block, or whose draft is long enough."""
    buffers = StepBuffers(6, width=110)
    sitting, other = request([1] * 1600, "sitting"), request([1] * 20, "other")
    sitting.block_table, other.block_table = Counted(range(100)), [100, 101]
    rows = [Row(one, one.length - 1, 1, sample=True) for one in (sitting, other)]
    for step in (rows, rows[1:], rows):
        batch_of(step, buffers)
    assert sitting.block_table.read == 100
    write(rows, buffers, None)


def test_a_line_is_taken_again_when_its_request_has_gone() -> None:
    buffers = StepBuffers(6, width=2)
    for number in range(100):
        one = request([1] * 20, str(number))
        one.block_table = [number, number + 1]
        buffers.write([Row(one, 19, 1, sample=True)])
        buffers.release(one)
        buffers.release(one)
    assert len(buffers.tables) == 16
