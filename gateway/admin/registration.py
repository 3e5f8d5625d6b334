"""Registers adapters in the background: fetched, checked, stored, tried on an engine, and named last."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import msgspec
from msgspec import Struct
from redis.exceptions import RedisError

from engine.adapters.format import CONFIG, WEIGHTS
from engine.adapters.registry import AdapterError, Manifest, NameTaken, Pointer, RegistryError
from engine.client import EngineGone, RequestFailed
from engine.config import CheckpointError
from engine.wire import SamplingParams
from gateway.adapters import Adapters
from gateway.admin.job_state import Job, JobState, Registered
from gateway.admin.job_store import LIFETIME, JobStore
from gateway.admin.problems import problem
from gateway.directory.change import Note
from gateway.directory.store import Directory
from gateway.engines import Pool
from gateway.errors import ApiError, Conflict, EngineFailed, Forbidden, InvalidRequest, TooLarge, Unavailable
from gateway.periodic import Periodic, cancel

log = logging.getLogger("roundhouse.admin")

MAX_WAITING = 16
"""Jobs that wait for the worker of one gateway."""
MAX_CONFIG_BYTES = 4 * 1024 * 1024
_LOAD_SECONDS = 120.0
_COPY = 4 * 1024 * 1024
_ABANDONED_SECONDS = 24 * 3600.0


class Registration(Struct, frozen=True, kw_only=True):
    """An adapter that is to be registered."""

    name: str
    folder: Path
    """Of its files, or where they are to be fetched to; removed at the end."""
    source: str | None
    """Normalised address from which they are fetched."""
    pool: Pool
    tenants: tuple[str, ...] | None
    pinned: bool
    description: str
    replace: bool
    """Have an existing name lead to it."""


class Registrar:
    """One worker and the queue before it.

    Args:
        folder: where files lie until they are in the registry.
        max_bytes: most bytes of weights.
    """

    def __init__(
        self, adapters: Adapters, directory: Directory, jobs: JobStore, folder: Path, *, max_bytes: int
    ) -> None:
        self._adapters = adapters
        self._directory = directory
        self._jobs = jobs
        self.folder = folder
        self.max_bytes = max_bytes
        self.uploads = asyncio.Semaphore(4)
        """Uploads that may be received at the same time."""
        self._queue: asyncio.Queue[tuple[Job, Registration]] = asyncio.Queue(MAX_WAITING)
        self._working: asyncio.Task[None] | None = None
        self._renewing = Periodic("registrations that wait", self._renew, LIFETIME / 3)
        self._waiting: dict[str, Job] = {}

    async def start(self) -> None:
        await asyncio.to_thread(_remove_abandoned, self.folder)
        self._working = asyncio.create_task(self._work(), name="registrations")
        await self._renewing.start()

    async def aclose(self) -> None:
        """Break off what is being done."""
        if self._working is not None:
            await cancel([self._working])
        await self._renewing.aclose()

    def check_room(self) -> None:
        """
        Raises:
            Unavailable: too many wait already.
        """
        if self._queue.full():
            raise Unavailable(
                "too many adapters are being registered", code="overloaded", headers={"retry-after": "30"}
            )

    async def submit(self, job: Job, registration: Registration) -> None:
        """Have it done. The folder is the registrar's from now on.

        Raises:
            Unavailable: see `check_room`.
        """
        try:
            self.check_room()
        except Unavailable as error:
            await self._jobs.write(job.enter(JobState.FAILED, error=problem(error)))
            raise
        self._waiting[job.id] = job
        self._queue.put_nowait((job, registration))

    async def _work(self) -> None:
        while True:
            job, registration = await self._queue.get()
            run = _Run(self._adapters, self._directory, self._jobs, job, registration, self.max_bytes)
            self._waiting.pop(job.id, None)
            try:
                await run.run()
            finally:
                await asyncio.to_thread(shutil.rmtree, registration.folder, ignore_errors=True)

    async def _renew(self) -> None:
        """Signs of life of those that wait."""
        for job in list(self._waiting.values()):
            with contextlib.suppress(RedisError, OSError):
                await self._jobs.write(job)


class _Run:
    """One registration."""

    def __init__(
        self,
        adapters: Adapters,
        directory: Directory,
        jobs: JobStore,
        job: Job,
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
        """One write at a time: news must not be overtaken by what was true before."""

    async def run(self) -> None:
        reporting = Periodic("progress of a registration", self._report, 1.0)
        await reporting.start()
        try:
            result = await self._steps()
            await self._enter(JobState.SUCCEEDED, result=result)
            log.info("adapter registered", extra={"adapter": self._what.name, "version": result.version})
        except ApiError as error:
            await self._fail(error)
        except (RedisError, OSError, RuntimeError, ValueError) as error:
            log.exception("registering an adapter failed", extra={"job": self._job.id})
            await self._fail(ApiError(f"the server failed while it worked on this: {type(error).__name__}"))
        finally:
            await reporting.aclose()

    async def _steps(self) -> Registered:
        what = self._what
        if what.source is not None:
            await self._enter(JobState.FETCHING)
            await asyncio.to_thread(fetch, what.source, what.folder, self._max_bytes, self._advance)
        await self._enter(JobState.CHECKING)
        # It is read twice: copied, then checked and hashed.
        self._done, self._total = 0, 2 * max(1, (what.folder / WEIGHTS).stat().st_size)
        manifest = await asyncio.to_thread(self._store)
        await self._enter(JobState.LOADING)
        replica = await try_on_engine(what.pool, manifest.version)
        await self._note(manifest.version)
        await asyncio.to_thread(self._point, manifest)
        await self._adapters.refresh()
        return Registered(what.name, manifest.version, replica)

    async def _note(self, version: str) -> None:
        """Tell the audit log which version the name is about to lead to."""
        noted = Note("adapter.point", self._what.name, self._job.tenant, {"version": version})
        await self._directory.apply([noted], actor=f"job:{self._job.id}")

    def _store(self) -> Manifest:
        try:
            return self._registry.add(self._what.folder, self._what.pool.directory, progress=self._advance)
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
        """Progress and signs of life."""
        with contextlib.suppress(RedisError, OSError):
            async with self._writing:
                await self._jobs.write(msgspec.structs.replace(self._job, progress=min(1.0, self._done / self._total)))

    async def _enter(self, state: JobState, **fields: Any) -> None:
        async with self._writing:
            self._job = self._job.enter(state, **fields)
            await self._jobs.write(self._job)

    async def _fail(self, error: ApiError) -> None:
        with contextlib.suppress(RedisError, OSError):  # its sign of life ends, and then it counts as interrupted
            await self._enter(JobState.FAILED, error=problem(error))
        log.info("adapter refused", extra={"adapter": self._what.name, "code": error.code})


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
    """Have an engine answer one token with an adapter, which loads it; its name, or None if none is connected.

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


def _remove_abandoned(folder: Path) -> None:
    """Folders that a process which has died left behind."""
    if folder.is_dir():
        for each in folder.iterdir():
            if time.time() - each.stat().st_mtime > _ABANDONED_SECONDS:
                shutil.rmtree(each, ignore_errors=True)
