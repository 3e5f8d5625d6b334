"""What one replica can do, from the seconds of its steps: batch, rate and latencies in the steady state.

At a rate of r requests per second, answers of n tokens keep `B = r * n * t(B)` requests decoding (Little's law), where
t(B) is the time of a step with B decodes and the prompt tokens that come meanwhile. The largest rate is that at which
the first of these limits binds: the KV cache, the rows or tokens of a step, ITL, or TTFT.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Annotated

from msgspec import Meta, Struct, convert

from engine.step_times import StepWork
from scale.decimals import plain
from scale.planning.step_cost import StepTime
from scale.planning.traffic import PlannedTraffic, parse_fields

_ROUNDS = 60
"""Halvings by which a batch is found."""


class EngineLimits(Struct, frozen=True, kw_only=True):
    """Sizes of one engine."""

    kv_tokens: int
    max_running: int = 64
    step_tokens: int = 2048


class LatencyAims(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Seconds within which `share` of the requests get their first token, and the mean of their other tokens."""

    ttft: Annotated[float, Meta(gt=0)] = 2.0
    itl: Annotated[float, Meta(gt=0)] = 0.1
    share: Annotated[float, Meta(gt=0, lt=1)] = 0.95


def parse_aims(text: str) -> LatencyAims:
    """Read aims such as `ttft=1,itl=0.05`.

    Raises:
        ValueError: it is no such text; the message names what is wrong.
    """
    return convert(parse_fields(text), LatencyAims)


class SteadyState(Struct, frozen=True):
    """One replica at a steady load."""

    batch: float
    """Requests that decode at the same time."""
    rate: float
    """Requests per second."""
    step: float
    """Mean seconds of a step, which are the mean ITL."""
    ttft: float
    """Seconds to the first token of a prompt that finds no queue."""
    binds: str
    """The limit that allows no more, and its value."""


class ReplicaBounds:
    """What a replica can do under a load's mix of lengths."""

    def __init__(self, cost: StepTime, limits: EngineLimits, traffic: PlannedTraffic, aims: LatencyAims) -> None:
        self._cost = cost
        self._limits = limits
        self._traffic = traffic
        self._aims = aims

    @property
    def request_tokens(self) -> float:
        """Mean KV tokens that a running request holds alone: what is not shared, and half of its answer."""
        return self._traffic.unique + self._traffic.output / 2

    @property
    def fits(self) -> float:
        """Requests whose keys and values fit into the KV cache, beside the beginnings that they share."""
        shared = self._traffic.input - self._traffic.unique
        return max(0.0, (self._limits.kv_tokens - shared) / self.request_tokens)

    def step(self, batch: float) -> float:
        """Return the mean seconds of a step in which so many requests decode."""
        return self._cost.seconds(self._work(batch, batch / self._traffic.output))

    def ttft(self, batch: float) -> float:
        """Return the seconds until a prompt's first token: half a step, then its own steps beside the decodes."""
        rest, seconds, done = self._traffic.unique, self.step(batch) / 2, self._traffic.input - self._traffic.unique
        room = max(1.0, self._limits.step_tokens - batch)
        while rest > 0:
            chunk = min(rest, room)
            work = self._decodes(batch)
            seconds += self._cost.seconds(
                StepWork(
                    tokens=work.tokens + chunk,
                    sampled=work.sampled + (chunk == rest),
                    read=work.read,
                    pairs=chunk * (done + chunk / 2),
                    prompts=1,
                )
            )
            rest, done = rest - chunk, done + chunk
        return seconds

    def most(self) -> SteadyState:
        """Return the replica at the largest rate that its limits allow.

        Raises:
            ValueError: it cannot serve one request at a time; the message says which limit is in the way.
        """
        batches = dict(self._largest())
        name = min(batches, key=lambda each: batches[each])
        batch = batches[name]
        if batch < 1:
            raise ValueError(f"it cannot serve one request at a time as asked for: {name}")
        return self._state(batch, name)

    def at(self, rate: float) -> SteadyState:
        """Return the replica at a rate that it can bear."""
        batch = _largest(lambda batch: batch <= 0 or batch / (self._traffic.output * self.step(batch)) <= rate, 1e6)
        return self._state(batch, f"the load of {plain(rate, 3)} requests/s")

    def _state(self, batch: float, binds: str) -> SteadyState:
        step = self.step(batch)
        return SteadyState(batch, batch / (self._traffic.output * step), step, self.ttft(batch), binds)

    def _largest(self) -> Iterator[tuple[str, float]]:
        """Yield each limit with the largest batch that it allows."""
        limits, aims, traffic = self._limits, self._aims, self._traffic
        most = float(limits.max_running)
        yield f"max_running is {limits.max_running}", most
        yield f"the KV cache of {limits.kv_tokens:,} tokens holds {self.fits:.0f} requests", self.fits
        tokens = 1 + traffic.unique / traffic.output
        yield f"a step has at most {limits.step_tokens} tokens", limits.step_tokens / tokens
        yield f"ITL of {plain(aims.itl)} s", _largest(lambda batch: self.step(batch) <= aims.itl, most)
        yield f"TTFT of {plain(aims.ttft)} s", _largest(lambda batch: self.ttft(batch) <= aims.ttft, most)

    def _decodes(self, batch: float) -> StepWork:
        return StepWork(tokens=batch, sampled=batch, read=batch * (self._traffic.input + self._traffic.output / 2))

    def _work(self, batch: float, prompts: float) -> StepWork:
        """Return a mean step: so many decodes, and the prompts that take their places."""
        decodes, traffic = self._decodes(batch), self._traffic
        return StepWork(
            tokens=decodes.tokens + prompts * traffic.unique,
            sampled=decodes.sampled + prompts,
            read=decodes.read,
            pairs=prompts * traffic.unique * (traffic.input - traffic.unique / 2),
            prompts=prompts,
        )


def replicas_for(offered: float, *, utilisation: float = 0.85, margin: float = 0.5) -> int:
    """Return how many replicas bear work that keeps `offered` of them busy, with room for chance.

    The rule of the autoscaler (`scale/policy.py`), so that a plan is what it will ask for.
    """
    return max(1, math.ceil(offered / utilisation + margin * math.sqrt(offered) - 1e-9))


def _largest(holds: Callable[[float], bool], most: float) -> float:
    """Return the largest value up to `most` for which a condition holds that large values break; 0 if none does."""
    if holds(most):
        return most
    low, high = 0.0, most
    for _ in range(_ROUNDS):
        middle = (low + high) / 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low if holds(low) and low > 1e-9 else 0.0
