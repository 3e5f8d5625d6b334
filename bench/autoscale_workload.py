"""Load for simulated pools: recorded requests, as many copies as fill some replicas, and recorded rates of two weeks.

Copies of a trace begin at times that are evenly spread over it: a service with more users has more bursts, at other
times. Lengths are divided by `COARSE`, and each simulated step stands for so many real ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from load.traces import TracePoint
from scale.capacity import MeasuredStep, StepCost, fit
from scale.simulation import Arrival

COARSE = 32
SPEED = 10.0
"""Speed of a simulated replica, relative to the machine with two cores on which the steps were measured."""
_HASHED_TOKENS = 512
_PROMPT, _CONTEXT = 128, 160
"""Tokens of the prompts with which decoding was measured, and mean tokens in its contexts."""

Series = NDArray[np.float64]


class Hardware(NamedTuple):
    """What a simulated replica runs on: the cost of a step, and bytes of keys and values, of coarse tokens."""

    cost: StepCost
    kv_token_bytes: int
    coarse: int
    """Tokens, and steps, that a simulated one stands for."""


class _Size(msgspec.Struct):
    kv_bytes: int


class _Cell(msgspec.Struct):
    file: str
    subject: str
    cell: str
    value: float


class _Real(msgspec.Struct):
    sizes: dict[str, _Size]
    rows: list[_Cell]


def measured_steps(results: Path) -> tuple[list[MeasuredStep], int]:
    """Return what `bench.real` measured of our engine's steps with the smallest model, and the KV bytes of a token."""
    real = msgspec.json.decode(results.read_bytes(), type=_Real)
    kv = real.sizes["A"].kv_bytes
    rates = {each.cell: each.value for each in real.rows if (each.file, each.subject) == ("A", "Roundhouse")}
    decoding = [MeasuredStep(rows / rates[str(rows)], rows, rows, rows * _CONTEXT * kv) for rows in (1, 8, 16, 32)]
    prompts = [
        MeasuredStep(tokens / rates[f"prompt of {tokens}"], tokens, 1, tokens / 2 * kv) for tokens in (512, 2048)
    ]
    return [*decoding, *prompts], kv


def measured_hardware(steps: Sequence[MeasuredStep], kv_token_bytes: int, coarse: int = COARSE) -> Hardware:
    """Return a machine that is `SPEED` times as fast as the one on which these steps were measured."""
    cost = StepCost(*(part * coarse / SPEED for part in msgspec.structs.astuple(fit(steps))))
    return Hardware(cost, kv_token_bytes * coarse, coarse)


def gpu() -> Hardware:
    """Return an L4 with a model of 8 billion parameters in bf16, by arithmetic: no figure here was measured.

    Weights and KV are read at 85 % of 300 GB/s, products run at half of 121 TFLOPS; 128 KiB of KV per token.
    """
    bandwidth, parameters = 0.85 * 300e9, 8.03e9
    cost = StepCost(2 * parameters / bandwidth, 2 * parameters / (0.5 * 121e12), 1e-4, 1 / bandwidth)
    return Hardware(cost, 1 << 17, 1)


def one_after_another(first: Sequence[TracePoint], second: Sequence[TracePoint]) -> list[TracePoint]:
    """Return two traces that fade into each other: the first one's requests become fewer, the second one's more."""
    span = max(first[-1].start, second[-1].start)
    chance = np.random.default_rng(1)
    kept = [each for each in first if chance.random() > each.start / span]
    added = [each for each in second if chance.random() < each.start / span]
    return sorted((*kept, *added), key=lambda each: each.start)


def arrivals(requests: Sequence[TracePoint], copies: int, coarse: int = COARSE) -> list[Arrival]:
    """Return copies of a trace, each turned by another part of its time, in order of their times."""
    span = requests[-1].start + 1
    numbers = count()
    largest = 1 + max((max(each.blocks) for each in requests if each.blocks), default=0)
    made = []
    for copy in range(copies):
        for each in requests:
            length, output = max(1, each.input_tokens // coarse), max(1, each.output_tokens // coarse)
            if each.blocks:
                tokens = [block + copy * largest for block in each.blocks for _ in range(_HASHED_TOKENS // coarse)]
                prompt = tokens[:length]
            else:
                prompt = [next(numbers)] + [0] * (length - 1)
            made.append(Arrival((each.start + copy * span / copies) % span, "", prompt, output))
    return sorted(made, key=lambda arrival: arrival.at)


def week(rates: Sequence[float], mean: float, tick: float, seed: int = 1) -> Series:
    """Return the requests of each tick of the second of two weeks of rates in ten minutes, `mean` a second in the mean.

    Between two rates there is a line; on it noise of 15 % that lasts about a minute; requests come three at a time.
    """
    second = np.asarray(rates[len(rates) // 2 :], float)
    times = np.arange(0, len(second) * 600 - 600, tick)
    chance = np.random.default_rng(seed)
    level = np.interp(times, np.arange(len(second)) * 600, second / second.mean() * mean)
    keep = np.exp(-tick / 60)
    noise = np.empty(len(times))
    noise[0] = 0.0
    steps = chance.normal(0, 0.15 * np.sqrt(1 - keep**2), len(times))
    for at in range(1, len(times)):
        noise[at] = keep * noise[at - 1] + steps[at]
    burst = 3
    return np.asarray(burst * chance.poisson(level * np.exp(noise) * tick / burst), float)
