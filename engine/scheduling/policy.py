"""The decisions of a scheduling policy: who is admitted next, who may be preempted for whom, who pays for what.

A policy holds the waiting requests; the scheduler asks it for one at a time and admits it or passes over it. Whatever
the policy, the scheduler never preempts the first in line (smallest `rank`) and lets it preempt anybody else. Pure:
time and state come in as arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Protocol

from engine.request import Request
from engine.wire import ServiceClass

by_rank = attrgetter("rank")
LEVELS: dict[ServiceClass, int] = {"premium": -1, "standard": 0, "batch": 1}


@dataclass(frozen=True, slots=True)
class Shortage:
    """Resources that a waiting request lacks to be admitted."""

    blocks: int
    """Number of KV blocks missing; none if not positive."""
    needs: int
    """Number of KV blocks that the request would hold."""


@dataclass(frozen=True, slots=True)
class Victim:
    """A running request that may be preempted: neither the first in line nor preempted too often already."""

    request: Request
    frees: int
    """Number of KV blocks that its preemption makes available."""


@dataclass(frozen=True, slots=True)
class PromptShare:
    """A part of a step's prompt tokens."""

    key: Hashable
    """Requests with the same key are served from the same part, in their order."""
    weight: float = 1.0
    paid: float = 0.0
    """Tokens by weight that the group has had, those of its running prompts included; who has had less goes first."""


class QueuePolicy(Protocol):
    """The waiting requests and their order."""

    def __len__(self) -> int:
        """Number of waiting requests."""
        ...

    def __iter__(self) -> Iterator[Request]:
        """Iterate over all waiting requests."""
        ...

    @property
    def work(self) -> int:
        """Tokens that all waiting requests are expected to need, `Request.work` of each."""
        ...

    def ahead(self, request: Request) -> int:
        """Return the part of `work` that would be admitted before a new request."""
        ...

    def join(self, request: Request) -> None:
        """Add a new request to the line and set its `rank`."""
        ...

    def rejoin(self, request: Request) -> None:
        """Put a preempted request back into its old place."""
        ...

    def leave(self, request: Request) -> None:
        """Remove a waiting request that has ended."""
        ...

    def withdraw(self, request: Request) -> None:
        """Set a request aside, because its adapter cannot take it now; maybe in the middle of a step."""
        ...

    def restore(self, request: Request) -> None:
        """Put a request that stood aside back into its old place."""
        ...

    def open(self, now: float) -> None:
        """Begin a step: no request is passed over yet."""
        ...

    def first(self) -> Request | None:
        """Return the request to be admitted next, of those not passed over in this step."""
        ...

    def pass_over(self, request: Request) -> None:
        """Pass over `first()`, which cannot be admitted in this step for a reason that need not hold up others."""
        ...

    def admit(self, request: Request, cached: int) -> None:
        """Admit `first()`, of whose tokens `cached` need not be computed."""
        ...

    def generated(self, request: Request, tokens: int) -> None:
        """Account for output tokens that a running request has gained."""
        ...

    def finish(self, request: Request) -> None:
        """Account for the end of a running request."""
        ...

    def may_preempt(self, request: Request, victim: Request) -> bool:
        """Whether a running request that lacks KV blocks may take them from another one."""
        ...

    def within_share(self, request: Request) -> bool:
        """Whether a waiting request might have running ones preempted for it, if there is no room; O(1)."""
        ...

    def claim(
        self, request: Request, shortage: Shortage, running: Sequence[Request], victims: Callable[[], Sequence[Victim]]
    ) -> Sequence[Request]:
        """Choose those of `victims()`, cheapest first, that make room for a waiting request; none if not enough."""
        ...

    def share(self, request: Request) -> PromptShare:
        """Return the share of a step's prompt tokens from which a request is served."""
        ...

    def check_integrity(self, running: Sequence[Request]) -> None:
        """Check the policy's bookkeeping against the waiting and running requests.

        Raises:
            RuntimeError: they differ.
        """
        ...
