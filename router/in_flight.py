"""Counts the tokens that a replica still has to compute for this gateway, from sending a request until its end.

The engine's own report may be a second old; of what was sent a moment ago only the sender knows. How long an answer
will be nobody knows: it is taken for as long as late ones.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

_SMOOTHING = 0.05
"""Weight of the newest answer in the mean length."""


class AnswerLength:
    """Predicts the length of a pool's next answer from the latest ones."""

    def __init__(self) -> None:
        self._mean: float | None = None

    def predict(self, most: int) -> int:
        """Return the expected tokens of an answer that may have `most`."""
        return most if self._mean is None else min(most, round(self._mean))

    def observe(self, tokens: int) -> None:
        """Record an answer of so many tokens."""
        self._mean = tokens if self._mean is None else self._mean + _SMOOTHING * (tokens - self._mean)


class InFlightLoad:
    """The requests of this gateway that one replica has."""

    def __init__(self) -> None:
        self.tokens = 0
        """Predicted: what of their prompts is not known there, and their answers."""
        self.requests = 0

    @contextlib.contextmanager
    def carry(self, prompt: int, answer: int) -> Iterator[InFlightRequest]:
        """Count a request while the body runs.

        Args:
            prompt: tokens of its prompt that the replica has to compute.
            answer: tokens that its answer may have.
        """
        flight = InFlightRequest(self, prompt, answer)
        try:
            yield flight
        finally:
            flight._close()


class InFlightRequest:
    """One request in flight. `InFlightLoad.carry` makes and ends it."""

    __slots__ = ("_answer", "_in_flight", "_prompt", "computed")

    def __init__(self, in_flight: InFlightLoad, prompt: int, answer: int) -> None:
        self._in_flight = in_flight
        self._prompt = prompt
        self._answer = answer
        self.computed = False
        """Its prompt is computed."""
        in_flight.tokens += prompt + answer
        in_flight.requests += 1

    def prefilled(self) -> None:
        """Record the first token: the prompt has been computed."""
        self._in_flight.tokens -= self._prompt
        self._prompt = 0
        self.computed = True

    def _close(self) -> None:
        self._in_flight.tokens -= self._prompt + self._answer
        self._in_flight.requests -= 1
