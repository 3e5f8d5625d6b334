"""Jobs: work that goes on after its request was answered."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from gateway.admin.call import Access, Call
from gateway.admin.endpoints.shapes import Page
from gateway.admin.kit import cursors
from gateway.admin.kit.endpoints import Answer, Endpoints, Input
from gateway.errors import NotFound
from gateway.registration.job_state import RegistrationJob

endpoints = Endpoints("jobs", "Work that goes on after its request was answered with 202.")


class JobPath(Input, frozen=True):
    job: Annotated[str, Meta(pattern="^job_[0-9a-f]{32}$", description="Its id.")]


class JobList(Struct, frozen=True):
    data: list[RegistrationJob]
    next: str | None


@endpoints.get("/jobs", access=Access.FILTERED)
async def list_jobs(call: Call, query: Page) -> Answer[JobList]:
    """List jobs of the last day, the newest first."""
    tenant = None if call.principal.operator else call.principal.tenant
    listing = f"jobs:{tenant or ''}"
    page = await call.gateway.jobs.list(tenant, after=cursors.decode(listing, query.cursor), limit=query.limit)
    return Answer(JobList(page.jobs, page.next and cursors.encode(listing, page.next)))


@endpoints.get("/jobs/{job}", access=Access.FILTERED)
async def show_job(call: Call, path: JobPath) -> Answer[RegistrationJob]:
    """Show a job."""
    job = await call.gateway.jobs.get(path.job)
    if job is None or not (call.principal.operator or job.tenant == call.principal.tenant):
        raise NotFound(f"no job has the id {path.job!r}, or it is more than a day old")
    return Answer(job)
