"""A step in the making. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

from engine.plan import Row
from engine.request import Request
from engine.scheduling.shares import PromptTokens


@dataclass(slots=True)
class PlannedStep:
    """The requests of one step while the scheduler chooses them."""

    now: float
    prompts: PromptTokens
    """The requests in their prompts, and how many tokens the step has for them."""
    decodes: dict[Request, None] = field(default_factory=dict)
    """The requests that decode, in order."""
    preempted: list[Request] = field(default_factory=list)

    def rows(self) -> list[Row]:
        """Rows of one token first, then the chunks of prompts."""
        rows = [Row(request, request.computed, 1, sample=True) for request in self.decodes]
        chunks = [
            Row(request, request.computed, count, sample=count == request.uncomputed)
            for request, count in self.prompts.counts().items()
        ]
        return rows + sorted(chunks, key=lambda row: row.count > 1)
