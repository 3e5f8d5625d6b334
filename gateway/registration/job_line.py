"""The order in which jobs of several tenants are done: in turn, and no two of one tenant at the same time."""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from typing import Generic, TypeVar

T = TypeVar("T")


class JobLine(Generic[T]):
    """What waits, by tenant; None stands for the operators. For one event loop."""

    def __init__(self) -> None:
        self._waiting: OrderedDict[str | None, deque[T]] = OrderedDict()
        """The tenant that comes next is the first."""
        self._busy: set[str | None] = set()
        self._news = asyncio.Event()

    def __len__(self) -> int:
        return sum(map(len, self._waiting.values()))

    def waiting(self, tenant: str | None) -> int:
        """Jobs of one tenant that wait."""
        return len(self._waiting.get(tenant, ()))

    def put(self, tenant: str | None, job: T) -> None:
        """Have a job wait."""
        self._waiting.setdefault(tenant, deque()).append(job)
        self._news.set()

    async def take(self) -> tuple[str | None, T]:
        """The next job of a tenant for which none is done now. Call `done` when it has ended."""
        while True:
            for tenant, jobs in self._waiting.items():
                if tenant not in self._busy:
                    job = jobs.popleft()
                    if jobs:
                        self._waiting.move_to_end(tenant)
                    else:
                        del self._waiting[tenant]
                    self._busy.add(tenant)
                    return tenant, job
            self._news.clear()
            await self._news.wait()

    def done(self, tenant: str | None) -> None:
        """Its job has ended."""
        self._busy.discard(tenant)
        self._news.set()
