"""Decode steps that are recorded once per number of rows, and replayed: `kernels.recording` says how.

On small models the Python of a forward pass takes half as long as its ops. A step in which every row runs one token
differs from the one before only in its numbers, so once a few steps of a size have run, the next one is recorded on
tensors that stay, and those after it write their numbers there and replay it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

import kernels
from engine.kv import blocks_of
from engine.kv_cache import KVCache
from engine.layers import Step
from engine.model import Decoder

_EAGER = 4
"""Steps of a size before one is recorded: many sizes come up only while requests come and go."""
_MOST_BYTES = 8 * 1024 * 1024
"""Of one recording: beyond, ops take so long that Python does not matter, and memory that is used again is faster."""
_ALL_BYTES = 64 * 1024 * 1024
"""Of all recordings; the one that was not used for longest goes first."""


@dataclass(frozen=True, slots=True)
class _Recorded:
    """A recording, what it reads, and what it gives."""

    tokens: torch.Tensor
    step: Step
    hidden: torch.Tensor
    recording: kernels.Recording

    @property
    def nbytes(self) -> int:
        return self.recording.nbytes + _plan(self.step).tables.nbytes

    def run(self, tokens: torch.Tensor, step: Step) -> torch.Tensor:
        self.tokens.copy_(tokens)
        _write(self.step, step)
        self.recording.replay()
        return self.hidden


class RecordedDecodes:
    """Runs the steps of one model: decodes from recordings where these serve and gain, all others as they come.

    Adapters, and scalings of rotary embeddings that make a table for each step, run as they come; so do experts, whose
    shares of a step are counted in Python.
    """

    def __init__(self, model: Decoder, cache: KVCache, rotary: torch.Tensor, context: int) -> None:
        """Steps whose `Step.rotary` is `rotary` can be recorded, for rows of up to `context` tokens."""
        self._model = model
        self._cache = cache
        self._rotary = rotary
        self._width = blocks_of(context)
        self._enabled = kernels.can_record(rotary.device) and not model.config.experts
        self._runs: dict[int, int] = {}
        """Steps by number of rows, until they are recorded."""
        self._recorded: dict[int, _Recorded] = {}
        """By number of rows; the one used last is at the end."""
        self.replayed = 0
        """Steps that were."""

    def __call__(self, tokens: torch.Tensor, step: Step) -> torch.Tensor:
        """What `Decoder` gives for tokens [T] -> normalised hidden states [T, hidden], good until the next step."""
        rows = len(tokens)
        decodes = step.lora is None and step.rotary is self._rotary and len(_plan(step).starts) == rows
        if not self._enabled or not decodes:
            return self._model(tokens, self._cache, step)
        found = self._recorded.pop(rows, None)
        if found is not None and found.recording.serves:
            self._recorded[rows] = found
            self.replayed += 1
            return found.run(tokens, step)
        runs = self._runs[rows] = self._runs.get(rows, 0) + 1
        if runs != _EAGER + 1:
            return self._model(tokens, self._cache, step)
        return self._record(tokens, step)

    def _record(self, tokens: torch.Tensor, step: Step) -> torch.Tensor:
        """Run a step as it comes, and keep it if it can be replayed; if not, its size is never tried again."""
        tokens, step = tokens.clone(), _lasting(step, self._width)
        with kernels.record() as recording:
            hidden = self._model(tokens, self._cache, step)
        recorded = _Recorded(tokens, step, hidden, recording)
        if recording.whole and recorded.nbytes <= _MOST_BYTES:
            self._recorded[len(tokens)] = recorded
            del self._runs[len(tokens)]
        while sum(each.nbytes for each in self._recorded.values()) > _ALL_BYTES:
            del self._recorded[next(iter(self._recorded))]
        return hidden


def _plan(step: Step) -> kernels.AttentionPlan:
    """The plan of any window: all share their arrays."""
    return next(iter(step.plans.values()))


def _lasting(step: Step, width: int) -> Step:
    """The same with memory of its own, for tables of up to `width` blocks."""
    plan = _plan(step)
    rows = len(plan.starts)
    arrays = np.zeros(rows, np.int32), np.ones(rows, np.int32), np.zeros((rows, width), np.int32)
    plans = {window: kernels.plan_attention(*arrays, window=window, device=plan.starts.device) for window in step.plans}
    lasting = Step(step.rotary, step.rotations.clone(), step.slots.clone(), plans)
    _write(lasting, step)
    return lasting


def _write(lasting: Step, step: Step) -> None:
    """Give a step of the same size the numbers of another one."""
    lasting.rotations.copy_(step.rotations)
    lasting.slots.copy_(step.slots)
    into, plan = _plan(lasting), _plan(step)
    into.starts.copy_(plan.starts)
    into.tables[:, : plan.tables.shape[1]].copy_(plan.tables)
