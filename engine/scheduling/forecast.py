"""How fast an engine is, and so how long a queue takes. Pure: told of times, it reads no clock."""

from __future__ import annotations

from collections.abc import Sequence

from engine.request import Request, RequestError

_DECAY = 0.98
"""Of what earlier steps and answers weigh, per step and per answer."""
_FIRST_GUESS = 128.0
"""Output tokens of an answer before any has ended."""


class Forecast:
    """Moving averages: tokens per second over the last steps, output tokens over the last answers."""

    def __init__(self) -> None:
        self._tokens = self._seconds = 0.0
        self._outputs, self._answers = _FIRST_GUESS, 1.0
        self._prompts = 0.0
        self._running: tuple[float, int] | None = None
        """When the step that runs was planned, and its tokens."""

    @property
    def tokens_per_second(self) -> float:
        """Prompt and output tokens run per second of work; 0 while nothing is known."""
        return self._tokens / self._seconds if self._seconds > 0 else 0.0

    def step(self, now: float, tokens: int) -> None:
        """A step of `tokens` begins, and the one before it has ended if there was one since `idle`."""
        if self._running is not None:
            began, ran = self._running
            self._tokens = self._tokens * _DECAY + ran
            self._seconds = self._seconds * _DECAY + max(now - began, 0.0)
        self._running = (now, tokens) if tokens else None

    def confirmed(self, tokens: int) -> None:
        """The step that runs has brought so many tokens more: drafts that were right."""
        if self._running is not None:
            began, ran = self._running
            self._running = (began, ran + tokens)

    def idle(self) -> None:
        """There is no work: time until the next step is no step's."""
        self._running = None

    def answered(self, prompt: int, output: int) -> None:
        """A request has ended by itself."""
        self._prompts = self._prompts * _DECAY + prompt
        self._outputs = self._outputs * _DECAY + output
        self._answers = self._answers * _DECAY + 1

    def work(self, request: Request) -> int:
        """Tokens that a request without KV is expected to need: all it knows, and its answer or what is left of it."""
        return request.length + self._answer(request)

    @property
    def request_tokens(self) -> float:
        """Tokens of one request, prompt and output."""
        return (self._prompts + self._outputs) / self._answers

    def seconds(self, tokens: float) -> float | None:
        """How long `tokens` take; None while nothing is known."""
        rate = self.tokens_per_second
        return tokens / rate if rate > 0 else None

    def queue_seconds(self, ahead: int, running: Sequence[Request], *, full: bool) -> float:
        """How long a request waits behind `ahead` tokens of others and what runs; 0 while nothing is known.

        If all rows are taken, somebody has to end: meanwhile about as many tokens run as one request has.
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
        """Output tokens that are still expected."""
        return min(request.sampling.max_tokens - len(request.output), round(self._outputs / self._answers))


def refuse_if_hopeless(seconds: float, limit: float) -> None:
    """Refuse a request that would wait for `seconds` although `limit` at most are allowed.

    Raises:
        RequestError: it would; the error says when to try again.
    """
    if seconds > limit:
        raise RequestError(
            f"the engine is busy: this request would wait about {seconds:.0f} s, {limit:g} s at most are allowed; try "
            "again later",
            "overloaded",
            seconds - limit,
        )
