"""Decode steps, recorded once per number of rows, with and without adapters, and replayed (see `kernels.recording`).

On small models the Python of a forward pass takes half as long as its ops. Steps in which every row runs one token
differ only in their numbers. So after a few steps of a size the next one is recorded on tensors that stay, logits
included; later ones write their numbers there and replay it. A replay leaves the processor's caches full of weights, so
the code around it is kept short.

`engine.execution.graphs` shares no class with this: a graph has padded rows, copies a step to the device
once and is never given up; recordings have exact rows and read numbers where they are written, and the least recently
used one is dropped.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

import kernels
from engine.cache.memory import KVCache
from engine.execution.step_buffers import Ints, StepBuffers
from engine.model.decoder import Decoder
from engine.model.layers import StepInputs
from engine.plan import Row
from kernels import LoraPlan, LoraPlanBuffers, TablePlan

_EAGER = 2
"""Steps of a size that run before one is recorded: many sizes come up only while requests come and go."""
_MOST_BYTES = 32 * 1024 * 1024
"""Most bytes that recordings share, mostly of logits: in larger steps ops outweigh Python."""
_MOST_RECORDINGS = 64
"""Most recordings; the one unused for longest is dropped first."""


class Decoded:
    """Results of a step of decodes, valid until the next step."""

    __slots__ = ("_argmax", "_tokens", "hidden", "logits")

    def __init__(self, hidden: torch.Tensor, logits: torch.Tensor) -> None:
        self.hidden = hidden
        """[rows, hidden] hidden states"""
        self.logits = logits
        """[rows, vocabulary] logits"""
        with kernels.record() as self._argmax:
            tokens = kernels.argmax(logits)
        self._tokens = tokens.numpy()

    def likeliest(self) -> list[int]:
        """Return the token with the largest logit in each row, the first of equals."""
        self._argmax.replay()
        tokens: list[int] = self._tokens.tolist()
        return tokens


class _Kind(NamedTuple):
    """Key of steps that differ only in their numbers."""

    rows: int
    adapted: bool
    """Whether any row has an adapter."""


class _Recorded(NamedTuple):
    """A recording, and the results that it writes."""

    decoded: Decoded
    recording: kernels.Recording


class RecordedDecodes:
    """The recordings of one model's steps of decodes.

    Steps with adapters are recorded apart, for any choice of adapters. Scalings of rotary embeddings
    that make a table for each step cannot be recorded; nor can experts, whose shares of a step are counted in Python.
    """

    def __init__(
        self,
        model: Decoder,
        cache: KVCache,
        buffers: StepBuffers,
        rotary: torch.Tensor,
        windows: set[int | None],
    ) -> None:
        """`rotary` is the table that all recordings read."""
        self._model = model
        self._cache = cache
        self._buffers = buffers
        self._lines = len(buffers.tables)
        """Number of lines of the memory that recordings read."""
        self._adapted: LoraPlanBuffers | None = None
        """Adapters of the rows, in memory that recordings read."""
        self._rotary = rotary
        self._windows = windows
        self._enabled = kernels.can_record(rotary.device) and not model.config.experts
        self._runs: dict[_Kind, int] = {}
        """Number of steps of a kind that have run, until it is recorded."""
        self._memory = kernels.RecordingMemory(_MOST_BYTES)
        self._recorded: dict[_Kind, _Recorded] = {}
        """Recordings by kind, the one used last at the end."""
        self.replayed = 0
        """Number of steps that were replayed."""

    @property
    def most_bytes(self) -> int:
        """Most memory that recordings can come to take: what they share, and what older ones keep of it."""
        return 2 * _MOST_BYTES if self._enabled else 0

    def __call__(
        self, rows: Sequence[Row], rotations: Ints | None = None, lora: LoraPlan | None = None
    ) -> Decoded | None:
        """Run rows of one token; their `rotations` in the table are their positions if None.

        Returns None if they have not been run: the caller has to run them.
        """
        if not self._enabled or not (lora is None or isinstance(lora, TablePlan)):
            return None
        self._buffers.write(rows, rotations)
        if len(self._buffers.tables) != self._lines:
            # All recordings read the old memory.
            self._lines, self._adapted = len(self._buffers.tables), None
            self._recorded.clear()
        if lora is not None and (self._adapted is None or not self._adapted.write(lora)):
            self._adapted = LoraPlanBuffers(lora, self._lines)
            self._adapted.write(lora)
            self._recorded = {kind: each for kind, each in self._recorded.items() if not kind.adapted}
        kind = _Kind(len(rows), lora is not None)
        found = self._recorded.pop(kind, None)
        if found is None or not found.recording.serves:
            runs = self._runs[kind] = self._runs.get(kind, 0) + 1
            return self._record(kind) if runs == _EAGER + 1 else None
        self._recorded[kind] = found
        self.replayed += 1
        found.recording.replay()
        return found.decoded

    @torch.inference_mode()
    def _record(self, kind: _Kind) -> Decoded:
        """Run the step in the buffers, and keep it if it can be replayed; if not, its kind is never tried again."""
        starts, tables = self._buffers.starts[: kind.rows], self._buffers.tables[: kind.rows]
        ones = np.ones(kind.rows, np.int32)
        plans = {
            window: kernels.plan_attention(starts, ones, tables, window=window, device=self._rotary.device)
            for window in self._windows
        }
        tokens, rotations, slots = torch.from_numpy(self._buffers.numbers)[:, : kind.rows]
        lora = self._adapted.plan(kind.rows) if kind.adapted and self._adapted is not None else None
        with kernels.record(self._memory) as recording:
            step = StepInputs(self._rotary, rotations, slots, plans, lora, recording=recording)
            hidden = self._model(tokens, self._cache, step)
            logits = self._model.logits(hidden, step.lora)
        decoded = Decoded(hidden, logits)
        if recording.whole:
            self._recorded[kind] = _Recorded(decoded, recording)
            del self._runs[kind]
        if len(self._recorded) > _MOST_RECORDINGS:
            del self._recorded[next(iter(self._recorded))]
        return decoded
