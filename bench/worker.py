"""The process of one subject: it loads the model, then answers a `RequestBatch` per line with a `RunResult`.

`bench.process` starts it, in the subject's own environment. Standard output carries answers only: whatever a library
prints goes to standard error. With `--convert` it writes what the subject loads instead.
"""

from __future__ import annotations

import argparse
import importlib
import os
import shutil
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import BinaryIO

import msgspec

from bench.measure import ResidentMemory
from bench.subjects.interface import RequestBatch, SubjectSetup, Trace
from bench.subjects.registry import SUBJECTS


class SubjectLoaded(msgspec.Struct, frozen=True):
    """Sent when the model is ready, or converted."""

    seconds: float


class RunCommand(msgspec.Struct, frozen=True):
    """What to measure, after `warm_up` has run; nothing runs before without it."""

    batch: RequestBatch
    warm_up: RequestBatch | None = None


class RunResult(msgspec.Struct, frozen=True):
    """Results of a run."""

    traces: list[Trace]
    peak_memory: int
    """Bytes resident in the subject's processes, less those of this process before it loaded the model."""
    resident: int
    """Bytes resident in the subject's processes."""


def serve(name: str, setup: SubjectSetup, requests: BinaryIO, answers: BinaryIO) -> None:
    """Answer until `requests` ends."""
    kind = SUBJECTS[name]
    for library in kind.libraries:
        importlib.import_module(library)
    idle = ResidentMemory().now()
    begun = time.perf_counter()
    with kind.loaded(setup) as subject:
        _answer(answers, SubjectLoaded(time.perf_counter() - begun))
        memories = [ResidentMemory(pid) for pid in subject.pids]
        for line in requests:
            run = msgspec.json.decode(line, type=RunCommand)
            if run.warm_up is not None:
                subject.run(run.warm_up)
            for memory in memories:
                memory.reset_peak()
            traces = subject.run(run.batch)
            wrong = {len(trace.tokens) for trace in traces} - {run.batch.new_tokens}
            if wrong:
                raise RuntimeError(f"{name} gave {sorted(wrong)} tokens where {run.batch.new_tokens} were asked for")
            resident = sum(memory.peak() for memory in memories)
            _answer(answers, RunResult(traces, resident - idle, resident))


def convert(name: str, setup: SubjectSetup, directory: Path) -> None:
    """Write what the subject loads; the directory is whole or absent."""
    partial = directory.with_name(f"{directory.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.parent.mkdir(parents=True, exist_ok=True)
    SUBJECTS[name].imported().convert(Path(setup.model), setup.precision, partial)
    partial.rename(directory)


def _answer(answers: BinaryIO, message: msgspec.Struct) -> None:
    answers.write(msgspec.json.encode(message) + b"\n")
    answers.flush()


def main(argv: Iterable[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.worker", description=__doc__)
    parser.add_argument("subject", choices=list(SUBJECTS))
    parser.add_argument("setup", help="a `SubjectSetup` as JSON")
    parser.add_argument("--convert", type=Path, metavar="DIRECTORY")
    arguments = parser.parse_args(None if argv is None else list(argv))
    setup = msgspec.json.decode(arguments.setup, type=SubjectSetup)
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    if arguments.convert is not None:
        begun = time.perf_counter()
        convert(arguments.subject, setup, arguments.convert)
        _answer(answers, SubjectLoaded(time.perf_counter() - begun))
    else:
        serve(arguments.subject, setup, sys.stdin.buffer, answers)


if __name__ == "__main__":
    main()
