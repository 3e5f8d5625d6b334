"""A short run of every fuzzing target; `make fuzz` runs them longer."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytest.importorskip("atheris", reason="atheris has no wheel for this platform")

RUNS = 1000


def test_no_input_crashes_it() -> None:
    # Through a shell, which forks: a process keeps the largest resident size of the one that executed it, which
    # is what libFuzzer compares with its bound, and a pytest worker grows to gigabytes.
    command = [
        "sh",
        "-c",
        '"$@"; exit $?',
        "sh",
        sys.executable,
        "-m",
        "tests.fuzz.decoders",
        "bodies,calls,checkpoints,frames,session",
        f"-runs={RUNS}",
        "-max_total_time=60",
        "-timeout=10",
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-4000:]
