"""Decode steps, recorded once per number of rows, with and without adapters, and replayed (see `kernels.recording`).

On small models the Python of a forward pass takes half as long as its ops. A step in which every row runs one token
differs from the one before only in its numbers, so once a few steps of a size have run, the next one is recorded on
tensors that stay, logits included, and those after it write their numbers there and replay it. What is around the
replay finds the processor's caches full of weights: it is kept short and free of whatever brings in much code.

Not one class with `engine.execution.graphs`: a graph pays for padded rows with launches, copies a step to the device
once and is never given up; here rows are exact, numbers are written where recordings read them, and the least used one
goes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import torch

import kernels
from engine.cache.blocks import BLOCK_SIZE, blocks_of
from engine.cache.memory import KVCache
from engine.execution.batch import BlockTables, Ints
from engine.model.decoder import Decoder
from engine.model.layers import Step
from engine.plan import Row
from engine.request import Request
from kernels import LastingLoraPlan, LoraPlan, TablePlan

_EAGER = 2
"""Steps of a size before one is recorded: many sizes come up only while requests come and go."""
_MOST_BYTES = 8 * 1024 * 1024
"""Of one recording: beyond, ops take so long that Python does not matter, and memory that is used again is faster."""
_ALL_BYTES = 64 * 1024 * 1024
"""Of all recordings; the one that was not used for longest goes first."""
_ROWS = 16
"""For which there is room at first."""


class Decoded:
    """What a step of decodes gives, good until the next step."""

    __slots__ = ("_argmax", "_tokens", "hidden", "logits")

    def __init__(self, hidden: torch.Tensor, logits: torch.Tensor) -> None:
        self.hidden = hidden
        """[rows, hidden]"""
        self.logits = logits
        """[rows, vocabulary]"""
        with kernels.record() as self._argmax:
            tokens = kernels.argmax(logits)
        self._tokens = tokens.numpy()

    def likeliest(self) -> list[int]:
        """The token with the largest logit in each row, the first of equals."""
        self._argmax.replay()
        tokens: list[int] = self._tokens.tolist()
        return tokens


class DecodeInputs:
    """What all recordings read: memory that stays, into which each step writes its numbers.

    A row's blocks are mostly what they were in the step before: only new ones are written. Where another request has
    come to a place, because one before it has ended, its line of the `tables` is copied as it is.
    """

    def __init__(self, rows: int, tables: BlockTables, width: int) -> None:
        """For up to `rows` rows of `width` blocks."""
        self.capacity = rows
        self._held = tables
        self._numbers = np.zeros((3, rows), np.int64)
        """Tokens, rotations, slots."""
        self._starts = np.zeros(rows, np.int32)
        self._tables = np.zeros((rows, width), np.int32)
        self._holders: list[Request | None] = [None] * rows
        """Whose blocks a line of the tables holds."""
        self._known = [0] * rows
        """How many of them are sure to be its own until it is released."""
        self._adapted: LastingLoraPlan | None = None
        """Which adapters the rows have."""

    def step(
        self, rows: int, rotary: torch.Tensor, windows: Iterable[int | None], *, adapted: bool
    ) -> tuple[torch.Tensor, Step]:
        """What the model reads in a step of so many rows: tokens, and the rest."""
        arrays = self._starts[:rows], np.ones(rows, np.int32), self._tables[:rows]
        plans = {window: kernels.plan_attention(*arrays, window=window, device=rotary.device) for window in windows}
        tokens, rotations, slots = torch.from_numpy(self._numbers)[:, :rows]
        lora = self._adapted.of(rows) if adapted and self._adapted is not None else None
        return tokens, Step(rotary, rotations, slots, plans, lora)

    def adapt(self, plan: TablePlan) -> bool:
        """Write which adapters a step's rows have; False: from now on it is in other memory than before."""
        if self._adapted is not None and self._adapted.write(plan):
            return True
        self._adapted = LastingLoraPlan(plan, self.capacity)
        self._adapted.write(plan)
        return False

    def write(self, rows: Sequence[Row], rotations: Ints | None) -> None:
        """The numbers of a step, in which the rows have `rotations`: their positions if None."""
        tokens: list[int] = []
        starts: list[int] = []
        slots: list[int] = []
        held = self._held
        for place, row in enumerate(rows):
            request, start = row.request, row.start
            if self._holders[place] is not request:
                self._holders[place], self._known[place] = request, 0
            known, end = self._known[place], start // BLOCK_SIZE + 1
            if known < end:
                line = held.update(request, end)
                self._tables[place, known:end] = held.lines[line, known:end]
                self._known[place] = min(end, blocks_of(request.length))
            tokens += row.draft or request.tokens(start, start + 1)
            starts.append(start)
            slots.append(request.block_table[end - 1] * held.stride * BLOCK_SIZE + start % BLOCK_SIZE)
        count = len(starts)
        self._numbers[:, :count] = tokens, starts if rotations is None else rotations, slots
        self._starts[:count] = starts

    def release(self, request: Request) -> None:
        """A request has lost its blocks: should it come again, with others, none of them are known."""
        self._holders = [None if other is request else other for other in self._holders]


class _Kind(NamedTuple):
    """Of steps that differ only in their numbers."""

    rows: int
    adapted: bool
    """Whether any row has an adapter."""


class _Recorded(NamedTuple):
    """A recording, and what it gives."""

    decoded: Decoded
    recording: kernels.Recording


class RecordedDecodes:
    """The recordings of one model's steps of decodes.

    With adapters they are others than without, but which ones the rows have may change. Scalings of rotary embeddings
    that make a table for each step cannot be recorded; nor can experts, whose shares of a step are counted in Python.
    """

    def __init__(
        self,
        model: Decoder,
        cache: KVCache,
        tables: BlockTables,
        rotary: torch.Tensor,
        windows: set[int | None],
        context: int,
    ) -> None:
        """`rotary` is the table that all of them read, for rows of up to `context` tokens."""
        self._model = model
        self._cache = cache
        self._tables = tables
        self._rotary = rotary
        self._windows = windows
        self._width = blocks_of(context)
        self._inputs = DecodeInputs(_ROWS, tables, self._width)
        self._enabled = kernels.can_record(rotary.device) and not model.config.experts
        self._runs: dict[_Kind, int] = {}
        """Steps of a kind, until they are recorded."""
        self._recorded: dict[_Kind, _Recorded] = {}
        """The one used last is at the end."""
        self.replayed = 0
        """Steps that were."""

    @property
    def most_bytes(self) -> int:
        """Memory that recordings may come to take."""
        return _ALL_BYTES if self._enabled else 0

    def __call__(
        self, rows: Sequence[Row], rotations: Ints | None = None, lora: LoraPlan | None = None
    ) -> Decoded | None:
        """Run rows of one token; their `rotations` in the table are their positions if None.

        None: they have not been run, and have to be as they come.
        """
        if not self._enabled or not (lora is None or isinstance(lora, TablePlan)):
            return None
        if len(rows) > self._inputs.capacity:
            # All recordings read the same memory.
            self._inputs = DecodeInputs(2 * len(rows), self._tables, self._width)
            self._recorded.clear()
        if lora is not None and not self._inputs.adapt(lora):
            self._recorded = {kind: each for kind, each in self._recorded.items() if not kind.adapted}
        kind = _Kind(len(rows), lora is not None)
        found = self._recorded.pop(kind, None)
        if found is None or not found.recording.serves:
            runs = self._runs[kind] = self._runs.get(kind, 0) + 1
            return self._record(kind, rows, rotations) if runs == _EAGER + 1 else None
        self._recorded[kind] = found
        self.replayed += 1
        self._inputs.write(rows, rotations)
        found.recording.replay()
        return found.decoded

    def release(self, request: Request) -> None:
        """A request has lost its blocks."""
        self._inputs.release(request)

    @torch.inference_mode()
    def _record(self, kind: _Kind, rows: Sequence[Row], rotations: Ints | None) -> Decoded:
        """Run a step as it comes, and keep it if it can be replayed; if not, its kind is never tried again."""
        self._inputs.write(rows, rotations)
        tokens, step = self._inputs.step(kind.rows, self._rotary, self._windows, adapted=kind.adapted)
        with kernels.record() as recording:
            hidden = self._model(tokens, self._cache, step)
            logits = self._model.logits(hidden, step.lora)
        decoded = Decoded(hidden, logits)
        if recording.whole and recording.nbytes <= _MOST_BYTES:
            self._recorded[kind] = _Recorded(decoded, recording)
            del self._runs[kind]
        while sum(each.recording.nbytes for each in self._recorded.values()) > _ALL_BYTES:
            del self._recorded[next(iter(self._recorded))]
        return decoded
