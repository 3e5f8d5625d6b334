"""The schedules of the emulator: sound kernels do not depend on them, and planted faults show under some.

Each fault compiles one CUDA source anew, which takes a second or two: `make test` plants one of each kind of kernels
and schedules every second sound one, `make test-deep` all of them.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from kernels import library
from tests.amounts import some_of
from tests.kernels.faults import Case, Fault, check, compile_with
from tests.kernels.planted import attention, layers, lora, moe

KINDS = (layers, attention, lora, moe)
CASES: dict[str, Case] = {name: case for kind in KINDS for name, case in kind.CASES.items()}
FAULTS: dict[str, list[Fault]] = {name: faults for kind in KINDS for name, faults in kind.FAULTS.items()}
_PAIRS = [
    pytest.param(name, fault, id=f"{name}: {fault.name}", marks=pytest.mark.deep if number else ())
    for kind in KINDS
    for number, (name, fault) in enumerate((name, fault) for name in kind.FAULTS for fault in kind.FAULTS[name])
]


def test_every_case_has_faults() -> None:
    assert FAULTS.keys() == CASES.keys()


@pytest.mark.parametrize("name", some_of([(name,) for name in CASES], 2))
def test_a_sound_kernel_gives_the_same_bits_under_every_schedule(emulator: library.Library, name: str) -> None:
    check(CASES[name].run, emulator)


@pytest.mark.parametrize(("name", "fault"), _PAIRS)
def test_a_planted_fault_is_caught(emulator: library.Library, name: str, fault: Fault, tmp_path: Path) -> None:
    case = CASES[name]
    body = compile_with(fault, case.source, case.functions, tmp_path)
    with pytest.raises((AssertionError, RuntimeError), match=fault.message):
        check(case.run, body)
