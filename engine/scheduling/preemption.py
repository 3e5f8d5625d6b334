"""Decides which requests may lose their KV to make room, and what is reserved for those that may not. Pure.

A request that has been preempted `limit` times is *safe*: it is admitted with blocks for its longest possible answer
and keeps them to its end. All requests still end, because the first in line progresses in every step: if it is safe it
has all its blocks, and if not it may take all that are not reserved. Its longest answer fits into these, because no
request is admitted that would make this untrue of any running one. So the first in line ends, then the next one; when
none runs, any waiting request fits, as no context is larger than the cache.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from engine.cache.blocks import BLOCK_SIZE, BlockPool, blocks_of
from engine.request import Request


class Preemption:
    """The rules for one pool of KV blocks.

    `context`: most tokens of one request; `blocks`: blocks of the pool that adapters never hold.
    """

    def __init__(self, pool: BlockPool, limit: int, context: int, blocks: int) -> None:
        self.reserved = 0
        """Blocks reserved for safe requests that run."""
        self._pool = pool
        self._limit = limit
        self._context = context
        self._blocks = blocks

    def is_safe(self, request: Request) -> bool:
        """Whether a request has been preempted as often as it may be."""
        return request.preemptions >= self._limit

    def blocks_at_admission(self, request: Request) -> int:
        """Return the blocks of all known tokens; of the longest answer for a safe request."""
        return self._longest(request) if self.is_safe(request) else blocks_of(request.length)

    def may_run(self, request: Request, running: Sequence[Request]) -> bool:
        """Whether, with this request, the longest answer of every running one still fits beside what is reserved."""
        safe = self.is_safe(request)
        if not safe and not self.reserved:
            return True
        reserved = self.reserved + (self._longest(request) if safe else 0)
        others = [self._longest(other) for other in running if not other.reserved_blocks]
        if not safe:
            others.append(self._longest(request))
        return reserved + max(others, default=0) <= self._blocks

    def reserve(self, request: Request) -> None:
        """Reserve the blocks of a safe request that begins to run: they stay its own."""
        if self.is_safe(request):
            request.reserved_blocks = len(request.block_table)
            self.reserved += request.reserved_blocks

    def release(self, request: Request) -> None:
        """Undo the reservation of a request that runs no longer."""
        self.reserved -= request.reserved_blocks
        request.reserved_blocks = 0

    def victims(self, requests: Iterable[Request], first: Request) -> list[Request]:
        """Return those of some running requests that may be preempted, with the least to compute again first.

        Blocks that are being loaded would not be free at once.
        """
        allowed = [
            request
            for request in requests
            if request is not first and not self.is_safe(request) and request.load is None
        ]
        allowed.sort(key=lambda request: (self.recompute(request), -request.rank[1]))
        return allowed

    def frees(self, request: Request) -> int:
        """Return the blocks that a waiting request gains by a preemption: the victim's own and the one to grow into."""
        return len(request.block_table) - self._pool.shared(request.holder) + 1

    def recompute(self, request: Request) -> int:
        """Count tokens that would have to run again; blocks that others use as well stay readable."""
        return request.computed - self._pool.shared(request.holder) * BLOCK_SIZE

    def _longest(self, request: Request) -> int:
        """Return the blocks of a request's longest possible answer, whose last token is never run."""
        longest = min(len(request.prompt) + request.sampling.max_tokens, self._context) - 1
        return blocks_of(max(longest, request.length))
