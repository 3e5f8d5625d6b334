"""One supervised child process: started, restarted when it dies, stopped in order, and never left behind.

Children run in sessions of their own, so that Ctrl-C in a terminal reaches the supervisor only, which ends them in the
right order. On Linux the kernel ends them if the supervisor is killed without a chance to.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import logging
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from time import monotonic

log = logging.getLogger("roundhouse.supervisor")

_FIRST_BACKOFF, _LONGEST_BACKOFF = 0.5, 10.0
_STEADY = 30.0
"""Seconds a child must have run for its next failure to count as the first."""
CONFIGURATION_ERROR = 2
"""Exit status of a child that cannot run with what it was given: starting it again would not help."""

_libc = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None
_PR_SET_PDEATHSIG = 1


class ChildFailed(Exception):
    """A child cannot be run; its last output is on standard error."""


class Misconfigured(ChildFailed):
    """It says that it cannot run with what it was given: starting it again would not help."""


class Child:
    """A process that is meant to run for as long as its supervisor."""

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        environment: Mapping[str, str] | None = None,
        *,
        files: Sequence[int] = (),
        grace: float = 10.0,
        orphaned: signal.Signals = signal.SIGTERM,
        heard: Callable[[bytes], None] | None = None,
    ) -> None:
        """
        Args:
            files: what it inherits.
            grace: seconds in which it must end when it is asked to.
            orphaned: the signal with which it ends if its supervisor is killed.
            heard: called with each line that it prints.
        """
        self.name = name
        self._files = files
        self._grace = grace
        self._orphaned = orphaned
        self._heard = heard
        self._command = list(command)
        self._environment = {**os.environ, **(environment or {})}
        self._process: asyncio.subprocess.Process | None = None
        self._stopping = asyncio.Event()
        self.restarts = 0

    @property
    def pid(self) -> int | None:
        """Id of the running process."""
        return self._process.pid if self._process and self._process.returncode is None else None

    async def run(self, started: Callable[[], None] = lambda: None, again: Callable[[], bool] = lambda: True) -> None:
        """Start the child and start it again whenever it dies, until `stop` or cancellation.

        Args:
            started: called after every start.
            again: whether to start it again, now that it has died.

        Raises:
            ChildFailed: the program does not exist, says that its configuration cannot work, or is not started again.
        """
        backoff = _FIRST_BACKOFF
        try:
            while not self._stopping.is_set():
                begun = monotonic()
                process = self._process = await self._start()
                if self._stopping.is_set():  # meanwhile, when there was nothing to end
                    return
                started()
                status = await self._ended(process)
                if self._stopping.is_set():
                    return
                if status == CONFIGURATION_ERROR:
                    raise Misconfigured(f"{self.name} cannot run as configured (see its message above)")
                if not again():
                    raise ChildFailed(f"{self.name} ended with status {status}")
                backoff = _FIRST_BACKOFF if monotonic() - begun > _STEADY else min(backoff * 2, _LONGEST_BACKOFF)
                log.error(
                    "child died, starting it again", extra={"child": self.name, "status": status, "in_seconds": backoff}
                )
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._stopping.wait(), backoff)
                self.restarts += 1
        finally:
            await self.stop()

    async def stop(self) -> None:
        """Ask the child to end, wait, and kill it if it takes too long."""
        self._stopping.set()
        process = self._process
        if process is None or process.returncode is not None:
            return
        self.interrupt()
        try:
            await asyncio.wait_for(process.wait(), self._grace)
        except TimeoutError:
            log.warning("child did not end in time, killing it", extra={"child": self.name})
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()

    def interrupt(self) -> None:
        """Send SIGTERM to the running process."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.terminate()

    async def _ended(self, process: asyncio.subprocess.Process) -> int:
        """Return the exit status of the child when it has ended; until then, pass on what it prints."""
        if process.stdout is None or self._heard is None:
            return await process.wait()
        hearing = asyncio.create_task(_lines(process.stdout, self._heard))
        try:
            return await process.wait()
        finally:
            hearing.cancel()

    async def _start(self) -> asyncio.subprocess.Process:
        parent = os.getpid()
        try:
            return await asyncio.create_subprocess_exec(
                *self._command,
                env=self._environment,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.DEVNULL if self._heard is None else asyncio.subprocess.PIPE,
                start_new_session=True,
                pass_fds=self._files,
                preexec_fn=lambda: die_with(parent, self._orphaned),
            )
        except OSError as error:
            raise ChildFailed(f"{self.name} cannot be started: {error}") from error


async def _lines(output: asyncio.StreamReader, heard: Callable[[bytes], None]) -> None:
    async for line in output:
        heard(line)


def die_with(parent: int, how: signal.Signals = signal.SIGTERM) -> None:
    """In the child, before it becomes its program: have the kernel end it when the supervisor is gone."""
    if _libc is not None:
        _libc.prctl(_PR_SET_PDEATHSIG, how)
        if os.getppid() != parent:
            os._exit(1)
