"""A subject's process as the benchmark sees it: started, asked, and ended when it takes too long."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

import msgspec

from bench.peers import python_of
from bench.subjects.interface import SubjectSetup
from bench.subjects.registry import SUBJECTS
from bench.worker import RunCommand, RunResult, SubjectLoaded

_ROOT = Path(__file__).parent.parent
_SHOWN = 4000
"""Characters that are shown of a failed subject's standard error."""
Answer = TypeVar("Answer", SubjectLoaded, RunResult)


class SubjectFailed(Exception):
    """A subject's process ended, or was ended for its time; the text says which, with the end of its standard error."""


class SubjectProcess:
    """One subject with one model loaded; ends with the `with` block, and all that it has started with it.

    `limit`: seconds that loading, and each run, may take.
    """

    def __init__(self, name: str, setup: SubjectSetup, cache: Path, limit: float, *arguments: str) -> None:
        self._name = name
        self._limit = limit
        self._buffer = b""
        self._stack = contextlib.ExitStack()
        self._errors = self._stack.enter_context(tempfile.TemporaryFile())  # noqa: SIM115
        folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="rh-bench-")))
        python = interpreter(name, cache)
        if python is None:
            raise SubjectFailed(f"{name} is not set up: make bench-peers")
        if SUBJECTS[name].environment is None:
            folder = _ROOT
        else:
            # Peers see nothing else of this repository: transformers takes our `kernels` for a library of that name.
            (folder / "bench").symlink_to(_ROOT / "bench")
        self._process = subprocess.Popen(
            [python, "-m", "bench.worker", name, msgspec.json.encode(setup).decode(), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            cwd=folder,
            env={"HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error", **SUBJECTS[name].variables, **os.environ},
            start_new_session=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(30)
        self._kill()
        self._process.wait()
        self._process.stdout.close()
        self._stack.close()

    def _kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def loaded(self) -> float:
        """Wait for the model; returns the seconds that loading it took."""
        return self._read(SubjectLoaded).seconds

    def measure(self, run: RunCommand) -> RunResult:
        """Have the subject run a batch.

        Raises:
            SubjectFailed: it ended, or took longer than the limit.
        """
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(msgspec.json.encode(run) + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise SubjectFailed(self._last_words()) from None
        return self._read(RunResult)

    def _read(self, kind: type[Answer]) -> Answer:
        assert self._process.stdout is not None
        deadline = time.monotonic() + self._limit
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            while b"\n" not in self._buffer:
                if not selector.select(max(0.0, deadline - time.monotonic())):
                    self._kill()
                    raise SubjectFailed(f"{self._name} was ended after {self._limit:g} seconds without an answer")
                received = os.read(self._process.stdout.fileno(), 1 << 20)
                if not received:
                    raise SubjectFailed(self._last_words())
                self._buffer += received
        line, _, self._buffer = self._buffer.partition(b"\n")
        return msgspec.json.decode(line, type=kind)

    def _last_words(self) -> str:
        status = self._process.wait()
        self._errors.seek(0)
        return f"{self._name} ended with status {status}:\n{self._errors.read().decode(errors='replace')[-_SHOWN:]}"


def convert(name: str, setup: SubjectSetup, directory: Path, cache: Path, limit: float) -> None:
    """Have a subject write its own format of a checkpoint.

    Raises:
        SubjectFailed: it could not.
    """
    with SubjectProcess(name, setup, cache, limit, "--convert", str(directory)) as process:
        process.loaded()


def interpreter(name: str, cache: Path) -> Path | None:
    """Return the Python that runs a subject; None if its environment is not set up."""
    environment = SUBJECTS[name].environment
    return Path(sys.executable) if environment is None else python_of(environment, cache)
