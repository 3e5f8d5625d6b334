"""The numbers that steps read, in memory that stays: every way of running a step reads them from here.

Most of them are block tables, and most of these are what they were in the step before: a row gains a block in one step
of sixteen. So the table of a request stays from its first step to its release, and each step writes only what is new.
The line of row i is line i: where rows change places, because a request before them has ended, tables are moved.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from engine.cache.blocks import BLOCK_SIZE, blocks_of
from engine.plan import Row
from engine.request import Request

Ints = npt.NDArray[np.int64]

_LINES = 16
"""Number of lines allocated at first."""


class StepBuffers:
    """Buffers with the numbers of one runner's steps."""

    def __init__(self, stride: int, width: int) -> None:
        """For requests of at most `width` blocks, of which block b is row b * `stride` of a layer's caches."""
        self.stride = stride
        self.tables: npt.NDArray[np.int32] = np.zeros((_LINES, width), np.int32)
        """[lines, width] block tables, in rows of a layer's caches; what is beyond a row's own means nothing."""
        self.numbers: Ints = np.zeros((3, _LINES), np.int64)
        """[3, lines] for rows of one token: its id, its rotation and its slot (as `Batch.slots`)."""
        self.starts: npt.NDArray[np.int32] = np.zeros(_LINES, np.int32)
        """[lines] position of each row's first token, for rows of one token."""
        self._holders: list[Request | None] = []
        """Request of each line."""
        self._known: list[int] = []
        """Number of blocks of each line that stay its request's own until that is released."""

    def hold(self, rows: Sequence[Row]) -> int:
        """Bring the tables of a step's rows up to date; return how many blocks the longest one has."""
        self._arrange([row.request for row in rows])
        ends = [blocks_of(row.start + row.tokens) for row in rows]
        for line, end in enumerate(ends):
            if self._known[line] < end:
                self._extend(line, rows[line].request, end)
        return max(ends)

    def write(self, rows: Sequence[Row], rotations: Ints | None = None) -> None:
        """Write a step of rows of one token, which have `rotations`: their positions if None."""
        tokens: list[int] = []
        starts: list[int] = []
        slots: list[int] = []
        self._arrange([row.request for row in rows])
        for line, row in enumerate(rows):
            request, start = row.request, row.start
            end = start // BLOCK_SIZE + 1
            if self._known[line] < end:
                self._extend(line, request, end)
            tokens += row.draft or request.tokens(start, start + 1)
            starts.append(start)
            slots.append(request.block_table[end - 1] * self.stride * BLOCK_SIZE + start % BLOCK_SIZE)
        count = len(starts)
        self.numbers[:, :count] = tokens, starts if rotations is None else rotations, slots
        self.starts[:count] = starts

    def release(self, request: Request) -> None:
        """Mark a request's blocks as unknown: it has lost them, and may come again with others."""
        if request in self._holders:
            self._holders[self._holders.index(request)] = None

    def _arrange(self, requests: list[Request]) -> None:
        """Move lines so that the first ones hold these requests, in this order."""
        if self._holders[: len(requests)] == requests:
            return
        before = {request: line for line, request in enumerate(self._holders) if request is not None}
        present = set(requests)
        holders = [*requests, *(request for request in before if request not in present)]
        if len(holders) > len(self.tables):
            self._grow(2 * len(holders))
        moved = [(line, before[request]) for line, request in enumerate(holders) if before.get(request, line) != line]
        if moved:
            to, source = (list(lines) for lines in zip(*moved, strict=True))
            width = max(self._known)
            self.tables[to, :width] = self.tables[source, :width]
        self._known = [self._known[before[request]] if request in before else 0 for request in holders]
        self._holders = [*holders]

    def _extend(self, line: int, request: Request, end: int) -> None:
        """Write a request's blocks up to `end`.

        It keeps the blocks of its known tokens until it is released; those behind them are for drafts, and may be
        others the next time.
        """
        known = self._known[line]
        new = self.tables[line, known:end]
        new[:] = request.block_table[known:end]
        new *= self.stride
        self._known[line] = min(end, blocks_of(request.length))

    def _grow(self, lines: int) -> None:
        """Grow to `lines` lines, in new memory."""
        tables = np.zeros((lines, self.tables.shape[1]), np.int32)
        tables[: len(self.tables)] = self.tables
        self.tables = tables
        self.numbers, self.starts = np.zeros((3, lines), np.int64), np.zeros(lines, np.int32)
