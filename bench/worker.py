"""The process of one subject: probe the machine, load, warm up, measure each concurrency, probe again.

`bench.engine` starts it with a `Task` as JSON on standard input and reads a `Report` from standard output.
"""

from __future__ import annotations

import importlib
import sys

import msgspec

from bench.measure import Report, ResidentMemory, Result, probe, prompts
from bench.subjects import SUBJECTS, Setup

_WARM_UP_TOKENS = 4


class Task(msgspec.Struct, frozen=True):
    """What to measure. `repeat` seeds the prompts, so that no run finds another one's KV in a prefix cache."""

    subject: str
    setup: Setup
    vocabulary: int
    concurrency: list[int]
    repeat: int
    probe_bytes: int
    """How much memory a probe reads."""


def run(task: Task) -> Report:
    setup = task.setup
    kind = SUBJECTS[task.subject]
    for library in kind.libraries:
        importlib.import_module(library)
    idle = ResidentMemory().now()
    before = probe(setup.dtype, task.probe_bytes)
    results = []
    with kind.load(setup) as subject:
        memory = ResidentMemory(subject.pid)
        for concurrency in task.concurrency:
            seed = 1000 * task.repeat + concurrency
            # Another seed: what is warm afterwards is the code for these shapes, not the prompts.
            subject.run(prompts(concurrency, setup.prompt_tokens, task.vocabulary, ~seed), _WARM_UP_TOKENS)
            memory.reset_peak()
            traces = subject.run(prompts(concurrency, setup.prompt_tokens, task.vocabulary, seed), setup.new_tokens)
            results.append(Result(concurrency, traces, memory.peak() - idle))
    return Report(before, probe(setup.dtype, task.probe_bytes), results)


if __name__ == "__main__":
    report = run(msgspec.json.decode(sys.stdin.buffer.read(), type=Task))
    sys.stdout.buffer.write(msgspec.json.encode(report))
