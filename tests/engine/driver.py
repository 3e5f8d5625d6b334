"""Runs requests through a `ModelRunner` without a scheduler: blocks in shuffled order, chunks of any size."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

from engine.cache.blocks import BLOCK_SIZE
from engine.execution.runner import ModelRunner
from engine.plan import Row, Sampled, StepPlan
from engine.request import Request
from engine.wire import SamplingParams

BLOCKS = 128


def request(prompt: Sequence[int], id: str = "r", **sampling: object) -> Request:
    """Return a request, greedy unless told otherwise."""
    return Request(id, list(prompt), SamplingParams(**({"temperature": 0.0} | sampling)), arrival=0.0)  # type: ignore[arg-type]


def drive(
    runner: ModelRunner,
    requests: Sequence[Request],
    *,
    chunk: int | None = None,
    seed: int = 0,
    draft: Callable[[Request], Sequence[int]] = lambda _: (),
    blocks: int = BLOCKS,
) -> list[list[Sampled]]:
    """Run all requests side by side until each has `max_tokens` tokens; returns each row's results, by request.

    `chunk` limits the tokens of a row; 0 draws a limit for every row, so that chunks and decodes mix. `draft` guesses
    the next tokens of a request that decodes. Blocks from `blocks` on are not used.
    """
    generator = random.Random(seed)
    free = list(range(blocks))
    generator.shuffle(free)
    given: list[list[Sampled]] = [[] for _ in requests]
    while True:
        rows, who = [], []
        for index, one in enumerate(requests):
            if len(one.output) >= one.sampling.max_tokens:
                continue
            limit = generator.randint(1, 40) if chunk == 0 else chunk
            count = min(one.uncomputed, limit or one.uncomputed)
            sample = count == one.uncomputed
            left = one.sampling.max_tokens - len(one.output) - 1
            row = Row(one, one.computed, count, sample, tuple(draft(one)[:left]) if sample else ())
            while len(one.block_table) * BLOCK_SIZE < one.computed + row.tokens:
                one.block_table.append(free.pop())
            rows.append(row)
            who.append(index)
        if not rows:
            return given
        for index, row, sampled in zip(who, rows, runner.launch(StepPlan(rows)).result(), strict=True):
            row.request.computed += row.count
            if sampled.tokens:
                row.request.output += sampled.tokens
                row.request.computed += len(sampled.tokens) - 1
                if len(row.request.output) == row.request.sampling.max_tokens:
                    runner.release(row.request)
            given[index].append(sampled)


def tokens_of(runner: ModelRunner, requests: Sequence[Request], **how: Any) -> list[list[int]]:
    """Return the output tokens of all requests."""
    drive(runner, requests, **how)
    return [one.output for one in requests]
