"""A step that is being planned. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

from engine.plan import Row
from engine.request import Request
from engine.scheduling.shares import PromptTokens


@dataclass(slots=True)
class PlannedStep:
    """Requests chosen for one step while the scheduler plans it."""

    now: float
    prompts: PromptTokens
    """Requests in their prompts, and the number of tokens for them."""
    decodes: dict[Request, None] = field(default_factory=dict)
    """The requests that decode, in order."""
    preempted: list[Request] = field(default_factory=list)

    def rows(self) -> list[Row]:
        """Return rows of one token first, then the chunks of prompts."""
        rows = [Row(request, request.computed, 1, sample=True) for request in self.decodes]
        chunks = [
            Row(request, request.computed, count, sample=count == request.uncomputed)
            for request, count in self.prompts.counts().items()
        ]
        return rows + sorted(chunks, key=lambda row: row.count > 1)
