"""What the examination of the kernels says in each state that a machine can be in."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
import torch

from kernels import doctor, library
from kernels.doctor import DeviceFinding
from kernels.registry import OPS


def found(area: str, name: str) -> DeviceFinding:
    [finding] = [each for each in doctor.examine() if (each.area, each.name) == (area, name)]
    return finding


@pytest.fixture(autouse=True)
def unforced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(library.VARIABLE, raising=False)


def test_it_runs_as_a_process_and_lists_every_op_once_per_device() -> None:
    process = subprocess.run([sys.executable, "-m", "kernels.doctor"], capture_output=True, text=True, check=True)
    findings = [msgspec.json.decode(line, type=DeviceFinding) for line in process.stdout.splitlines()]
    served = [
        op for each in findings if each.area == "cpu" and each.name.startswith("ops: ") for op in each.value.split(", ")
    ]
    assert sorted(served) == sorted(OPS)
    assert {each.name for each in findings if each.area == "versions"} == {"torch", "apache-tvm-ffi", "numpy"}


def test_a_wrong_instruction_set_is_the_last_word_of_the_process() -> None:
    environment = {**os.environ, library.VARIABLE: "sse"}
    process = subprocess.run([sys.executable, "-m", "kernels.doctor"], capture_output=True, text=True, env=environment)
    assert process.returncode != 0
    assert "ROUNDHOUSE_CPU_ISA is 'sse'; it may be avx2" in process.stderr.strip().splitlines()[-1]


def test_the_best_library_is_as_it_should_be(monkeypatch: pytest.MonkeyPatch) -> None:
    best = library.supported()[-1]
    monkeypatch.setattr(library, "cpu", library.load(best))
    finding = found("cpu", "kernels")
    assert finding.state == "ok" and finding.value.startswith(best)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_every_op_has_the_bodies_that_it_says_it_has(device: str) -> None:
    try:
        built = library.load(library.supported()[-1]) if device == "cpu" else library.load_cuda(library.EMULATOR)
    except FileNotFoundError as error:
        pytest.skip(str(error))
    assert [op.name for op in OPS.values() if built.has(op.name) != (device in op.built)] == []


def test_ops_that_are_left_to_torch_are_no_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "cpu", library.load(library.supported()[-1]))
    finding = found("cpu", "ops: torch, as intended")
    assert finding.state == "ok" and finding.value == "grouped_linear"
    assert "ops: plain torch" not in {each.name for each in doctor.examine()}


def test_a_library_that_was_forced_is_named_with_the_better_one(monkeypatch: pytest.MonkeyPatch) -> None:
    if len(library.supported()) < 2:
        pytest.skip("this CPU has only one of the instruction sets")
    worst, best = library.supported()[0], library.supported()[-1]
    monkeypatch.setenv(library.VARIABLE, worst)
    monkeypatch.setattr(library, "cpu", library.load(worst))
    finding = found("cpu", "kernels")
    assert finding.state == "warning" and best in finding.value
    assert finding.remedy == f"unset ROUNDHOUSE_CPU_ISA to use {best}"


@pytest.mark.parametrize(
    ("compiler", "forced", "remedy"),
    [
        (None, "", "apt-get install g++"),
        ("/usr/bin/g++", "", "python -m kernels.build"),
        ("/usr/bin/g++", "reference", "unset ROUNDHOUSE_CPU_ISA"),
    ],
)
def test_without_a_library_it_says_how_to_get_one(
    compiler: str | None, forced: str, remedy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor.shutil, "which", lambda name: compiler)
    monkeypatch.setattr(library, "cpu", None)
    monkeypatch.setattr(library, "reason", "it has not been built")
    if forced:
        monkeypatch.setenv(library.VARIABLE, forced)
    finding = found("cpu", "kernels")
    assert finding.state == "warning" and "plain torch, because it has not been built" in finding.value
    assert remedy in finding.remedy
    assert found("cpu", "ops: plain torch").value == ", ".join(sorted(OPS))


def test_a_library_that_is_missing_is_noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library.load.cache_clear()
    monkeypatch.setattr(library, "FOLDER", tmp_path)
    finding = found("cpu", f"library {library.supported()[-1]}")
    assert finding.state == "note" and "has not been built" in finding.value


def test_a_driver_that_torch_cannot_use_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    if torch.cuda.is_available():
        pytest.skip("torch can use it")
    monkeypatch.setattr(doctor, "_driver", lambda: "580.65.06")
    finding = found("cuda", "device")
    assert finding.state == "warning" and "580.65.06" in finding.value and finding.remedy


def test_more_threads_than_the_container_may_use_are_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_cpu_quota", lambda: 0.5)
    finding = found("cpu", "threads")
    assert finding.state == "warning" and "0.5 cores" in finding.value
