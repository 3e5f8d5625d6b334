"""Compiles a grammar on trial, in a process that may die of it.

llguidance's own limits do not bound how long a compilation takes (a multiple of eight digits takes minutes), and a
thread that runs one cannot be stopped. So a grammar is compiled in `worker.py` first, where it may exhaust time,
memory or the stack. Messages are MessagePack, each after its length in 4 bytes.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import IO

import msgspec

_LENGTH_BYTES = 4
_START_SECONDS = 120.0
_PATIENCE = 10.0
"""Wall seconds, for a busy machine, per CPU second of a compilation; a longer one counts as hung."""


class TrialSetup(msgspec.Struct, frozen=True, array_like=True):
    """First message to a worker; like every other it is answered with a `GrammarVerdict`."""

    path: str
    vocabulary: int
    eos_token_ids: tuple[int, ...]
    cpu_seconds: float
    memory_bytes: int


class GrammarVerdict(msgspec.Struct, frozen=True, array_like=True):
    """Errors of a grammar, and the parts of it that would not be enforced."""

    error: str | None = None
    warnings: tuple[str, ...] = ()


class TrialFailed(Exception):
    """A grammar cost more than it may; the message says what."""


def send(stream: IO[bytes], message: bytes) -> None:
    """Write one message."""
    stream.write(len(message).to_bytes(_LENGTH_BYTES, "little") + message)
    stream.flush()


def receive(stream: IO[bytes]) -> bytes | None:
    """Read the next message; None at the end of the stream."""
    header = stream.read(_LENGTH_BYTES)
    length = int.from_bytes(header, "little")
    message = stream.read(length) if len(header) == _LENGTH_BYTES else b""
    return message if message and len(message) == length else None


class TrialWorker:
    """A worker process, started when it is first needed, and again after it has died."""

    def __init__(self, setup: TrialSetup) -> None:
        self._setup = setup
        self._process: subprocess.Popen[bytes] | None = None

    def judge(self, source: str) -> GrammarVerdict:
        """Compile `source`, in llguidance's notation.

        Raises:
            TrialFailed: the process did not survive it.
            OSError: the process cannot be started, or was ended by something else.
        """
        if self._process is None:
            self._process = _start()
            try:
                self._ask(msgspec.msgpack.encode(self._setup), _START_SECONDS)
            except TrialFailed as error:
                raise OSError("the process that compiles grammars does not start") from error
        return self._ask(source.encode(), _PATIENCE * self._setup.cpu_seconds)

    def kill(self) -> None:
        """End the process; a thread that waits for its verdict gets an OSError."""
        process = self._process
        if process is not None:
            process.kill()

    def close(self) -> None:
        """Release what the process held; no thread may wait for a verdict."""
        if self._process is not None:
            self._process.kill()
            self._bury(self._process)

    def _bury(self, process: subprocess.Popen[bytes]) -> int:
        """Return the exit status of a process that has died or is about to."""
        self._process = None
        with contextlib.suppress(BrokenPipeError):
            process.communicate()
        return process.returncode

    def _ask(self, message: bytes, seconds: float) -> GrammarVerdict:
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
            send(process.stdin, message)
            answer = receive(process.stdout)
        except BrokenPipeError:
            answer = None
        finally:
            alarm.cancel()
        if answer is not None:
            return msgspec.msgpack.decode(answer, type=GrammarVerdict)
        status = self._bury(process)
        if hung.is_set() or status == -signal.SIGPROF:
            raise TrialFailed(f"takes more than {self._setup.cpu_seconds:g} s to compile")
        if status in (-signal.SIGKILL, -signal.SIGTERM):
            raise OSError("the process that compiles grammars was killed")
        raise TrialFailed("takes too much memory or recursion to compile")


def _start() -> subprocess.Popen[bytes]:
    root = str(Path(__file__).parents[2])
    path = os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])])
    return subprocess.Popen(
        [sys.executable, "-m", "engine.grammar.worker"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": path},
    )
