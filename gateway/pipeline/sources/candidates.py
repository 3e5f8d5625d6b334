"""The engines that a turn asks, one after the other, until one gives a token."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from time import monotonic

from gateway.engines.engine import Engine
from gateway.pipeline.relay import MAX_LOSSES, TryNext
from gateway.turns import Turn


class Candidates:
    """Those that the router has put in order, and after them whatever comes in the place of one that was lost: while a
    turn waits in an engine, all that were there when it was routed may have been replaced."""

    def __init__(self, engines: Sequence[Engine], turn: Turn, patience: float) -> None:
        """Args: patience: seconds for which the turn waits for an engine in the place of those that were lost."""
        self._listed = deque(engines)
        self._turn = turn
        self._patience = patience
        self._until: float | None = None
        self._lost = 0
        self.current = self._listed.popleft()
        """Engine that is asked now."""

    async def next(self, failure: TryNext, tokens: int) -> bool:
        """Go on to the next engine after the current one has failed; False if there is none, or none is wanted.

        Args:
            tokens: most tokens that the prompt and its answer have.
        """
        self._lost += failure.lost
        if self._turn.cancelled or self._lost > MAX_LOSSES:
            return False
        if self._listed:
            self.current = self._listed.popleft()
            return True
        if not failure.gone:
            return False
        if self._until is None:
            self._until = monotonic() + self._patience
        found = await self.current.pool.successor(
            lambda engine: engine.client.connected and not engine.client.leaving and engine.context >= tokens,
            self._until,
            {},
            unless=lambda: self._turn.cancelled,
        )
        self.current = found or self.current
        return found is not None
