"""Registrations in the background: they wait for each other, fail, are repeated, and end nothing but themselves."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from redis.exceptions import RedisError

from gateway.engines.pool import Pool
from gateway.registration import registrar
from gateway.registration.job_state import JobState, RegistrationJob
from tests.gateway.admin.conftest import Administer, problem
from tests.gateway.admin.endpoints.conftest import finished, form, registered, upload
from tests.gateway.frame_engine import FrameEngine

pytestmark = pytest.mark.anyio


async def test_a_repeated_upload_is_one_job(administer: Administer, frames: FrameEngine, folders: list[Path]) -> None:
    """With the same idempotency key; other files under it are refused."""
    async with administer(engines={"small": [frames.address]}) as api:
        headers = {"idempotency-key": "once"}
        arguments = form(folders[0], name="acme:pirate")
        first = await api.acme.post("/adapters", headers=headers, **arguments)
        again = await api.acme.post("/adapters", headers=headers, **arguments)
        assert (await finished(api.acme, first))["id"] == (await finished(api.acme, again))["id"]
        assert again.headers["idempotent-replayed"] == "true"
        other = await api.acme.post("/adapters", headers=headers, **form(folders[1], name="acme:second"))
        problem(other, 409, "idempotency_key_reused")
        assert len(frames.generated) == 1


async def test_a_registration_does_not_swap_a_name_that_is_shared_meanwhile(
    administer: Administer, frames: FrameEngine, folders: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who may change a name is asked when it is changed, not only when the upload begins."""
    async with administer(engines={"small": [frames.address]}) as api:
        own = await registered(api, folders[0])
        tried = registrar.try_on_engine

        async def shared(pool: Pool, version: str) -> str | None:
            change = {"tenants": ["acme", "other"]}
            await api.operator.patch("/adapters/acme:pirate", json=change, headers={"if-match": "*"})
            return await tried(pool, version)

        monkeypatch.setattr(registrar, "try_on_engine", shared)
        job = await finished(api.acme, await upload(api.acme, folders[1], name="acme:pirate", replace=True))
        assert (job["state"], job["error"]["code"]) == ("failed", "forbidden")
        assert (await api.acme.get("/adapters/acme:pirate")).json()["version"] == own.json()["version"]


async def test_a_state_that_redis_does_not_take_ends_nothing(
    administer: Administer, frames: FrameEngine, folders: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The adapter is registered, its job says so as soon as it can, and the next one is worked on."""
    async with administer(engines={"small": [frames.address]}) as api:
        jobs = api.served.gateway.jobs
        write, refused = jobs.write, 0

        async def refuses(job: RegistrationJob) -> None:
            nonlocal refused
            if job.state is not JobState.QUEUED and refused < 5:
                refused += 1
                raise RedisError("down")
            await write(job)

        monkeypatch.setattr(jobs, "write", refuses)
        monkeypatch.setattr(registrar, "LIFETIME", 0.1)
        first = await upload(api.acme, folders[0], name="acme:first")
        second = await upload(api.acme, folders[1], name="acme:second")
        for made in (second, first):
            job = await finished(api.acme, made)
            assert job["state"] == "succeeded", job
        assert refused == 5


async def test_a_job_that_takes_long_holds_up_no_other_tenant(
    administer: Administer, frames: FrameEngine, folders: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its tenant's next one waits."""
    async with administer(engines={"small": [frames.address]}) as api:
        tried, go_on = registrar.try_on_engine, asyncio.Event()
        held: list[str] = []

        async def slow(pool: Pool, version: str) -> str | None:
            if not held:
                held.append(version)
                await go_on.wait()
            return await tried(pool, version)

        monkeypatch.setattr(registrar, "try_on_engine", slow)
        first = await upload(api.acme, folders[0], name="acme:first")
        second = await upload(api.acme, folders[1], name="acme:second")
        others = await finished(api.other, await upload(api.other, folders[1], name="other:one"))
        assert others["state"] == "succeeded", others
        waiting = (await api.acme.get(second.headers["location"].removeprefix("/admin/v1"))).json()
        assert waiting["state"] == "queued"
        go_on.set()
        for made in (first, second):
            assert (await finished(api.acme, made))["state"] == "succeeded"


async def test_a_tenants_uploads_have_so_many_bytes_together(
    administer: Administer, frames: FrameEngine, folders: list[Path]
) -> None:
    """Until they are registered."""
    size = sum((folders[0] / name).stat().st_size for name in ("adapter_config.json", "adapter_model.safetensors"))
    adapters = {"max_upload_bytes_per_tenant": size // 2}
    async with administer(engines={"small": [frames.address]}, adapters=adapters) as api:
        refusal = await upload(api.acme, folders[0], name="acme:pirate")
        assert "max_upload_bytes_per_tenant" in problem(refusal, 429, "too_many_uploads")["detail"]
        assert int(refusal.headers["retry-after"]) > 0
        job = await finished(api.operator, await upload(api.operator, folders[0], name="pirate"))
        assert job["state"] == "succeeded", job
