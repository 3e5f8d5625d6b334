"""Decides whose grammar is compiled next: tenants take turns by the compilation time that they have used. Pure.

Start-time fair queueing (Goyal, Vin and Cheng, 1996): a tenant that has had nothing to compile for long comes first,
but saves up nothing.
"""

from __future__ import annotations

from collections import Counter, deque
from typing import Generic, TypeVar

Job = TypeVar("Job")


class TrialQueue(Generic[Job]):
    """Waiting jobs of all tenants, oldest first within a tenant.

    Args:
        running: most jobs of one tenant at a time.
        waiting: most jobs of one tenant in the line.
    """

    def __init__(self, *, running: int, waiting: int) -> None:
        self._most_running, self._most_waiting = running, waiting
        self._jobs: dict[str, deque[Job]] = {}
        """Waiting jobs by tenant, without tenants that have none."""
        self._running: Counter[str] = Counter()
        self._used: dict[str, float] = {}
        """Virtual time of each tenant: seconds that its jobs have taken, counted from the queue's time when it came."""
        self._now = 0.0
        """Virtual time of the queue: that of the tenant served last."""

    def __len__(self) -> int:
        return sum(map(len, self._jobs.values()))

    def has_room(self, tenant: str) -> bool:
        return len(self._jobs.get(tenant, ())) < self._most_waiting

    def push(self, tenant: str, job: Job) -> None:
        self._used[tenant] = max(self._now, self._used.get(tenant, 0.0))
        self._jobs.setdefault(tenant, deque()).append(job)

    def pop(self) -> tuple[str, Job] | None:
        """Take the next job, which `ended` must follow, and its tenant; None while all waiting tenants run too many."""
        ready = [tenant for tenant in self._jobs if self._running[tenant] < self._most_running]
        if not ready:
            return None
        tenant = min(ready, key=self._used.__getitem__)  # the first of equals has waited longest
        self._now = max(self._now, self._used[tenant])
        self._running[tenant] += 1
        jobs = self._jobs.pop(tenant)
        job = jobs.popleft()
        if jobs:
            self._jobs[tenant] = jobs
        return tenant, job

    def ended(self, tenant: str, seconds: float) -> None:
        """Record that a job that was popped has taken `seconds`."""
        self._running[tenant] -= 1
        self._used[tenant] += seconds
        for each in [each for each, used in self._used.items() if used <= self._now]:
            if each not in self._jobs and not self._running[each]:
                del self._used[each], self._running[each]

    def remove(self, tenant: str, job: Job) -> bool:
        """Take a job out of the queue; whether it was there."""
        jobs = self._jobs.get(tenant)
        if jobs is None or job not in jobs:
            return False
        jobs.remove(job)
        if not jobs:
            del self._jobs[tenant]
        return True

    def clear(self) -> list[Job]:
        """Empty the queue and return its jobs."""
        jobs = [job for each in self._jobs.values() for job in each]
        self._jobs.clear()
        return jobs
