"""Batches that begin at once, and what tests say to them."""

from __future__ import annotations

import pytest

from gateway.batches import worker


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches are claimed, and looked at, many times a second."""
    monkeypatch.setattr(worker, "TICK", 0.02)
    monkeypatch.setattr(worker, "LOOK", 0.02)
