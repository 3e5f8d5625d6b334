"""Random searches find the same examples whichever tests ran before in the same process."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.amounts import DEEP


def examples() -> list[float]:
    found: list[float] = []

    @settings(max_examples=300, derandomize=True, database=None)
    @given(st.floats())
    def search(drawn: float) -> None:
        found.append(drawn)

    search()
    return found


@pytest.mark.skipif(DEEP, reason="it searches for others in every run")
def test_modules_that_are_loaded_change_no_examples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = list(map(repr, examples()))
    file = tmp_path / "a_module_of_ours.py"
    file.write_text("\n".join(f"{number}.5" for number in range(1000, 1100)))
    module = ModuleType("a_module_of_ours")
    module.__file__ = str(file)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    assert list(map(repr, examples())) == before
