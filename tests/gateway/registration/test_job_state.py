"""A job's states, and what Redis holds of it."""

from __future__ import annotations

import itertools

import pytest
from redis.asyncio import Redis

from gateway.registration.job_state import TERMINAL, JobState, RegistrationJob
from gateway.registration.job_store import ALIVE_KEY, MOST, JobStore

ORDER = [JobState.QUEUED, JobState.FETCHING, JobState.CHECKING, JobState.LOADING, JobState.SUCCEEDED]


def job(number: int = 0, **fields: object) -> RegistrationJob:
    return RegistrationJob(
        id=f"job_{number:032x}", kind="adapter.register", tenant="acme", adapter="acme:pirate", **fields
    )  # type: ignore[arg-type]


def test_states_follow_in_order() -> None:
    """Forwards only; any but an ended one may fail; fetching may be left out."""
    for before, after in itertools.product(JobState, JobState):
        allowed = after is JobState.FAILED and before not in TERMINAL
        if before in ORDER and after in ORDER:
            step = ORDER.index(after) - ORDER.index(before)
            allowed |= step == 1 or (before, after) == (JobState.QUEUED, JobState.CHECKING)
        if allowed:
            assert job(state=before).enter(after).state is after
        else:
            with pytest.raises(RuntimeError):
                job(state=before).enter(after)


@pytest.mark.anyio
async def test_a_job_whose_gateway_has_gone_counts_as_failed(redis_url: str) -> None:
    """Once its sign of life has expired; an ended job needs none."""
    async with Redis.from_url(redis_url) as redis:
        await redis.flushall()
        store = JobStore(redis)
        await store.write(job(1, state=JobState.CHECKING))
        await store.write(job(2, state=JobState.SUCCEEDED))
        running = await store.get(job(1).id)
        assert running is not None
        assert running.state is JobState.CHECKING
        for number in (1, 2):
            assert await redis.ttl(ALIVE_KEY.format(id=job(number).id)) > 0
            await redis.delete(ALIVE_KEY.format(id=job(number).id))
        page = await store.list("acme", after="", limit=10)
        states = {each.id: (each.state, each.error and each.error.code) for each in page.jobs}
        assert states == {
            job(1).id: (JobState.FAILED, "job_interrupted"),
            job(2).id: (JobState.SUCCEEDED, None),
        }


@pytest.mark.anyio
async def test_a_job_is_made_once(redis_url: str) -> None:
    """The second one with the same id is told of the first."""
    async with Redis.from_url(redis_url) as redis:
        await redis.flushall()
        store = JobStore(redis)
        assert await store.create(job(1)) is None
        known = await store.create(job(1))
        assert known is not None
        assert known.adapter == "acme:pirate"


@pytest.mark.anyio
async def test_lists_are_bounded_and_of_one_tenant(redis_url: str) -> None:
    """The newest first; pages follow each other."""
    async with Redis.from_url(redis_url) as redis:
        await redis.flushall()
        store = JobStore(redis)
        for number in range(5):
            await store.write(job(number, created_at=number))
        first = await store.list("acme", after="", limit=3)
        second = await store.list("acme", after=first.next or "", limit=3)
        assert [each.created_at for each in (*first.jobs, *second.jobs)] == [4, 3, 2, 1, 0]
        assert second.next is None
        assert (await store.list("other", after="", limit=3)).jobs == []
        assert len((await store.list(None, after="", limit=10)).jobs) == 5
        assert (await store.list("acme", after="job_gone", limit=3)).jobs == []
        await redis.zadd("rh1:{jobs}:ids:acme", {f"old-{number}": -number for number in range(MOST)})
        await store.write(job(9, created_at=9))
        assert await redis.zcard("rh1:{jobs}:ids:acme") == MOST
