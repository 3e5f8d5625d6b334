"""Decides which texts the embedder computes next. Pure: time comes in as an argument.

There is no waiting for company: while one batch is computed the next one gathers. What a turn waits for goes first, and
what nobody waits for goes in small batches, so that a question never waits for more than one of those.
"""

from __future__ import annotations

from collections import deque

from msgspec import Struct

URGENT_BATCH = 32
"""Most texts in one batch that turns wait for."""
BULK_BATCH = 8
"""Most texts in any other batch."""


class Pending(Struct, eq=False):
    """One text of one request. `owner` identifies the request; the queue does not look at it."""

    owner: object
    index: int
    """Position of the text in its request."""
    text: str
    deadline: float
    """Time by which the vector must be there, in seconds by the clock that `take` is given."""
    cancelled: bool = False
    """Whether nobody waits for the text any more."""


class EmbedQueue:
    """Two queues of texts, urgent and not, with one bound.

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
        """Queue all of the texts or none; False if there is no room."""
        if len(self) + len(texts) > self._limit:
            return False
        (self._urgent if urgent else self._bulk).extend(texts)
        return True

    def take(self, now: float) -> tuple[list[Pending], list[Pending]]:
        """Take the next batch, and the texts whose deadline has passed. Cancelled texts are dropped."""
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
