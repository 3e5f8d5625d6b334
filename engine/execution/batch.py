"""Turns the rows of a step into the arrays that a model reads.

Most of it is block tables, and most of these are what they were in the step before: a row gains a block in one step of
sixteen. So each request's is kept as an array for as long as it runs, wherever in the step its row is, and each step
writes only what is new. Everything else is a few numbers per row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from engine.cache.blocks import BLOCK_SIZE, blocks_of
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
    tables: npt.NDArray[np.int32]
    """[rows, blocks of the longest row] in rows of a layer's caches; what is beyond a row's own means nothing."""
    tokens: Ints
    """[T] token ids."""
    positions: Ints
    """[T] of each token in its sequence."""
    row_of_token: Ints
    """[T]"""

    @property
    def slots(self) -> Ints:
        """[T] where each token's KV goes: row of a layer's caches * BLOCK_SIZE + offset."""
        rows = self.tables[self.row_of_token, self.positions // BLOCK_SIZE].astype(np.int64)
        slots: Ints = rows * BLOCK_SIZE + self.positions % BLOCK_SIZE
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


class BlockTables:
    """The block tables of the requests of one runner, each in a line of its own from its first step to its release.

    Blocks are told as rows of a layer's caches, in which block b is row b * `stride`.
    """

    def __init__(self, stride: int) -> None:
        self.stride = stride
        self.lines: npt.NDArray[np.int32] = np.zeros((1, 1), np.int32)
        """[lines, blocks]; what is beyond a request's own blocks means nothing."""
        self._line: dict[Request, int] = {}
        self._free = [0]
        self._known = [0]
        """How many blocks of a line are sure to be its request's own until that is released."""

    def update(self, request: Request, blocks: int) -> int:
        """Bring the first `blocks` blocks of a request up to date; its line.

        It keeps the blocks of its known tokens until it is released; those behind them are for drafts, and may be
        others the next time.
        """
        line = self._line.get(request)
        if line is None:
            if not self._free:
                self._grow(2 * len(self.lines), self.lines.shape[1])
            line = self._line[request] = self._free.pop()
            self._known[line] = 0
        known = self._known[line]
        if known < blocks:
            if blocks > self.lines.shape[1]:
                self._grow(len(self.lines), 2 * blocks)
            new = self.lines[line, known:blocks]
            new[:] = request.block_table[known:blocks]
            new *= self.stride
            self._known[line] = min(blocks, blocks_of(request.length))
        return line

    def release(self, request: Request) -> None:
        """A request has lost its blocks: should it come again, with others, none of them are known."""
        line = self._line.pop(request, None)
        if line is not None:
            self._free.append(line)

    def _grow(self, lines: int, width: int) -> None:
        held = self.lines
        self.lines = np.zeros((lines, width), np.int32)
        self.lines[: held.shape[0], : held.shape[1]] = held
        self._free += range(held.shape[0], lines)
        self._known += [0] * (lines - held.shape[0])


class BatchBuilder:
    """Makes the batches of one runner; `tables` are those of its requests."""

    def __init__(self, tables: BlockTables) -> None:
        self._tables = tables

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

    def _hold(self, rows: Sequence[Row]) -> npt.NDArray[np.int32]:
        """[rows, blocks] the block tables, up to date."""
        ends = [blocks_of(row.start + row.tokens) for row in rows]
        lines = [self._tables.update(row.request, end) for row, end in zip(rows, ends, strict=True)]
        return self._tables.lines[lines, : max(ends)]
