"""Forecasts how long a queue takes from the engine's measured speed. Pure: told of times, it reads no clock."""

from __future__ import annotations

from collections.abc import Sequence

from engine.request import Request, RequestError

_DECAY = 0.98
"""Factor by which earlier steps and answers count less, per step and per answer."""
_FIRST_GUESS = 128.0
"""Output tokens expected of an answer before any has ended."""


class Forecast:
    """Moving averages: tokens per second over the last steps, output tokens over the last answers."""

    def __init__(self) -> None:
        self._tokens = self._seconds = 0.0
        self._outputs, self._answers = _FIRST_GUESS, 1.0
        self._prompts = 0.0
        self._running: tuple[float, int] | None = None
        """Start and tokens of the step that runs; None if none does."""

    @property
    def tokens_per_second(self) -> float:
        """Prompt and output tokens run per second of work; 0 while no step is known."""
        return self._tokens / self._seconds if self._seconds > 0 else 0.0

    def step(self, now: float, tokens: int) -> None:
        """Record that a step of `tokens` begins, which ends the one before it if there was one since `idle`."""
        if self._running is not None:
            began, ran = self._running
            self._tokens = self._tokens * _DECAY + ran
            self._seconds = self._seconds * _DECAY + max(now - began, 0.0)
        self._running = (now, tokens) if tokens else None

    def confirmed(self, tokens: int) -> None:
        """Add `tokens` to the step that runs: drafts that were right."""
        if self._running is not None:
            began, ran = self._running
            self._running = (began, ran + tokens)

    def idle(self) -> None:
        """Record that there is no work: the time until the next step counts for none."""
        self._running = None

    def answered(self, prompt: int, output: int) -> None:
        """Record a request that has ended by itself."""
        self._prompts = self._prompts * _DECAY + prompt
        self._outputs = self._outputs * _DECAY + output
        self._answers = self._answers * _DECAY + 1

    def work(self, request: Request) -> int:
        """Return the tokens that a request without KV is expected to need: all it knows and what its answer lacks."""
        return request.length + self._answer(request)

    @property
    def request_tokens(self) -> float:
        """Average tokens of one request, prompt and output."""
        return (self._prompts + self._outputs) / self._answers

    def seconds(self, tokens: float) -> float | None:
        """Return how long `tokens` take; None while the speed is unknown."""
        rate = self.tokens_per_second
        return tokens / rate if rate > 0 else None

    def queue_seconds(self, ahead: int, running: Sequence[Request], *, full: bool) -> float:
        """Predict how long a request waits behind `ahead` tokens of others and what runs; 0 while nothing is known.

        If no more may run, a request has to end first: meanwhile about as many tokens run as one request has.
        """
        tokens = float(ahead)
        for request in running:
            if request.uncomputed > 1:
                tokens += request.uncomputed
        if full:
            nobody_has_ended = self._answers == 1.0
            tokens += min(sum(map(self._answer, running)), _FIRST_GUESS) if nobody_has_ended else self.request_tokens
        return self.seconds(tokens) or 0.0

    def _answer(self, request: Request) -> int:
        """Return the output tokens that are still expected of a request."""
        return min(request.sampling.max_tokens - len(request.output), round(self._outputs / self._answers))


def refuse_if_hopeless(seconds: float, limit: float) -> None:
    """Refuse a request that is predicted to wait for `seconds` if it may wait only for `limit`.

    Raises:
        RequestError: it is refused; the error says when to try again.
    """
    if seconds > limit:
        raise RequestError(
            f"the engine is busy: this request would wait about {seconds:.0f} s, {limit:g} s at most are allowed; try "
            "again later",
            "overloaded",
            seconds - limit,
        )
