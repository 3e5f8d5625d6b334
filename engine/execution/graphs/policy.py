"""Which steps of decodes are recorded, padded to which shape, and when. Pure.

A recording costs the time of a few steps, and memory for as long as the engine runs. So an engine starts with none
and serves at once; a shape is recorded when it has been run a few times, and therefore the most used ones come first,
until the memory for recordings is spent. Every other step runs as it always does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from typing import NamedTuple

_FINE = 8
"""From here on batches are padded to a multiple of it, below to a power of two."""
_SHORTEST = 1024
_LENGTHENING = 4
"""Lengths are padded to the shortest, or to that times a power of this: each has its own grid and scratch memory."""


class Shape(NamedTuple):
    """Of a recording; a step fits if it has no more rows and no longer one."""

    rows: int
    length: int
    """Tokens of the longest row, with the one that is run."""


class CapturePolicy:
    """Decides for one model on one device."""

    def __init__(self, most_rows: int, context: int, *, uses: int = 4, memory: int = 1 << 30) -> None:
        """
        Args:
            most_rows: most rows of a step; larger ones are not recorded.
            context: most tokens of a row.
            uses: how often a shape is run before it is recorded.
            memory: bytes after which no more is recorded; the last recording may go beyond it.
        """
        self.largest = Shape(most_rows, context)
        self._uses = uses
        self._memory = memory
        self._run: Counter[Hashable] = Counter()

    def pad(self, rows: int, length: int) -> Shape | None:
        """The shape for a step of `rows` decodes whose longest has `length` tokens; None: there is none."""
        if not 1 <= rows <= self.largest.rows or not 1 <= length <= self.largest.length:
            return None
        padded_rows = -(-rows // _FINE) * _FINE if rows > _FINE else 1 << (rows - 1).bit_length()
        padded_length = _SHORTEST
        while padded_length < length:
            padded_length *= _LENGTHENING
        return Shape(min(padded_rows, self.largest.rows), min(padded_length, self.largest.length))

    def due(self, kind: Hashable) -> bool:
        """Count that steps of a kind, a shape or finer, are to be run unrecorded; whether to record it now."""
        self._run[kind] += 1
        return self._memory > 0 and self._run[kind] > self._uses

    def spent(self, size: int) -> None:
        """A recording has taken `size` bytes."""
        self._memory -= size

    def stop(self) -> None:
        """Nothing more is to be recorded."""
        self._memory = 0
