"""Runs batches: claims them, answers their lines beside everything else, and takes up what other gateways have left."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import time
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any
from weakref import WeakValueDictionary

from redis.exceptions import RedisError

from gateway.access.identity.principal import Principal
from gateway.background import BackgroundTasks, Periodic, cancel, failure_reporter
from gateway.batches.files import FileGone
from gateway.batches.lines import (
    FileCheck,
    LineAnswer,
    LineRequest,
    LineSplitter,
    abandoned_line,
    answered_line,
    parse_line,
    pause,
    usage_of,
)
from gateway.batches.state import WINDOW, BatchDocument, BatchStatus, BatchStep, Endpoint, LineError, next_step
from gateway.batches.store import BatchStore
from gateway.config.settings import Settings
from gateway.protocol.stream import TokenUsage
from gateway.telemetry.logs import bind_task
from gateway.telemetry.metrics.batches import BatchMetrics

log = logging.getLogger("roundhouse.batches")

MOST = 64
"""Most batches that one gateway has."""
TICK = 1.0
"""Seconds between two calls that claim batches and renew leases."""
LOOK = 1.0
"""Seconds between two looks whether a batch was cancelled or has expired, and between attempts without Redis."""
STORING = 30.0
"""Seconds that the document of a queued batch may take to be stored."""
AFTER_A_FAULT = 30.0
"""Seconds until a batch goes on that a fault of ours has stopped."""

AnswerLine = Callable[[Principal, Endpoint, dict[str, Any]], Awaitable[LineAnswer]]
"""Answers a request of somebody to an endpoint; errors are answers too."""


class BatchWorker:
    """Runs this gateway's batches."""

    def __init__(
        self, gateway: str, store: BatchStore, answer: AnswerLine, settings: Settings, metrics: BatchMetrics
    ) -> None:
        """Args: gateway: this one's id."""
        self._gateway = gateway
        self.store = store
        self.answer = answer
        self.metrics = metrics
        self.max_line = settings.server.max_message_bytes
        self.slots = asyncio.Semaphore(settings.batches.lines_at_once)
        """Places for lines that run."""
        self._per_tenant = settings.batches.lines_at_once_per_tenant
        self._tenants: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()
        self._runs: dict[tuple[str, str], tuple[_Run, asyncio.Task[None]]] = {}
        self._tasks = BackgroundTasks("batches")
        self._report = failure_reporter("batches")
        self._claiming = Periodic("claims of batches", self._claim, TICK)
        self.running = 0
        """Number of lines that run."""
        metrics.watch(
            running=lambda: self.running, waiting=lambda: sum(run.left for run, _ in self._runs.values()) - self.running
        )

    def places(self, tenant: str) -> asyncio.Semaphore:
        """Return the places for one tenant's lines."""
        return self._tenants.setdefault(tenant, asyncio.Semaphore(self._per_tenant))

    async def start(self) -> None:
        """Start claiming and running batches."""
        await self._claiming.start()

    async def aclose(self) -> None:
        """Stop, and leave the batches to other gateways."""
        await self._claiming.aclose()
        await self._tasks.aclose()
        with contextlib.suppress(RedisError, OSError):  # leases end by themselves too
            await self.store.queue.release(self._gateway)

    async def _claim(self) -> None:
        try:
            own = await self.store.queue.claim(self._gateway, MOST)
        except (RedisError, OSError) as error:
            log.warning("batches not claimed", extra={"error": type(error).__name__})
            return
        for lost in self._runs.keys() - own:
            self._runs[lost][1].cancel()
        for tenant, id in own - self._runs.keys():
            run = _Run(self, tenant, id)
            task = self._tasks.begin(self._keep(run))
            self._runs[tenant, id] = run, task
            task.add_done_callback(lambda _, key=(tenant, id): self._runs.pop(key))  # type: ignore[misc]

    async def _keep(self, run: _Run) -> None:
        """Run a batch to its end, whatever happens in between."""
        bind_task(batch_id=run.id)
        while True:
            try:
                await run.run()
                return
            except (RedisError, OSError) as error:
                log.warning("a batch waits for Redis", extra={"error": type(error).__name__})
                await asyncio.sleep(LOOK)
            except Exception:
                self._report()
                await asyncio.sleep(AFTER_A_FAULT)


class _Run:
    """One batch that this gateway runs. Methods raise RedisError and OSError where Redis does not answer."""

    def __init__(self, worker: BatchWorker, tenant: str, id: str) -> None:
        self.id = id
        self.left = 0
        """Number of lines without a result."""
        self._tenant = tenant
        self._worker = worker
        self._store = worker.store
        self._places = worker.places(tenant)

    async def run(self) -> None:
        """Do what is to be done, step by step, until the batch has ended."""
        while (batch := await self._stored()) is not None:
            try:
                match next_step(batch, time.time()):
                    case BatchStep.VALIDATE:
                        await self._validate(batch)
                    case BatchStep.ANSWER:
                        await self._answer(batch)
                    case BatchStep.ABANDON:
                        await self._abandon(batch)
                    case BatchStep.FINISH:
                        await self._end(batch, BatchStatus.COMPLETED)
                    case BatchStep.NOTHING:
                        break
            except FileGone:
                gone = LineError("file_not_found", f"the file {batch.input_file_id} is not there any more")
                await self._end(batch, BatchStatus.FAILED, errors=(gone,))
        await self._store.queue.remove(self._tenant, self.id)

    async def _stored(self) -> BatchDocument | None:
        """Return the batch; None if it is gone, or whoever made it did not come to store it."""
        deadline = time.monotonic() + STORING
        while True:
            batch = await self._store.get(self._tenant, self.id)
            if batch is not None or time.monotonic() > deadline:
                return batch
            await asyncio.sleep(LOOK)

    async def _validate(self, batch: BatchDocument) -> None:
        check = FileCheck(batch.endpoint, self._worker.max_line)
        async with contextlib.aclosing(self._lines(batch)) as lines:
            async for text in lines:
                check.line(text)
                if check.full:
                    break
        if check.errors:
            await self._end(batch, BatchStatus.FAILED, errors=check.errors)
        else:
            found = {"total": check.total, "lines": check.lines}
            await self._store.move(batch, BatchStatus.IN_PROGRESS, time.time(), **found)

    async def _answer(self, batch: BatchDocument) -> None:
        """Answer lines until all have a result, or the batch is cancelled or expires."""
        answering = asyncio.create_task(self._answer_lines(batch))
        try:
            while not (await asyncio.wait([answering], timeout=LOOK))[0]:
                with contextlib.suppress(RedisError, OSError):
                    seen = await self._store.get(self._tenant, self.id)
                    if seen is None or next_step(seen, time.time()) is not BatchStep.ANSWER:
                        return
            answering.result()
        finally:
            await cancel([answering])
        if len(await self._store.written(batch)) >= batch.total:
            await self._store.move(batch, BatchStatus.FINALIZING, time.time())
        else:  # Redis has dropped results to make room
            await asyncio.sleep(LOOK)

    async def _answer_lines(self, batch: BatchDocument) -> None:
        lines = BackgroundTasks("lines of batches")
        try:
            async with contextlib.aclosing(self._requests(batch)) as requests:
                async for number, request in requests:
                    await self._places.acquire()
                    line = lines.begin(self._answer_line(batch, number, request))
                    line.add_done_callback(lambda _: self._places.release())
            await lines.wait(WINDOW)
        except Exception:
            await lines.wait(WINDOW)  # what was begun is not lost with what cannot be read
            raise
        finally:
            await lines.aclose()

    async def _answer_line(self, batch: BatchDocument, number: int, request: LineRequest) -> None:
        """Answer a line, if need be with several tries, and write its result."""
        worker, tries = self._worker, Counter[str | None]()
        while True:
            async with worker.slots:
                worker.running += 1
                try:
                    answer = await worker.answer(batch.principal, batch.endpoint, request.body)
                finally:
                    worker.running -= 1
            seconds = pause(answer, tries[answer.code])
            if seconds is None:
                break
            tries[answer.code] += 1
            await asyncio.sleep(seconds)
        text, failed = answered_line(_new_result_id(), request.custom_id, answer), answer.status >= 400
        while True:
            try:
                await self._record(batch, number, text, usage_of(answer), failed=failed)
                return
            except (RedisError, OSError) as error:
                log.warning("a result waits for Redis", extra={"error": type(error).__name__})
                await asyncio.sleep(LOOK)

    async def _abandon(self, batch: BatchDocument) -> None:
        """Give lines without a result an error, and end the batch."""
        if batch.status is BatchStatus.CANCELLING:
            status, message = BatchStatus.CANCELLED, "This request was not executed because the batch was cancelled."
        else:
            status = BatchStatus.EXPIRED
            message = "This request could not be executed before the completion window expired."
        if batch.total:
            with contextlib.suppress(FileGone):  # nothing tells which lines there were
                async with contextlib.aclosing(self._requests(batch)) as requests:
                    async for number, request in requests:
                        text = abandoned_line(_new_result_id(), request.custom_id, f"batch_{status}", message)
                        await self._record(batch, number, text, TokenUsage(), failed=True)
        await self._end(batch, status)

    async def _record(self, batch: BatchDocument, number: int, text: bytes, usage: TokenUsage, *, failed: bool) -> None:
        if await self._store.record(batch, number, text, usage, failed=failed):
            self._worker.metrics.result(failed=failed)
            self.left -= 1

    async def _end(self, batch: BatchDocument, status: BatchStatus, errors: tuple[LineError, ...] = ()) -> None:
        now = time.time()
        counted = await self._store.close(batch, now)
        if await self._store.move(batch, status, now, errors=errors, counted=counted):
            log.info("batch ended", extra={"tenant": self._tenant, "status": status.value, "requests": batch.total})

    async def _requests(self, batch: BatchDocument) -> AsyncGenerator[tuple[int, LineRequest], None]:
        """Yield the requests that have no result, with the numbers of their lines from 0."""
        written, number = await self._store.written(batch), -1
        self.left = batch.total - len(written)
        async with contextlib.aclosing(self._lines(batch)) as lines:
            async for text in lines:
                number += 1
                if number not in written and text.strip():
                    yield number, parse_line(text, batch.endpoint)

    async def _lines(self, batch: BatchDocument) -> AsyncGenerator[bytes, None]:
        """Yield all lines of the input. Raises FileGone: it is not there."""
        files, splitter = self._store.files, LineSplitter()
        file = await files.get(self._tenant, batch.input_file_id)
        if file is None:
            raise FileGone
        async with contextlib.aclosing(files.content(self._tenant, file)) as pieces:
            async for piece in pieces:
                for line in splitter.push(piece):
                    yield line
                await asyncio.sleep(0)  # several pieces come at once
        for line in splitter.end():
            yield line


def _new_result_id() -> str:
    return f"batch_req_{secrets.token_hex(12)}"
