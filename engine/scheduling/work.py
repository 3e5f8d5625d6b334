"""Counts what an engine has done since it started, for those who decide how many engines a pool needs. Pure."""

from __future__ import annotations

from bisect import bisect_left

from engine.plan import StepPlan
from engine.registration import TTFT_BOUNDS, Work
from engine.request import Request
from engine.wire import Output


class WorkTally:
    """Steps, their rows and tokens, and how long first tokens took. One thread counts, any thread may read."""

    def __init__(self) -> None:
        self._seconds = 0.0
        self._steps = self._tokens = self._rows = self._outputs = 0
        self._first_tokens = [0] * (len(TTFT_BOUNDS) + 1)

    def ran(self, plan: StepPlan, seconds: float) -> None:
        """Count a step."""
        self._steps += 1
        self._seconds += seconds
        self._tokens += plan.tokens
        self._rows += len(plan.rows)

    def gained(self, request: Request, output: Output, now: float) -> None:
        """Count what a request gained in a step. Of one that began in another engine, no first token."""
        self._outputs += len(output.tokens)
        if 0 < len(request.output) <= len(output.tokens) and not request.resumed:
            self._first_tokens[bisect_left(TTFT_BOUNDS, now - request.arrival)] += 1

    def read(self) -> Work:
        """Return all counts."""
        return Work(
            steps=self._steps,
            seconds=round(self._seconds, 3),
            tokens=self._tokens,
            rows=self._rows,
            outputs=self._outputs,
            first_tokens=tuple(self._first_tokens),
        )
