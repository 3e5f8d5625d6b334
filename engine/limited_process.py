"""A process for work whose cost cannot be known beforehand, within limits of CPU time and memory.

No thread can be stopped in the middle of a computation, and none has memory of its own. So what may exhaust time,
memory or the stack is done by another process, which may die of it and is started again. Messages are bytes, each
after its length in 4 bytes; all of them are answered.
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import IO

import msgspec

LENGTH_BYTES = 4
START_SECONDS = 120.0
PATIENCE = 10.0
"""Wall seconds, for a busy machine, per CPU second of a message; a longer one counts as hung."""
_READY = b"ready"


class ProcessLimits(msgspec.Struct, frozen=True, array_like=True):
    """What one message may cost."""

    cpu_seconds: float
    memory_bytes: int
    """Memory beyond what the process had when it was ready."""


class _Start(msgspec.Struct, frozen=True, array_like=True):
    limits: ProcessLimits
    setup: bytes


class LimitExceeded(Exception):
    """A message cost more than it may; the text says what, as an object of "takes"."""


class LimitedProcess:
    """A process that runs `serve`, started when it is first needed, and again after it has died. For one thread."""

    def __init__(self, module: str, setup: bytes, limits: ProcessLimits) -> None:
        """`module` is run as the main one; it passes to `serve` what makes a handler of messages from `setup`."""
        self._module, self._limits = module, limits
        self._start_message = start_message(limits, setup)
        self._process: subprocess.Popen[bytes] | None = None

    def ask(self, message: bytes) -> bytes:
        """Return the answer to a message; neither is empty.

        Raises:
            LimitExceeded: the process did not survive it.
            OSError: the process cannot be started, or was ended by something else.
        """
        if self._process is None:
            self._process = _start(self._module)
            try:
                self._ask(self._start_message, START_SECONDS)
            except LimitExceeded as error:
                raise OSError(f"the process {self._module} does not start") from error
        return self._ask(message, PATIENCE * self._limits.cpu_seconds)

    def kill(self) -> None:
        """End the process; a thread that waits for an answer gets an OSError."""
        process = self._process
        if process is not None:
            process.kill()

    def close(self) -> None:
        """Release what the process held; no thread may wait for an answer."""
        if self._process is not None:
            self._process.kill()
            self._bury(self._process)

    def _bury(self, process: subprocess.Popen[bytes]) -> int:
        """Return the exit status of a process that has died or is about to."""
        self._process = None
        with contextlib.suppress(BrokenPipeError):
            process.communicate()
        return process.returncode

    def _ask(self, message: bytes, seconds: float) -> bytes:
        process = self._process
        assert process is not None and process.stdin is not None and process.stdout is not None
        hung = threading.Event()

        def give_up() -> None:
            hung.set()
            process.kill()

        alarm = threading.Timer(seconds, give_up)
        alarm.daemon = True
        alarm.start()
        try:
            _send(process.stdin, message)
            answer = _receive(process.stdout)
        except BrokenPipeError:
            answer = None
        finally:
            alarm.cancel()
        if answer is not None:
            return answer
        raise cause_of_death(self._bury(process), self._module, self._limits, hung=hung.is_set())


def start_message(limits: ProcessLimits, setup: bytes) -> bytes:
    """Return the first message of a process, which it answers when it is ready."""
    return msgspec.msgpack.encode(_Start(limits, setup))


def cause_of_death(status: int | None, module: str, limits: ProcessLimits, *, hung: bool) -> LimitExceeded | OSError:
    """Return the error of the message at which a process ended with this exit status."""
    if hung or status == -signal.SIGPROF:
        return LimitExceeded(f"more than {limits.cpu_seconds:g} s")
    if status in (-signal.SIGKILL, -signal.SIGTERM):
        return OSError(f"the process {module} was killed")
    return LimitExceeded("too much memory or recursion")


def serve(prepare: Callable[[bytes], Callable[[bytes], bytes]], *, niceness: int = 0) -> None:
    """Answer messages on standard input until it ends.

    Args:
        prepare: makes the handler of messages from the setup, without limits.
        niceness: how far this process stands back behind others.
    """
    stdin, stdout = sys.stdin.buffer, sys.stdout.buffer
    first = _receive(stdin)
    if first is None:
        return
    # Signals to the process group are meant for the parent: this process ends with its standard input.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.nice(niceness)
    start = msgspec.msgpack.decode(first, type=_Start)
    answer = prepare(start.setup)
    _limit_memory(start.limits.memory_bytes)
    _send(stdout, _READY)
    while (message := _receive(stdin)) is not None:
        # The signal's default action ends the process, whatever code it runs.
        signal.setitimer(signal.ITIMER_PROF, start.limits.cpu_seconds)
        answered = answer(message)
        signal.setitimer(signal.ITIMER_PROF, 0)
        _send(stdout, answered)


def _start(module: str) -> subprocess.Popen[bytes]:
    words, environment = command(module)
    return subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)


def command(module: str) -> tuple[list[str], dict[str, str]]:
    """Return what runs a module, and its environment."""
    root = str(Path(__file__).parents[1])
    path = os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])])
    return [sys.executable, "-m", module], os.environ | {"PYTHONPATH": path}


def framed(message: bytes) -> bytes:
    """Return a message after its length."""
    return len(message).to_bytes(LENGTH_BYTES, "little") + message


def _send(stream: IO[bytes], message: bytes) -> None:
    stream.write(framed(message))
    stream.flush()


def _receive(stream: IO[bytes]) -> bytes | None:
    """Read the next message; None at the end of the stream."""
    header = stream.read(LENGTH_BYTES)
    length = int.from_bytes(header, "little")
    message = stream.read(length) if len(header) == LENGTH_BYTES else b""
    return message if message and len(message) == length else None


def _limit_memory(more: int) -> None:
    """Fail every allocation beyond `more` bytes from now on."""
    pages = int(Path("/proc/self/statm").read_text().split()[5]) if sys.platform == "linux" else 0
    limit = pages * resource.getpagesize() + more
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
