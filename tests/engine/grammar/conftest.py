"""Fixtures shared by the tests of grammars."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.engine.grammar.engines import Engine, write_model

Model = Callable[..., Path]


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    """`model("llama2")` is the directory of a random checkpoint with a tokenizer of that family."""
    written: dict[str, Path] = {}

    def get(family: str = "byte-level") -> Path:
        if family not in written:
            written[family] = write_model(tmp_path_factory.mktemp(family), family)
        return written[family]

    return get


@pytest.fixture(scope="session")
def engine(model: Model) -> Iterator[Engine]:
    """One engine for all tests that leave it as it was."""
    made = Engine(model())
    yield made
    made.close()
