"""Divides a step's prompt tokens among those whose prompts run in it. Pure."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence

from engine.request import Request


def fair_shares(demands: Sequence[int], weights: Sequence[float], budget: int) -> list[int]:
    """Weighted max-min fair shares, in whole tokens: nobody gets more than they want, nobody can be given more except
    at the cost of one who has less for their weight. What is left of rounding goes to the first.
    """
    shares = [0] * len(demands)
    hungry = [index for index, demand in enumerate(demands) if demand > 0]
    while hungry and budget > 0:
        level = budget / sum(weights[index] for index in hungry)
        sated = [index for index in hungry if demands[index] <= level * weights[index]]
        if not sated:
            for index in hungry:
                shares[index] = int(level * weights[index])
            rest = budget - sum(shares[index] for index in hungry)
            for index in hungry:
                extra = min(rest, demands[index] - shares[index])
                shares[index] += extra
                rest -= extra
            break
        for index in sated:
            shares[index] = min(demands[index], budget)
            budget -= shares[index]
        hungry = [index for index in hungry if index not in sated]
    return shares


class PromptTokens:
    """The prompts of one step. Those with the same key (see `Policy.share`) are served in the order in which they came.

    Whoever is first of all gets at least one token.
    """

    def __init__(self, budget: int, share: Callable[[Request], tuple[Hashable, float]]) -> None:
        self._budget = budget
        self._share = share
        self._demand = 0
        self._groups: dict[Hashable, list[Request]] = {}

    def has_room(self, request: Request) -> bool:
        """Whether one more prompt would get tokens: some are left, or its group has none of its own yet."""
        if self._demand < self._budget:
            return True
        return self._share(request)[0] not in self._groups and len(self._groups) < self._budget

    def add(self, request: Request) -> None:
        self._groups.setdefault(self._share(request)[0], []).append(request)
        self._demand += request.uncomputed

    def discard(self, request: Request) -> None:
        """Take out a request, which must still be as far as it was, if it is in."""
        key = self._share(request)[0]
        group = self._groups.get(key, [])
        if request in group:
            group.remove(request)
            self._demand -= request.uncomputed
            if not group:
                del self._groups[key]

    def counts(self) -> dict[str, int]:
        """Tokens by id of the requests that get any."""
        groups = list(self._groups.values())
        demands = [sum(request.uncomputed for request in group) for group in groups]
        if self._demand > self._budget:
            weights = [self._share(group[0])[1] for group in groups]
            demands = fair_shares(demands, weights, self._budget)
        counts = {}
        for group, left in zip(groups, demands, strict=True):
            for request in group:
                count = min(request.uncomputed, left)
                if count == 0:
                    break
                counts[request.id] = count
                left -= count
        return counts
