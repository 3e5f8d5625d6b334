"""Turns the rows of a step into the arrays that a model reads.

Most of it is block tables, and most of these are what they were in the step before: a row gains a block in one step of
sixteen. So they are kept, and each step writes only what is new. Everything else is a few numbers per row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from engine.kv import BLOCK_SIZE, blocks_of
from engine.plan import Row
from engine.request import Request

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Batch:
    """The rows of a step, whose tokens lie behind each other."""

    rows: Sequence[Row]
    starts: Ints
    """[rows] position of each row's first token."""
    counts: Ints
    """[rows] tokens of each row."""
    ends: list[int]
    """One past the last token of each row, in the batch."""
    tables: Ints
    """[rows, blocks of the longest row]; what is beyond a row's own blocks means nothing."""
    tokens: Ints
    """[T] token ids."""
    positions: Ints
    """[T] of each token in its sequence."""
    row_of_token: Ints
    """[T]"""

    def slots(self, stride: int) -> Ints:
        """[T] where each token's KV goes, in a cache in which block b is row b * stride: row * BLOCK_SIZE + offset."""
        blocks = self.tables[self.row_of_token, self.positions // BLOCK_SIZE]
        slots: Ints = blocks * (stride * BLOCK_SIZE) + self.positions % BLOCK_SIZE
        return slots

    @property
    def wanted(self) -> Ints:
        """[rows] tokens at each row's end whose hidden states are read: to sample, or for prompt log-probabilities."""
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
        """[T] of each token's sequence when it is run by itself: the prompt's for the prompt, then one more each."""
        prompts = np.array([len(row.request.prompt) for row in self.rows])
        lengths: Ints = np.maximum(prompts[self.row_of_token], self.positions + 1)
        return lengths


class BatchBuilder:
    """Makes the batches of one runner, one after the other: a batch's arrays are good until the next one is made."""

    def __init__(self) -> None:
        self._tables = np.zeros((1, 1), np.int64)
        self._holders: list[Request | None] = [None]
        """Whose blocks a line of the tables holds."""
        self._known: list[int] = [0]
        """How many of them are sure to be its own until it is released."""

    def __call__(self, rows: Sequence[Row]) -> Batch:
        """The batch of some rows, in their order; their requests' block tables cover what they run."""
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
        return Batch(rows, starts, counts, ends, self._hold(rows), np.array(tokens), positions, row_of_token)

    def release(self, request: Request) -> None:
        """A request has lost its blocks: should it come again, with others, none of them are known."""
        self._holders = [None if other is request else other for other in self._holders]

    def _hold(self, rows: Sequence[Row]) -> Ints:
        """Bring the block tables up to date.

        A request keeps the blocks of its known tokens until it is released; those behind them are for drafts, and may
        be others the next time.
        """
        width = blocks_of(max([row.start + row.tokens for row in rows]))
        self._grow(len(rows), width)
        for place, row in enumerate(rows):
            request, end = row.request, blocks_of(row.start + row.tokens)
            if self._holders[place] is not request:
                self._holders[place], self._known[place] = request, 0
            known = self._known[place]
            if known < end:
                self._tables[place, known:end] = request.block_table[known:end]
                self._known[place] = min(end, blocks_of(request.length))
        return self._tables[: len(rows), :width]

    def _grow(self, rows: int, width: int) -> None:
        """Make room; for twice as much, so that it is seldom needed."""
        held = self._tables
        height, across = (
            have if need <= have else 2 * need for have, need in zip(held.shape, (rows, width), strict=True)
        )
        if (height, across) != held.shape:
            self._tables = np.zeros((height, across), np.int64)
            self._tables[: held.shape[0], : held.shape[1]] = held
            self._holders += [None] * (height - len(self._holders))
            self._known += [0] * (height - len(self._known))
