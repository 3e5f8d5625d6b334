"""Which built library serves, and what is said where none does."""

from __future__ import annotations

import runpy
from collections.abc import Callable

import pytest
import torch

from kernels import library


@pytest.fixture
def chosen(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """What the module says that is run where the environment asks for an instruction set."""

    def ask(isa: str) -> str:
        monkeypatch.setenv(library.VARIABLE, isa)
        try:
            found = runpy.run_path(str(library.__file__))
        except (ValueError, FileNotFoundError) as error:
            return str(error)
        return str(found["cpu"].isa if found["cpu"] else found["reason"])

    return ask


@pytest.mark.parametrize("isa", library.ISAS)
def test_an_instruction_set_can_be_forced(chosen: Callable[[str], str], isa: str) -> None:
    if isa not in library.supported():
        assert "which this CPU does not have" in chosen(isa)
    elif (library.FOLDER / f"libroundhouse_cpu_{isa}.so").exists():
        assert chosen(isa) == isa
    else:
        assert "has not been built" in chosen(isa)


def test_the_plain_torch_bodies_can_be_forced(chosen: Callable[[str], str]) -> None:
    assert chosen("reference") == "ROUNDHOUSE_CPU_ISA asks for it"


def test_an_unknown_instruction_set_is_named(chosen: Callable[[str], str]) -> None:
    assert chosen("avx1024").endswith("ROUNDHOUSE_CPU_ISA is 'avx1024'; it may be avx2, avx512, amx or reference")


@pytest.mark.skipif(not (library.FOLDER / "libroundhouse_cuda.so").exists(), reason="the CUDA library is not built")
def test_the_cuda_library_is_loaded_also_where_there_is_no_device() -> None:
    assert library.load_cuda().has("paged_attention")


def test_the_emulator_serves_only_where_a_test_asks_for_it(emulator: library.Library) -> None:
    assert library.of(torch.empty(0), "rms_norm") is emulator
    assert library.of(torch.empty(0), "no such op") is None
