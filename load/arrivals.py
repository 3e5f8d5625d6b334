"""When turns arrive: offsets in seconds from the beginning of a run, in their order. They never depend on answers."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random


def constant(rate: float) -> Iterator[float]:
    """Yield an arrival every `1 / rate` seconds, without end; the first is at 0."""
    number = 0
    while True:
        yield number / rate
        number += 1


def poisson(rate: float, random: Random) -> Iterator[float]:
    """Yield the arrivals of a Poisson process of `rate` per second, without end."""
    at = 0.0
    while True:
        at += random.expovariate(rate)
        yield at
