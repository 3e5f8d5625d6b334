"""Decode steps that are recorded once per number of rows, and replayed: `kernels.recording` says how.

On small models the Python of a forward pass takes half as long as its ops. A step in which every row runs one token
differs from the one before only in its numbers, so once a few steps of a size have run, the next one is recorded on
tensors that stay, logits included, and those after it write their numbers there and replay it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import torch

import kernels
from engine.batch import Batch
from engine.kv import blocks_of
from engine.kv_cache import KVCache
from engine.layers import Step
from engine.model import Decoder

_EAGER = 2
"""Steps of a size before one is recorded: many sizes come up only while requests come and go."""
_MOST_BYTES = 8 * 1024 * 1024
"""Of one recording: beyond, ops take so long that Python does not matter, and memory that is used again is faster."""
_ALL_BYTES = 64 * 1024 * 1024
"""Of all recordings; the one that was not used for longest goes first."""


class Decoded(NamedTuple):
    """What a step of decodes gives, good until the next step."""

    hidden: torch.Tensor
    """[rows, hidden]"""
    logits: torch.Tensor
    """[rows, vocabulary]"""


class Inputs:
    """What a recording reads: memory that stays, into which each step writes its numbers."""

    def __init__(self, rows: int, width: int, rotary: torch.Tensor, windows: Iterable[int | None]) -> None:
        """For tables of up to `width` blocks."""
        self._rows = np.zeros((3, rows), np.int64)
        self._starts = np.zeros(rows, np.int32)
        self._tables = np.zeros((rows, width), np.int32)
        arrays = self._starts, np.ones(rows, np.int32), self._tables
        plans = {window: kernels.plan_attention(*arrays, window=window, device=rotary.device) for window in windows}
        self.tokens, rotations, slots = torch.from_numpy(self._rows)
        self.step = Step(rotary, rotations, slots, plans)

    @property
    def nbytes(self) -> int:
        return self._tables.nbytes

    def write(self, batch: Batch, rotations: torch.Tensor, stride: int) -> None:
        self._rows[0], self._rows[1], self._rows[2] = batch.tokens, rotations.numpy(), batch.slots(stride)
        self._starts[:] = batch.starts
        # Nobody reads a row's table behind its length, so that what was there before may stay.
        np.multiply(batch.tables, stride, out=self._tables[:, : batch.tables.shape[1]], casting="unsafe")


class _Recorded(NamedTuple):
    """A recording, what it reads, and what it gives."""

    inputs: Inputs
    decoded: Decoded
    recording: kernels.Recording

    @property
    def nbytes(self) -> int:
        return self.recording.nbytes + self.inputs.nbytes


class RecordedDecodes:
    """The recordings of one model's steps of decodes.

    Adapters, and scalings of rotary embeddings that make a table for each step, cannot be recorded; nor can experts,
    whose shares of a step are counted in Python.
    """

    def __init__(
        self, model: Decoder, cache: KVCache, rotary: torch.Tensor, windows: set[int | None], context: int
    ) -> None:
        """Steps that read the table `rotary` can be recorded, for rows of up to `context` tokens."""
        self._model = model
        self._cache = cache
        self._rotary = rotary
        self._windows = windows
        self._width = blocks_of(context)
        self._enabled = kernels.can_record(rotary.device) and not model.config.experts
        self._runs: dict[int, int] = {}
        """Steps by number of rows, until they are recorded."""
        self._recorded: dict[int, _Recorded] = {}
        """By number of rows; the one used last is at the end."""
        self.replayed = 0
        """Steps that were."""

    def __call__(self, batch: Batch, rotary: torch.Tensor, rotations: torch.Tensor) -> Decoded | None:
        """Run a batch of decodes without adapters, whose tokens are at rows `rotations` [T] of `rotary`.

        None: it has not been run, and has to be as it comes.
        """
        if not self._enabled or rotary is not self._rotary:
            return None
        rows = len(batch.rows)
        found = self._recorded.pop(rows, None)
        if found is None or not found.recording.serves:
            runs = self._runs[rows] = self._runs.get(rows, 0) + 1
            return self._record(batch, rotations) if runs == _EAGER + 1 else None
        self._recorded[rows] = found
        self.replayed += 1
        found.inputs.write(batch, rotations, self._cache.stride)
        found.recording.replay()
        return found.decoded

    def _record(self, batch: Batch, rotations: torch.Tensor) -> Decoded:
        """Run a step as it comes, and keep it if it can be replayed; if not, its size is never tried again."""
        rows = len(batch.rows)
        inputs = Inputs(rows, self._width, self._rotary, self._windows)
        inputs.write(batch, rotations, self._cache.stride)
        with kernels.record() as recording:
            hidden = self._model(inputs.tokens, self._cache, inputs.step)
            decoded = Decoded(hidden, self._model.logits(hidden))
        recorded = _Recorded(inputs, decoded, recording)
        if recording.whole and recorded.nbytes <= _MOST_BYTES:
            self._recorded[rows] = recorded
            del self._runs[rows]
        while sum(each.nbytes for each in self._recorded.values()) > _ALL_BYTES:
            del self._recorded[next(iter(self._recorded))]
        return decoded
