"""Registers adapters in the background: fetched, checked, stored, tried on an engine, and named last.

What a job says of itself follows what was done, never the other way round; what Redis could not be told is told again
until Redis has taken it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import msgspec
from msgspec import Struct
from redis.exceptions import RedisError

from engine.adapters.format import CONFIG, WEIGHTS
from engine.adapters.registry import AdapterError, Manifest, NameTaken, Pointer, RegistryError
from engine.checkpoint.errors import CheckpointError
from engine.client.generation import EngineGone, RequestFailed
from engine.wire import SamplingParams
from gateway.access.directory.change import Note
from gateway.access.directory.store import Directory
from gateway.background import Kept, Periodic, failure_reporter
from gateway.engines.adapters import AdapterNames
from gateway.engines.pool import Pool
from gateway.errors import (
    ApiError,
    Conflict,
    EngineFailed,
    Forbidden,
    InvalidRequest,
    RateLimited,
    TooLarge,
    Unavailable,
)
from gateway.protocol.problems import problem
from gateway.registration.job_line import JobLine
from gateway.registration.job_state import TERMINAL, JobState, Registered, RegistrationJob
from gateway.registration.job_store import LIFETIME, JobStore
from gateway.registration.upload_room import Upload, UploadRoom

log = logging.getLogger("roundhouse.admin")

WORKERS = 2
"""Jobs that one gateway runs at the same time, each of another tenant."""
MAX_WAITING = 16
"""Most jobs that wait in one gateway."""
MAX_WAITING_OF_TENANT = 4
MAX_CONFIG_BYTES = 4 * 1024 * 1024
_LOAD_SECONDS = 120.0
_COPY = 4 * 1024 * 1024
_PRUNE = 600.0
"""Seconds between two searches for abandoned uploads."""


class Registration(Struct, frozen=True, kw_only=True):
    """An adapter to be registered, and how."""

    name: str
    upload: Upload
    """Files of the adapter, or where they are to be fetched to; removed at the end."""
    source: str | None
    """Normalised address from which the files are fetched."""
    pool: Pool
    tenants: tuple[str, ...] | None
    pinned: bool
    description: str
    replace: bool
    """Whether an existing name may be moved to the adapter."""


class Registrar:
    """Runs the workers and the queue before them.

    Args:
        room: where files lie until they are in the registry.
        max_bytes: most bytes of weights.
    """

    def __init__(
        self, adapters: AdapterNames, directory: Directory, jobs: JobStore, room: UploadRoom, *, max_bytes: int
    ) -> None:
        self._adapters = adapters
        self._directory = directory
        self._jobs = jobs
        self.room = room
        self.max_bytes = max_bytes
        self._line: JobLine[tuple[RegistrationJob, Registration]] = JobLine()
        self._parts: tuple[Kept | Periodic, ...] = (
            *(Kept("registrations", self._work) for _ in range(WORKERS)),
            Periodic("registrations that wait", self._renew, LIFETIME / 3),
            Periodic("abandoned uploads", room.prune, _PRUNE),
        )
        self._untold: dict[str, RegistrationJob] = {}
        """Jobs that wait, or have ended without Redis knowing it yet."""

    async def start(self) -> None:
        for part in self._parts:
            await part.start()

    async def aclose(self) -> None:
        """Stop, and break off running jobs."""
        for part in self._parts:
            await part.aclose()

    def check_room(self, tenant: str | None) -> None:
        """Args: tenant: whose job is to come; None: an operator's.

        Raises:
            Unavailable: too many wait already.
            RateLimited: too many of this tenant do.
        """
        if len(self._line) >= MAX_WAITING:
            raise Unavailable(
                "too many adapters are being registered", code="overloaded", headers={"retry-after": "30"}
            )
        if tenant is not None and self._line.waiting(tenant) >= MAX_WAITING_OF_TENANT:
            raise RateLimited(
                f"{MAX_WAITING_OF_TENANT} adapters of this tenant wait to be registered; send the next one later",
                retry_after=30,
                code="too_many_uploads",
            )

    async def submit(self, job: RegistrationJob, registration: Registration) -> None:
        """Queue a registration. The upload is the registrar's from now on.

        Raises:
            Unavailable, RateLimited: see `check_room`.
        """
        try:
            self.check_room(job.tenant)
        except (Unavailable, RateLimited) as error:
            await self._jobs.write(job.enter(JobState.FAILED, error=problem(error)))
            raise
        self._untold[job.id] = job
        self._line.put(job.tenant, (job, registration))

    async def _work(self) -> None:
        while True:
            tenant, (job, registration) = await self._line.take()
            self._untold.pop(job.id, None)
            try:
                run = _Run(self._adapters, self._directory, self._jobs, job, registration, self.max_bytes)
                self._untold[job.id] = await run.run()
                await self._renew()
            finally:
                self._line.done(tenant)
                await registration.upload.remove()

    async def _renew(self) -> None:
        """Renew the signs of life of waiting jobs, and store ended jobs that Redis could not be told of."""
        for id, job in list(self._untold.items()):
            if self._untold.get(id) is not job:
                continue  # it has begun or ended since: what is known of it here is out of date
            with contextlib.suppress(RedisError, OSError):
                await self._jobs.write(job)
                if job.state in TERMINAL and self._untold.get(id) is job:
                    del self._untold[id]


class _Run:
    """One running registration."""

    def __init__(
        self,
        adapters: AdapterNames,
        directory: Directory,
        jobs: JobStore,
        job: RegistrationJob,
        registration: Registration,
        max_bytes: int,
    ) -> None:
        self._adapters = adapters
        self._directory = directory
        self._registry = adapters.registry
        self._jobs = jobs
        self._job = job
        self._what = registration
        self._max_bytes = max_bytes
        self._done = 0
        self._total = 1
        self._writing = asyncio.Lock()
        """Lock that keeps writes in order: news must not be overtaken by what was true before."""

    async def run(self) -> RegistrationJob:
        """Run the registration; return the job as it has ended, which is yet to be stored."""
        reporting = Periodic("progress of a registration", self._report, 1.0)
        await reporting.start()
        try:
            result = await self._steps()
        except ApiError as error:
            return self._failed(error)
        except Exception as error:
            failure_reporter("registrations")()
            return self._failed(ApiError(f"the server failed while it worked on this: {type(error).__name__}"))
        finally:
            await reporting.aclose()
        log.info("adapter registered", extra={"adapter": self._what.name, "version": result.version})
        return self._job.enter(JobState.SUCCEEDED, result=result)

    def _failed(self, error: ApiError) -> RegistrationJob:
        log.info("adapter refused", extra={"adapter": self._what.name, "code": error.code})
        return self._job.enter(JobState.FAILED, error=problem(error))

    async def _steps(self) -> Registered:
        what = self._what
        if what.source is not None:
            await self._enter(JobState.FETCHING)
            await asyncio.to_thread(fetch, what.source, what.upload.folder, self._max_bytes, self._advance)
        await self._enter(JobState.CHECKING)
        # It is read twice: copied, then checked and hashed.
        self._done, self._total = 0, 2 * max(1, (what.upload.folder / WEIGHTS).stat().st_size)
        manifest = await asyncio.to_thread(self._store)
        await self._enter(JobState.LOADING)
        replica = await try_on_engine(what.pool, manifest.version)
        await self._note(manifest.version)
        await asyncio.to_thread(self._point, manifest)
        await self._adapters.refresh()
        return Registered(what.name, manifest.version, replica)

    async def _note(self, version: str) -> None:
        """Enter in the audit log which version the name is about to mean."""
        noted = Note("adapter.point", self._what.name, self._job.tenant, {"version": version})
        await self._directory.apply([noted], actor=f"job:{self._job.id}")

    def _store(self) -> Manifest:
        try:
            return self._registry.add(self._what.upload.folder, self._what.pool.path, progress=self._advance)
        except AdapterError as error:
            raise InvalidRequest(str(error), code="adapter_refused") from None
        except CheckpointError as error:
            raise InvalidRequest(f"the base model cannot be used: {error}", code="adapter_refused") from None
        except RegistryError as error:
            raise Unavailable(str(error)) from None

    def _point(self, manifest: Manifest) -> None:
        what = self._what

        def swapped(pointer: Pointer) -> Pointer:
            if self._job.tenant is not None and pointer.tenants != what.tenants:
                raise Forbidden(f"{what.name!r} is no longer this tenant's alone; only operators may change it")
            if pointer.model != what.pool.name:
                raise Conflict(f"{what.name!r} is an adapter of {pointer.model}, this one is of {what.pool.name}")
            return msgspec.structs.replace(pointer, version=manifest.version)

        try:
            if what.replace and what.name in self._registry.names():
                self._registry.edit(what.name, swapped)
                return
            self._registry.point(
                what.name,
                manifest.version,
                model=what.pool.name,
                tenants=what.tenants,
                pinned=what.pinned,
                description=what.description,
                new=True,
            )
        except NameTaken as error:
            raise Conflict(str(error), param="name", code="already_exists") from None
        except RegistryError as error:
            raise Unavailable(str(error)) from None

    def _advance(self, count: int) -> None:
        self._done += count

    async def _report(self) -> None:
        """Store progress and signs of life."""
        with contextlib.suppress(RedisError, OSError):
            async with self._writing:
                await self._jobs.write(msgspec.structs.replace(self._job, progress=min(1.0, self._done / self._total)))

    async def _enter(self, state: JobState) -> None:
        self._job = self._job.enter(state)
        await self._report()  # if Redis does not take it, the next report says it


def fetch(source: str, folder: Path, max_bytes: int, advance: Callable[[int], object]) -> None:
    """Copy an adapter's two files from a store. Blocks.

    Raises:
        InvalidRequest, Forbidden, TooLarge, Unavailable: why it cannot be fetched.
    """
    folder.mkdir(parents=True)
    for name, most in ((CONFIG, MAX_CONFIG_BYTES), (WEIGHTS, max_bytes)):
        try:
            with _open(source, name) as reader, (folder / name).open("xb") as writer:
                size = 0
                while chunk := reader.read(_COPY):
                    size += len(chunk)
                    if size > most:
                        raise TooLarge(f"source: {name} may have {most} bytes", param="source")
                    writer.write(chunk)
                    advance(len(chunk))
        except FileNotFoundError:
            raise InvalidRequest(f"source: there is no {name}", param="source", code="adapter_refused") from None
        except ApiError:
            raise
        except Exception as error:  # stores raise exceptions of their own libraries
            log.warning("adapter cannot be fetched", extra={"error": f"{type(error).__name__}: {error}"})
            raise Unavailable(f"source: the store cannot be read ({type(error).__name__})", param="source") from None


def _open(source: str, name: str) -> Any:
    if not source.startswith("file://"):
        return fsspec.open(f"{source}/{name}", "rb")
    folder = Path(source.removeprefix("file://"))
    path = (folder / name).resolve()
    if path.parent != folder:
        raise Forbidden("source: it leads elsewhere through a symbolic link", param="source", code="source_not_allowed")
    return path.open("rb")


async def try_on_engine(pool: Pool, version: str) -> str | None:
    """Let an engine answer one token with an adapter, which loads it; return its name, or None if none is connected.

    Raises:
        EngineFailed: it cannot.
    """
    connected = [engine for engine in pool.engines if engine.client.connected]
    if not connected:
        return None
    engine = min(connected, key=lambda each: each.load)
    try:
        async with asyncio.timeout(_LOAD_SECONDS):
            sampling = SamplingParams(max_tokens=1)
            generation = engine.client.generate(pool.text.encode("a"), sampling, adapter=version, service="batch")
            async with generation:
                async for _ in generation:
                    pass
    except (EngineGone, RequestFailed, TimeoutError) as error:
        reason = str(error) or "it took too long"
        raise EngineFailed(f"{engine.name} cannot load it: {reason}", code="adapter_not_loaded") from None
    return engine.name
