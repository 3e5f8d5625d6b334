"""What a replica can do: seconds of a step by what it runs, and from that the work of a request in replica-seconds.

A step costs `base + token * tokens + row * rows + kv_byte * bytes`: the weights are read once, each token is computed,
each row sampled, and the keys and values of its context read. The figures are fitted to measured steps; replicas that
became ready a short while ago do not count, as they still compile, fill caches and read files.

Engines that serve report sums of many steps, from which no more can be told. The planner's costs
(`scale/planning/step_cost.py`) come from steps that were timed one by one, or from data sheets, and tell more apart.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np
from msgspec import Struct

YOUNG = 60.0
"""Seconds for which a replica's steps are not learnt from after it became ready."""


class StepCost(Struct, frozen=True):
    """Seconds of a step: `base + token * tokens + row * rows + kv_byte * kv_bytes`."""

    base: float
    token: float
    row: float
    kv_byte: float = 0.0

    def seconds(self, tokens: float, rows: float, kv_bytes: float = 0.0) -> float:
        return self.base + self.token * tokens + self.row * rows + self.kv_byte * kv_bytes


class MeasuredStep(Struct, frozen=True):
    """One step, or the mean of several like it."""

    seconds: float
    tokens: float
    """Tokens that it ran, of prompts and of answers."""
    rows: float
    kv_bytes: float = 0.0
    """Bytes of keys and values that its rows read."""


class Capacity(Struct, frozen=True):
    """Replica-seconds that a token costs on a replica that is loaded as it should be."""

    prompt_seconds: float
    """Of a prompt token that is not in the prefix cache."""
    output_seconds: float

    @classmethod
    def of(cls, cost: StepCost, batch: float, context_bytes: float = 0.0) -> Capacity:
        """Return the capacity at a batch.

        Args:
            batch: rows of a step at full load: as many as there are slots, or fewer if their KV does not fit.
            context_bytes: mean bytes of keys and values of a row.
        """
        return cls(cost.token, cost.base / batch + cost.token + cost.row + cost.kv_byte * context_bytes)

    def work(self, prompt_tokens: float, output_tokens: float) -> float:
        """Return the replica-seconds of requests with so many prompt tokens to be computed and of output."""
        return prompt_tokens * self.prompt_seconds + output_tokens * self.output_seconds


def fit(steps: Sequence[MeasuredStep]) -> StepCost:
    """Return the cost with the least squares of relative errors, no part of which is negative.

    With four unknowns, each choice of those that are not 0 is tried.
    """
    measured = np.array([[1.0, step.tokens, step.rows, step.kv_bytes] for step in steps])
    seconds = np.array([step.seconds for step in steps])
    if not len(steps) or np.any(seconds <= 0):
        raise ValueError("a cost needs at least one measured step, and seconds above 0")
    relative = measured / seconds[:, None]
    best, least = np.zeros(4), math.inf
    for count in range(1, 5):
        for chosen in itertools.combinations(range(4), count):
            columns = list(chosen)
            # Columns of like size keep the problem well conditioned.
            scales = np.abs(relative[:, columns]).max(axis=0)
            scales[scales == 0] = 1.0
            found = np.linalg.lstsq(relative[:, columns] / scales, np.ones(len(steps)), rcond=None)[0] / scales
            error = float(np.sum((relative[:, columns] @ found - 1) ** 2))
            if np.all(found >= 0) and error < least * (1 - 1e-9):
                best, least = np.zeros(4), error
                best[columns] = found
    return StepCost(*(float(part) for part in best))


def learn(known: Sequence[MeasuredStep], step: MeasuredStep) -> tuple[MeasuredStep, ...]:
    """Add a step to those that are known, in place of the one that ran about as many tokens and rows."""
    return (*(each for each in known if _size(each) != _size(step)), step)


def _size(step: MeasuredStep) -> tuple[int, int]:
    return round(math.log2(1 + step.tokens)), round(math.log2(1 + step.rows))
