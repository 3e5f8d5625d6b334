"""How long a step takes: fitted to measured steps of an engine, or predicted from a device's peak figures.

Both are functions of `StepWork`, so that bounds and simulation take either.
"""

from __future__ import annotations

import math
import statistics
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise
from typing import Protocol

import numpy as np
import numpy.typing as npt
from msgspec import Struct
from msgspec.structs import replace

from engine.step_times import StepWork, TimedStep
from scale.planning.devices import Device
from scale.planning.shape import WEIGHT_BYTES, KVType, ModelShape, WeightType

_PASSES, _SHARED_PASSES = 11, 19
"""Times that small operations of a layer read or write a token's hidden state: norms and additions on every device, the
others on its part."""
_LAYER_SECONDS = 20e-6
"""Time of a layer's small operations, whatever their size."""
_REDUCE_SECONDS = 30e-6
"""Time of one all-reduce, whatever its size."""
_MOST_UNDER_LOAD = 20_000
"""Steps under load that a cost remembers."""


class StepTime(Protocol):
    """Seconds of a step."""

    def seconds(self, work: StepWork) -> float:
        """Return the mean of steps that do this work."""

    def run(self) -> Callable[[StepWork], float]:
        """Return a function that says of one step after another how long it takes."""


class Pace(Struct, frozen=True):
    """How fast a machine was for a while: when it had done how much.

    Whatever else it does makes some steps longer, often several in a row, and queues and percentiles with them.
    """

    typical: list[float]
    """Seconds that all that was done up to a moment typically takes; the first is 0."""
    taken: list[float]
    """Seconds up to that moment."""

    @classmethod
    def of(cls, typical: Sequence[float], taken: Sequence[float]) -> Pace:
        """Args: typical: seconds of steps one after another as is typical of them; taken: as they were."""
        return cls(*([0.0, *(round(at, 7) for at in accumulate(each))] for each in (typical, taken)))

    @property
    def mean(self) -> float:
        """Seconds in which the machine did what typically takes one."""
        return self.taken[-1] / self.typical[-1]

    def at(self, typical: float) -> float:
        """Return the seconds up to the moment when it had done so much; after the end it begins again."""
        rounds, rest = divmod(typical, self.typical[-1])
        index = min(bisect_right(self.typical, rest), len(self.typical) - 1)
        low, high = self.typical[index - 1], self.typical[index]
        part = (rest - low) / (high - low)
        return rounds * self.taken[-1] + self.taken[index - 1] + part * (self.taken[index] - self.taken[index - 1])


class FittedCost(Struct, frozen=True):
    """Seconds by measured steps: a piecewise linear function of the tokens, and what the other numbers add."""

    knots: list[float]
    """Numbers of tokens; `values` are the seconds there."""
    values: list[float]
    sampled: float
    """Seconds per row that samples; `read`, `pairs` and `prompts` likewise."""
    read: float
    pairs: float
    prompts: float
    mixed: float
    """Seconds that a step with any prompt takes longer than one of decodes alone, which an engine may have recorded."""
    pace: Pace
    """Of steps that came as under load."""
    error: float
    """Median of the relative distances of what is typical from measured steps."""

    def seconds(self, work: StepWork) -> float:
        """See `StepTime`."""
        return self.typical(work) * self.pace.mean

    def run(self) -> Callable[[StepWork], float]:
        """See `StepTime`."""
        typical = taken = 0.0

        def step(work: StepWork) -> float:
            nonlocal typical, taken
            typical, before = typical + self.typical(work), taken
            taken = self.pace.at(typical)
            return taken - before

        return step

    def typical(self, work: StepWork) -> float:
        """Return the median of steps that do this work."""
        return (
            self._layers(work.tokens)
            + self.sampled * work.sampled
            + self.read * work.read
            + self.pairs * work.pairs
            + self.prompts * work.prompts
            + self.mixed * min(1.0, work.prompts)
        )

    def _layers(self, tokens: float) -> float:
        last = self.knots[-1]
        if tokens > last and len(self.knots) > 1:
            slope = (self.values[-1] - self.values[-2]) / (last - self.knots[-2])
            return self.values[-1] + slope * (tokens - last)
        return float(np.interp(tokens, self.knots, self.values))


def fit(steps: Sequence[TimedStep]) -> FittedCost:
    """Fit a cost to measured steps: least squares of relative errors, no coefficient negative.

    What is typical is said by the steps that were made for it, the median of those that did the same; the pace by the
    ones under load.

    Raises:
        ValueError: there are too few steps.
    """
    loaded = [step for step in steps if step.under_load][-_MOST_UNDER_LOAD:]
    steps = _medians([step for step in steps if not step.under_load])
    knots = _knots(steps)
    if len(knots) < 2 or not loaded:
        raise ValueError("too few steps were measured to fit a cost")
    columns = np.array([_columns(step.work, knots) for step in steps])
    seconds = np.array([step.seconds for step in steps])
    solution = _not_negative(columns / seconds[:, None], np.ones(len(steps)))
    # Timings of a busy machine may leave nothing for the layers, but no step is free.
    values = np.maximum(np.cumsum(solution[: len(knots)]), 0.01 * seconds.min())
    sampled, read, pairs, prompts, mixed = map(float, solution[len(knots) :])
    cost = FittedCost(
        knots=knots,
        values=values.tolist(),
        sampled=sampled,
        read=read,
        pairs=pairs,
        prompts=prompts,
        mixed=mixed,
        pace=Pace.of([1.0], [1.0]),
        error=0.0,
    )
    # Of what the cost says, not of the solution: a term that it forgets has to show here.
    said = np.array([cost.typical(step.work) for step in steps])
    return replace(
        cost,
        pace=Pace.of([cost.typical(step.work) for step in loaded], [step.seconds for step in loaded]),
        error=float(np.median(np.abs(said / seconds - 1))),
    )


def _knots(steps: Sequence[TimedStep]) -> list[float]:
    """Return numbers of tokens that were measured, each at least half more than the one before."""
    knots: list[float] = []
    for tokens in sorted({step.work.tokens for step in steps}):
        if not knots or tokens >= 1.5 * knots[-1]:
            knots.append(tokens)
    return knots


def _medians(steps: Sequence[TimedStep]) -> list[TimedStep]:
    """Join steps that did the same, decodes whose contexts differ by a few tokens included."""
    groups: defaultdict[tuple[float, float, float, int], list[TimedStep]] = defaultdict(list)
    for step in steps:
        work = step.work
        groups[work.tokens, work.sampled, work.pairs, round(work.read / work.tokens / 64)].append(step)
    return [
        TimedStep(
            replace(group[0].work, read=statistics.fmean(each.work.read for each in group)),
            statistics.median(each.seconds for each in group),
        )
        for group in groups.values()
    ]


def _columns(work: StepWork, knots: Sequence[float]) -> list[float]:
    """Return what each coefficient is multiplied with: the rise up to each knot, then the other numbers."""
    rises = [1.0]
    for low, high in pairwise(knots):
        rises.append(min(1.0, max(0.0, (work.tokens - low) / (high - low))))
    return [*rises, work.sampled, work.read, work.pairs, work.prompts, min(1.0, work.prompts)]


def _not_negative(columns: npt.NDArray[np.float64], aim: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Solve least squares, leaving out the most negative coefficient until none is."""
    solution = np.zeros(columns.shape[1])
    scale = np.maximum(np.abs(columns).max(axis=0), 1e-300)
    kept = list(np.flatnonzero(np.abs(columns).max(axis=0) > 0))
    while kept:
        found = np.linalg.lstsq(columns[:, kept] / scale[kept], aim, rcond=None)[0]
        if found.min() >= 0:
            solution[kept] = found / scale[kept]
            break
        del kept[int(found.argmin())]
    return solution


class Roofline(Struct, frozen=True, kw_only=True):
    """Seconds by a model's shape and its devices' peak figures.

    A step that needs the memory and the units for products about equally takes longer than for either: the two are
    joined as the sides of a right angle. The shares of the peaks and the times of small operations are those of Vidur's
    measurements of Llama layers on A100 and H100 (Agrawal et al., 2024); docs/planning.md shows how far off this is.
    """

    shape: ModelShape
    device: Device
    weights: WeightType = "bf16"
    kv: KVType = "bf16"
    devices: int = 1
    """Devices that share every layer (tensor parallelism)."""
    bandwidth_share: float = 0.75
    """Share of the device's bandwidth that is reached."""
    compute_share: float = 0.70
    """Share of its operations per second that is reached."""

    def seconds(self, work: StepWork) -> float:
        """See `StepTime`."""
        parts = self.parts(work)
        return math.hypot(parts["memory"], parts["compute"]) + parts["network"] + parts["small"]

    def run(self) -> Callable[[StepWork], float]:
        """See `StepTime`: a data sheet says nothing of what else a machine does."""
        return self.seconds

    def parts(self, work: StepWork) -> dict[str, float]:
        """Return the seconds that a step needs for reading, for products, between devices, and for small operations."""
        shape, bandwidth = self.shape, self.device.bandwidth * self.bandwidth_share * self.devices
        read = shape.touched(work.tokens) * WEIGHT_BYTES[self.weights] + work.read * shape.kv_bytes(self.kv)
        if work.sampled:
            read += shape.head_bytes(self.weights)
        operations = 2 * shape.active * work.tokens + 2 * shape.head * work.sampled
        operations += 4 * shape.layers * shape.heads * shape.head_dim * (work.read + work.pairs)
        passed = (_PASSES + _SHARED_PASSES / self.devices) * shape.layers * shape.hidden * 2 * work.tokens
        return {
            "memory": read / bandwidth,
            "compute": operations / (self._peak * self.compute_share * self.devices),
            "network": self._reduces(work.tokens),
            "small": shape.layers * _LAYER_SECONDS + passed / (self.device.bandwidth * self.bandwidth_share),
        }

    @property
    def _peak(self) -> float:
        match self.weights:
            case "int8":
                return self.device.int8 or self.device.bf16
            case "fp8":
                return self.device.fp8 or self.device.bf16
            case _:  # weights are unpacked to bf16
                return self.device.bf16

    def _reduces(self, tokens: float) -> float:
        """Return the seconds of the two all-reduces of every layer."""
        if self.devices == 1:
            return 0.0
        sent = 2 * (self.devices - 1) / self.devices * tokens * self.shape.hidden * 2
        return 2 * self.shape.layers * (_REDUCE_SECONDS + sent / (self.device.link * self.bandwidth_share))
