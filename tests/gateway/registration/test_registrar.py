"""What the registrar tells Redis of jobs, and that no job holds up its tenant's others for good."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, cast

import pytest

import gateway.registration.registrar
from gateway.registration.job_state import JobState, RegistrationJob
from gateway.registration.job_store import JobStore
from gateway.registration.registrar import Registrar, Registration
from gateway.registration.upload_room import UploadRoom

pytestmark = pytest.mark.anyio


def job(id: str) -> RegistrationJob:
    return RegistrationJob(id=id, kind="adapter.register", tenant="acme", adapter="acme:pirate")


class Jobs(JobStore):
    """Keeps what is written; `meanwhile` is called during the next write."""

    def __init__(self) -> None:
        self.written: list[tuple[str, JobState]] = []
        self.meanwhile = lambda: None

    async def write(self, job: RegistrationJob) -> None:
        meanwhile, self.meanwhile = self.meanwhile, lambda: None
        meanwhile()
        self.written.append((job.id, job.state))


def registrar(jobs: Jobs, folder: Path) -> Registrar:
    room = UploadRoom(folder, max_tenant_bytes=100)
    return Registrar(cast(Any, None), cast(Any, None), jobs, room, max_bytes=100)


async def test_a_job_that_has_begun_meanwhile_is_not_said_to_wait(tmp_path: Path) -> None:
    """What it was when the round of signs of life began could come after what it is now, and stay."""
    jobs = Jobs()
    made = registrar(jobs, tmp_path)
    made._untold = {"first": job("first"), "second": job("second")}
    jobs.meanwhile = lambda: made._untold.pop("second") and None
    await made._renew()
    assert jobs.written == [("first", JobState.QUEUED)]


async def test_a_job_that_comes_twice_leaves_its_tenant_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As when Redis has lost an idempotency key between two requests."""

    class Run:
        def __init__(
            self, adapters: object, directory: object, jobs: object, job: RegistrationJob, *more: object
        ) -> None:
            self.job = job

        async def run(self) -> RegistrationJob:
            ended.append(self.job.id)
            if len(ended) == 3:
                all_ended.set()
            return self.job.enter(JobState.FAILED)

    monkeypatch.setattr(gateway.registration.registrar, "_Run", Run)
    ended: list[str] = []
    all_ended = asyncio.Event()
    made = registrar(Jobs(), tmp_path)
    for id in ("same", "same", "next"):
        what = Registration(
            name="acme:pirate",
            upload=made.room.begin(None),
            source=None,
            pool=cast(Any, None),
            tenants=None,
            pinned=False,
            description="",
            replace=False,
        )
        await made.submit(job(id), what)
    await made.start()
    try:
        async with asyncio.timeout(20):
            await all_ended.wait()
    finally:
        await made.aclose()
    assert ended == ["same", "same", "next"]
