"""Where an answer may come from."""

from __future__ import annotations

from typing import Protocol

from gateway.pipeline.values import Answered, Progress


class Source(Protocol):
    """The response cache, the semantic cache, or the engines."""

    async def answer(self, progress: Progress) -> Answered | None:
        """Answer the turn with events for its log; None: this source has no answer, and `progress` says why.

        Raises:
            ApiError: no source can answer.
        """
        ...
