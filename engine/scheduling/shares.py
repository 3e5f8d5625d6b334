"""Divides a step's prompt tokens among the prompts in it. Pure."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from itertools import pairwise

from engine.request import Request
from engine.scheduling.policy import PromptShare


def fair_shares(demands: Sequence[int], weights: Sequence[float], starts: Sequence[float], budget: int) -> list[int]:
    """Divide `budget` from the lowest start up: low ones get tokens first, until all that want more are level.

    Who gets `n` tokens is at `start + n / weight` afterwards; with equal starts these are the weighted max-min
    fair shares. In whole tokens, none above its demand, as many as possible; rounding's rest goes to the lowest.
    """
    hungry = sorted((index for index, demand in enumerate(demands) if demand > 0), key=starts.__getitem__)
    ends = {index: starts[index] + demands[index] / weights[index] for index in hungry}
    shares = [0] * len(demands)
    if hungry and budget > 0:
        level = _level([(starts[index], ends[index], weights[index]) for index in hungry], budget)
        for index in hungry:
            shares[index] = min(demands[index], max(int((level - starts[index]) * weights[index]), 0))
    rest = budget - sum(shares)
    for index in hungry:
        extra = min(rest, demands[index] - shares[index])
        shares[index] += extra
        rest -= extra
    return shares


def _level(spans: Sequence[tuple[float, float, float]], budget: float) -> float:
    """Return the level to which `budget` fills spans of (start, end, tokens per level)."""
    levels = sorted({level for start, end, _ in spans for level in (start, end)})
    for low, high in pairwise(levels):
        speed = sum(weight for start, end, weight in spans if start <= low < end)
        if speed * (high - low) >= budget:
            return low + budget / speed
        budget -= speed * (high - low)
    return levels[-1]


class PromptTokens:
    """The prompts of one step. Those with the same key (see `QueuePolicy.share`) are served in the order of `add`.

    The first request of all gets at least one token.
    """

    def __init__(self, budget: int, share: Callable[[Request], PromptShare]) -> None:
        self.budget = budget
        """Number of tokens that the step has for prompts."""
        self._share = share
        self._demand = 0
        self._groups: dict[Hashable, list[Request]] = {}

    def has_room(self, request: Request) -> bool:
        """Whether one more prompt would get tokens: some are left, or its group has none of its own yet."""
        if self._demand < self.budget:
            return True
        return self._share(request).key not in self._groups and len(self._groups) < self.budget

    def add(self, request: Request) -> None:
        self._groups.setdefault(self._share(request).key, []).append(request)
        self._demand += request.uncomputed

    def discard(self, request: Request) -> None:
        """Take out a request if it is in; its progress must be the same as when it was added."""
        key = self._share(request).key
        group = self._groups.get(key, [])
        if request in group:
            group.remove(request)
            self._demand -= request.uncomputed
            if not group:
                del self._groups[key]

    def counts(self) -> dict[Request, int]:
        """Return the tokens of the requests that get any."""
        groups = list(self._groups.values())
        given = [sum(request.uncomputed for request in group) for group in groups]
        if self._demand > self.budget > 0:
            # The first request of all must not have to wait, however far ahead its group is.
            given = [demand - (index == 0) for index, demand in enumerate(given)]
            shares = [self._share(group[0]) for group in groups]
            weights = [share.weight for share in shares]
            starts = [share.paid - demand / share.weight for share, demand in zip(shares, given, strict=True)]
            given = fair_shares(given, weights, starts, self.budget - 1)
            given[0] += 1
        counts: dict[Request, int] = {}
        for group, left in zip(groups, given, strict=True):
            for request in group:
                count = min(request.uncomputed, left)
                if count == 0:
                    break
                counts[request] = count
                left -= count
        return counts
