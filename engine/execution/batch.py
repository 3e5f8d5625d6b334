"""Turns the rows of a step into the arrays that a model reads: block tables, and a few numbers per row and token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from engine.cache.blocks import BLOCK_SIZE
from engine.execution.step_buffers import Ints, StepBuffers
from engine.plan import Row


@dataclass(frozen=True, slots=True)
class Batch:
    """The rows of a step, whose tokens lie behind one another."""

    rows: Sequence[Row]
    starts: Ints
    """[rows] position in its sequence of each row's first token."""
    counts: Ints
    """[rows] number of tokens of each row."""
    ends: list[int]
    """One past the last token of each row, in the batch."""
    tables: npt.NDArray[np.int32]
    """[rows, blocks of the longest row] block tables, in rows of a layer's caches; meaningless beyond a row's own."""
    tokens: Ints
    """[T] token ids."""
    positions: Ints
    """[T] position of each token in its sequence."""
    row_of_token: Ints
    """[T] index of the row of each token."""

    @property
    def slots(self) -> Ints:
        """[T] slot mapping: where each token's KV goes, as row of a layer's caches * BLOCK_SIZE + offset."""
        rows = self.tables[self.row_of_token, self.positions // BLOCK_SIZE].astype(np.int64)
        slots: Ints = rows * BLOCK_SIZE + self.positions % BLOCK_SIZE
        return slots

    @property
    def wanted(self) -> Ints:
        """[rows] tokens at each row's end whose hidden states are read, to sample or for prompt log-probabilities."""
        return np.array(
            [
                row.tokens
                if row.request.sampling.prompt_logprobs is not None
                else min(1 + len(row.draft), row.tokens) * row.sample
                for row in self.rows
            ]
        )

    @property
    def lengths(self) -> Ints:
        """[T] length of each token's sequence if run by itself: the prompt's for the prompt, then one more each."""
        prompts = np.array([len(row.request.prompt) for row in self.rows])
        lengths: Ints = np.maximum(prompts[self.row_of_token], self.positions + 1)
        return lengths


def batch_of(rows: Sequence[Row], buffers: StepBuffers) -> Batch:
    """Build the batch of some rows, in their order; their requests' block tables cover what they run."""
    starts = np.array([row.start for row in rows])
    tokens: list[int] = []
    for row in rows:
        tokens += row.request.tokens(row.start, row.start + row.count)
        tokens += row.draft
    if len(tokens) == len(rows):
        counts = np.ones_like(starts)
        ends, row_of_token, positions = list(range(1, len(rows) + 1)), np.arange(len(rows)), starts
    else:
        counts = np.array([row.tokens for row in rows])
        last = counts.cumsum()
        row_of_token = np.repeat(np.arange(len(rows)), counts)
        positions = np.arange(len(tokens)) - (last - counts - starts)[row_of_token]
        ends = last.tolist()
    blocks = buffers.hold(rows)
    tables = buffers.tables[: len(rows), :blocks].copy()
    return Batch(rows, starts, counts, ends, tables, np.array(tokens), positions, row_of_token)
