"""One small server for all tests of a file."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.load.answering import AnsweringServer, answering_server


@pytest.fixture(scope="module")
def shared_answering() -> Iterator[tuple[AnsweringServer, str]]:
    with answering_server() as running:
        yield running


@pytest.fixture
def answering(shared_answering: tuple[AnsweringServer, str]) -> tuple[AnsweringServer, str]:
    """The server's state, with nothing left of earlier tests, and its address."""
    state, _ = shared_answering
    state.bodies.clear()
    state.keys.clear()
    state.connections = state.most_open = 0
    return shared_answering
