"""The queue of registration jobs: tenants take turns, and no two jobs of one tenant run at the same time."""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from typing import Generic, TypeVar

T = TypeVar("T")


class JobLine(Generic[T]):
    """Waiting jobs by tenant; None stands for the operators. For one event loop."""

    def __init__(self) -> None:
        self._waiting: OrderedDict[str | None, deque[T]] = OrderedDict()
        """Waiting jobs by tenant; the tenant that comes next is first."""
        self._busy: set[str | None] = set()
        self._news = asyncio.Event()

    def __len__(self) -> int:
        return sum(map(len, self._waiting.values()))

    def waiting(self, tenant: str | None) -> int:
        """Return the number of waiting jobs of one tenant."""
        return len(self._waiting.get(tenant, ()))

    def put(self, tenant: str | None, job: T) -> None:
        """Queue a job."""
        self._waiting.setdefault(tenant, deque()).append(job)
        self._news.set()

    async def take(self) -> tuple[str | None, T]:
        """Take the next job of a tenant for which none runs. Call `done` when it has ended."""
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
        """Record that the tenant's job has ended."""
        self._busy.discard(tenant)
        self._news.set()
