"""Runs steps of decodes from recordings.

A recording is made of the very call that the model makes for any batch, over tensors that stay where they are: one
device buffer, which each step overwrites with one copy. Rows that a shape has too many repeat the step's shortest row.
They compute what that row computes and write the same numbers into the same places of the cache, so that a padded step
is a legal batch for every body, needs no KV blocks of its own, and leaves nothing behind.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from itertools import cycle
from typing import NamedTuple, Protocol

import numpy as np
import torch

import kernels
from engine.cache.blocks import blocks_of
from engine.execution.graphs.policy import CapturePolicy, Shape
from engine.execution.lora_planner import LoraPlanner
from engine.execution.step_buffers import Ints, StepBuffers
from engine.model.layers import StepInputs
from engine.plan import Row
from kernels import LoraPlan, LoraPlanBuffers, TablePlan

logger = logging.getLogger(__name__)

Run = Callable[[], torch.Tensor]
Forward = Callable[[torch.Tensor, StepInputs], torch.Tensor]
"""Tokens [T] and their step -> hidden states [T, hidden]."""


class Capture(Protocol):
    """Makes recordings."""

    def __call__(self, run: Run) -> tuple[Run, int]:
        """A call that does again what `run` does, on the same tensors, and how many bytes that takes."""


class CudaCapture:
    """CUDA graphs, which share their scratch memory: no two of them run at the same time."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, run: Run) -> tuple[Run, int]:
        run()  # what libraries set up at the first call of a shape cannot be recorded
        before = torch.cuda.memory_reserved(self._device)
        graph = torch.cuda.CUDAGraph()
        # Other threads go on loading adapters and keys meanwhile.
        with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
            out = run()

        def replay() -> torch.Tensor:
            graph.replay()
            return out

        return replay, max(torch.cuda.memory_reserved(self._device) - before, 0)


class _Kind(NamedTuple):
    """Of steps that one recording serves."""

    shape: Shape
    adapted: bool
    """Whether any row has an adapter. Which ones that are is among the numbers of a step."""


class DecodeGraphs:
    """The recordings of one model, and the buffers that they read."""

    def __init__(
        self,
        forward: Forward,
        buffers: StepBuffers,
        planner: LoraPlanner,
        rotary: torch.Tensor,
        windows: Iterable[int | None],
        policy: CapturePolicy,
        capture: Capture,
    ) -> None:
        """`rotary` is the table of `StepInputs.rotary`, on the device; every step reads the same."""
        self._forward = forward
        self._buffers = buffers
        self._planner = planner
        self._rotary = rotary
        self._windows = list(windows)
        self._policy = policy
        self._capture = capture
        self._recorded: dict[_Kind, Run] = {}
        device = rotary.device
        rows, length = policy.largest
        size = rows * (_WORDS + blocks_of(length))
        self._buffer = torch.empty(size, dtype=torch.int32, device=device)
        # The device may still read one while the next step is written into the other.
        pinned = device.type == "cuda"
        self._staging = cycle([torch.empty(size, dtype=torch.int32, pin_memory=pinned) for _ in range(2)])
        self._counts = torch.ones(rows, dtype=torch.int32, device=device)
        self._lora: LoraPlanBuffers | None = None
        self._planned: tuple[LoraPlan, bytes] | None = None
        """The plan and the order of rows that it was written for last."""

    @torch.inference_mode()
    def __call__(self, rows: Sequence[Row], lora: LoraPlan | None) -> torch.Tensor | None:
        """Hidden states [rows, hidden] of rows of one token, good until the next step; None: they have not been run.

        The caller waits for what comes of a step before it asks for the next but one: then the buffers are free again.
        So no step is run here whose rows sample nothing.
        """
        if not (lora is None or isinstance(lora, TablePlan)) or not any([row.sample for row in rows]):
            return None
        starts = [row.start for row in rows]
        longest = max(starts) + 1
        shape = self._policy.pad(len(rows), longest)
        if shape is None:
            return None
        kind = _Kind(shape, lora is not None)
        if kind not in self._recorded and not self._policy.due(kind):
            return None
        order = np.full(shape.rows, np.argmin(starts))
        order[: len(rows)] = np.arange(len(rows))
        if lora is not None:
            self._adapt(rows, lora, order)
        self._buffers.write(rows)
        self._fill(shape, order, blocks_of(longest))
        replay = self._recorded.get(kind)
        if replay is None:
            tokens, step = self._inputs(kind)
            try:
                replay, size = self._capture(lambda: self._forward(tokens, step))
            except torch.OutOfMemoryError:
                logger.warning("no memory is left to record steps of decodes: no more are recorded")
                self._policy.stop()
                return None
            self._recorded[kind] = replay
            self._policy.spent(size)
        return replay()[: len(rows)]

    def _adapt(self, rows: Sequence[Row], lora: LoraPlan, order: Ints) -> None:
        """Write which adapters the rows have, those of the padding as well."""
        if self._planned is not None and self._planned[0] is lora and self._planned[1] == order.tobytes():
            return
        requests = [rows[number].request for number in order]
        plan = self._planner.part(requests, np.ones(len(requests), np.int64), buffered=True)
        assert isinstance(plan, TablePlan)
        if self._lora is None or not self._lora.write(plan):
            self._lora = LoraPlanBuffers(plan, self._policy.largest.rows)
            self._lora.write(plan)
            # What was recorded reads the memory of before.
            self._recorded = {kind: replay for kind, replay in self._recorded.items() if not kind.adapted}
        self._planned = lora, order.tobytes()

    def _fill(self, shape: Shape, order: Ints, blocks: int) -> None:
        """Bring the rows of a step in this order, with so many blocks of each, to the device."""
        staging = next(self._staging)[: _size(shape)]
        words = staging.numpy()
        words[: 6 * shape.rows].view(np.int64).reshape(3, shape.rows)[:] = self._buffers.numbers[:, order]
        words[6 * shape.rows : _WORDS * shape.rows] = self._buffers.starts[order]
        # Nobody reads a row's table behind its length, so that what was there before may stay.
        words[_WORDS * shape.rows :].reshape(shape.rows, -1)[:, :blocks] = self._buffers.tables[order, :blocks]
        self._buffer[: len(staging)].copy_(staging, non_blocking=True)

    def _inputs(self, kind: _Kind) -> tuple[torch.Tensor, StepInputs]:
        """What the model is called with: views of the buffer as `_fill` lays it out."""
        shape = kind.shape
        words = self._buffer[: _size(shape)]
        tokens, rotations, slots = words[: 6 * shape.rows].view(torch.int64).view(3, shape.rows)
        starts = words[6 * shape.rows : _WORDS * shape.rows]
        tables = words[_WORDS * shape.rows :].view(shape.rows, -1)
        plans = {
            window: kernels.fixed_plan(
                starts, self._counts[: shape.rows], tables, window=window, max_query_len=1, max_seq_len=shape.length
            )
            for window in self._windows
        }
        lora = self._lora.plan(shape.rows) if kind.adapted and self._lora is not None else None
        return tokens, StepInputs(self._rotary, rotations, slots, plans, lora)


_WORDS = 7
"""Of 32 bits per row, without its table."""


def _size(shape: Shape) -> int:
    return shape.rows * (_WORDS + blocks_of(shape.length))
