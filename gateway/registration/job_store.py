"""Keeps jobs in Redis, where every gateway can read their state.

A job is alive while the gateway that works on it renews its sign of life; one that is not finished and has none was
left by a gateway that died. Redis keeps that time, so that no gateway's clock matters.
"""

from __future__ import annotations

import time
from typing import Any, cast

import msgspec
from msgspec import Struct
from redis.asyncio import Redis

from gateway.errors import Unavailable
from gateway.protocol.problems import problem
from gateway.registration.job_state import TERMINAL, JobState, RegistrationJob

JOB_KEY = "rh1:{{jobs}}:job:{id}"
ALIVE_KEY = "rh1:{{jobs}}:alive:{id}"
INDEX_KEY = "rh1:{{jobs}}:ids:{tenant}"
RETENTION = 24 * 3600
"""Seconds for which a job is kept."""
LIFETIME = 30
"""Seconds after which a job that no gateway renews counts as interrupted."""
MOST = 1000
"""Most jobs of one list; the oldest go first."""
_ALL = "*"
"""Name that stands for every tenant in the index's key; no tenant is named so."""

_decode = msgspec.json.Decoder(RegistrationJob).decode


class JobPage(Struct, frozen=True):
    jobs: list[RegistrationJob]
    next: str | None


class JobStore:
    """Writes and reads jobs. Methods raise RedisError."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis

    async def write(self, job: RegistrationJob) -> None:
        """Store a job and renew its sign of life."""
        job = msgspec.structs.replace(job, updated_at=int(time.time()))
        async with self._redis.pipeline(transaction=True) as pipeline:
            pipeline.set(JOB_KEY.format(id=job.id), msgspec.json.encode(job), ex=RETENTION)
            pipeline.set(ALIVE_KEY.format(id=job.id), "1", ex=LIFETIME)
            for tenant in {_ALL, job.tenant or _ALL}:
                index = INDEX_KEY.format(tenant=tenant)
                pipeline.zadd(index, {job.id: job.created_at}, nx=True)
                pipeline.zremrangebyrank(index, 0, -MOST - 1)
                pipeline.expire(index, RETENTION)
            await pipeline.execute()

    async def create(self, job: RegistrationJob) -> RegistrationJob | None:
        """Store a new job; if a job with its id is there already, that one stays and is returned."""
        if await self._redis.set(JOB_KEY.format(id=job.id), msgspec.json.encode(job), ex=RETENTION, nx=True):
            await self.write(job)
            return None
        return await self.get(job.id)

    async def get(self, id: str) -> RegistrationJob | None:
        """Read a job."""
        document, alive = await self._redis.mget(JOB_KEY.format(id=id), ALIVE_KEY.format(id=id))
        return None if document is None else _seen(_decode(document), alive)

    async def list(self, tenant: str | None, *, after: str, limit: int) -> JobPage:
        """Read jobs, the newest first: a tenant's, or all."""
        index = INDEX_KEY.format(tenant=tenant or _ALL)
        begin = 0
        if after:
            rank = await cast(Any, self._redis.zrevrank(index, after))
            if rank is None:  # it has expired, and with it all that came after
                return JobPage([], None)
            begin = rank + 1
        ids = [id.decode() for id in await cast(Any, self._redis.zrevrange(index, begin, begin + limit))]
        shown = ids[:limit]
        jobs = []
        if shown:
            keys = [*(JOB_KEY.format(id=id) for id in shown), *(ALIVE_KEY.format(id=id) for id in shown)]
            found = await self._redis.mget(keys)
            pairs = zip(found[: len(shown)], found[len(shown) :], strict=True)
            jobs = [_seen(_decode(document), alive) for document, alive in pairs if document is not None]
        return JobPage(jobs, shown[-1] if len(ids) > limit else None)


def _seen(job: RegistrationJob, alive: bytes | str | None) -> RegistrationJob:
    if job.state in TERMINAL or alive is not None:
        return job
    error = Unavailable("the gateway that worked on it has gone; send the request again", code="job_interrupted")
    return job.enter(JobState.FAILED, error=problem(error))
