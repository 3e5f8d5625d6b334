"""Jobs of several tenants are done in turn, and no two of one tenant at the same time."""

from __future__ import annotations

import asyncio

import pytest

from gateway.registration.job_line import JobLine

pytestmark = pytest.mark.anyio


async def test_tenants_take_turns() -> None:
    """However many jobs one of them has sent before."""
    line: JobLine[int] = JobLine()
    for number in range(3):
        line.put("acme", number)
    line.put("other", 10)
    line.put(None, 20)
    assert (len(line), line.waiting("acme"), line.waiting("nobody")) == (5, 3, 0)
    order = []
    while len(line):
        tenant, job = await line.take()
        order.append(job)
        line.done(tenant)
    assert order == [0, 10, 20, 1, 2]


async def test_a_tenants_next_job_waits_for_its_last() -> None:
    line: JobLine[int] = JobLine()
    line.put("acme", 1)
    line.put("acme", 2)
    assert await line.take() == ("acme", 1)
    taking = asyncio.create_task(line.take())
    await asyncio.sleep(0)
    line.put("other", 3)
    assert await taking == ("other", 3)
    taking = asyncio.create_task(line.take())
    await asyncio.sleep(0)
    assert not taking.done()
    line.done("acme")
    assert await taking == ("acme", 2)
