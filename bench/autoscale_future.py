"""A rule that knows all of the load beforehand: a mark by which to judge those that do not."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import count

import numpy as np

from bench.autoscale_rules import LOOK_SECONDS, MOST, sized
from bench.autoscale_workload import Series
from scale.fleet import FleetSize, Sizer
from scale.policy import ScaleDecision
from scale.signals import PoolSignal

_LONGEST = 30
"""Most looks over which a burst is averaged."""


def needed(sizes: Sequence[FleetSize], ttft: float) -> Series:
    """Return how many busy replicas are needed in the time before each look, by the load that came then.

    What arrives from any look to any later one has to have begun `ttft` after that.
    """
    sums = np.concatenate([[0.0], np.cumsum([LOOK_SECONDS * each.offered for each in sizes])])
    needs = np.zeros(len(sizes))
    for looks in range(1, min(_LONGEST, len(sizes)) + 1):
        rates = (sums[looks:] - sums[:-looks]) / (LOOK_SECONDS * looks + ttft)
        for at in range(looks):
            part = needs[at : at + len(rates)]
            np.maximum(part, rates, out=part)
    return needs


def ahead(start_seconds: float) -> int:
    """Return the number of looks to come for which a replica has to be asked for now."""
    return math.ceil(start_seconds / LOOK_SECONDS) + 1


def by_future(share: float, needs: Series, start_seconds: float) -> Sizer:
    """Return the rule: replicas are ready when they are needed, at most `share` of them busy, and stay if they will be
    needed again before others could start."""
    looks = count(1)

    def sizer(signal: PoolSignal, busy: float) -> ScaleDecision:
        coming = needs[(at := next(looks)) : at + ahead(start_seconds)]
        return sized(signal, min(max(1, math.ceil(coming.max(initial=0.0) / share - 1e-9)), MOST))

    return sizer
