"""Estimates how often drafted tokens are right, per request, from the results of its drafts. Pure."""

from __future__ import annotations

from dataclasses import dataclass

_PRIOR, _PRIOR_WEIGHT = 0.6, 4.0
"""Acceptance rate assumed of a source of drafts before it has made any, and how many drafted tokens it counts for.

Between what n-grams reach in questions (0 to 20 %) and what they reach in repetitive text and good draft models
anywhere (90 %); `bench.speculation` measures it.
"""
_MEMORY = 0.95
"""Factor by which older tokens count less with each newer draft: texts change between prose, lists and quotations.

From 0.9 to 0.98 simulated engines are equally fast (bench/README.md).
"""


@dataclass(slots=True)
class Tally:
    """Counts drafted tokens that were checked and those that were right; older ones count less."""

    right: float = 0.0
    checked: float = 0.0

    def add(self, drafted: int, right: int) -> None:
        # Tokens after the first wrong one say nothing: what they were guessed to follow was wrong.
        self.right = _MEMORY * self.right + right
        self.checked = _MEMORY * self.checked + min(right + 1, drafted)


class Acceptance:
    """Acceptance rate of one source of drafts: over all requests, and how each request's own tally is drawn to it."""

    def __init__(self) -> None:
        self._common = Tally(_PRIOR * _PRIOR_WEIGHT, _PRIOR_WEIGHT)

    def observe(self, own: Tally, drafted: int, right: int) -> None:
        """Record that the first `right` of `drafted` tokens of a request, whose tally is `own`, were right."""
        own.add(drafted, right)
        self._common.add(drafted, right)

    def rate(self, own: Tally) -> float:
        """Probability that a drafted token is right if those before it were: the request's own, drawn to the common."""
        common = self._common.right / self._common.checked
        return (own.right + _PRIOR_WEIGHT * common) / (own.checked + _PRIOR_WEIGHT)
