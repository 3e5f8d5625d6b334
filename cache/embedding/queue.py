"""Which texts the embedder computes next. Pure: time comes in as an argument.

There is no waiting for company: while one batch is computed the next one gathers. What a turn waits for goes first, and
what nobody waits for goes in small batches, so that a question never waits for more than one of those.
"""

from __future__ import annotations

from collections import deque

from msgspec import Struct

URGENT_BATCH = 32
"""Texts of one batch that turns wait for."""
BULK_BATCH = 8
"""Texts of any other batch."""


class Pending(Struct, eq=False):
    """One text of one request. `owner` says whose: the queue does not look at it."""

    owner: object
    index: int
    """Of the text in its request."""
    text: str
    deadline: float
    """Seconds, by the clock that `take` is given."""
    cancelled: bool = False
    """Nobody waits for it any more."""


class EmbedQueue:
    """Two lines of texts with one bound.

    Args:
        limit: most texts in both.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._urgent: deque[Pending] = deque()
        self._bulk: deque[Pending] = deque()

    def __len__(self) -> int:
        return len(self._urgent) + len(self._bulk)

    def add(self, texts: list[Pending], *, urgent: bool) -> bool:
        """Line up all or none of them; False if there is no room."""
        if len(self) + len(texts) > self._limit:
            return False
        (self._urgent if urgent else self._bulk).extend(texts)
        return True

    def take(self, now: float) -> tuple[list[Pending], list[Pending]]:
        """The next batch, and what was passed over because its deadline has passed. Cancelled texts just vanish."""
        batch: list[Pending] = []
        late: list[Pending] = []
        for line, most in ((self._urgent, URGENT_BATCH), (self._bulk, BULK_BATCH)):
            while line and len(batch) < most:
                pending = line.popleft()
                if pending.cancelled:
                    continue
                (batch if now < pending.deadline else late).append(pending)
            if batch:
                break
        return batch, late
