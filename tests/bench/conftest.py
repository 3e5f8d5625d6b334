"""What all tests of benchmarks share."""

from __future__ import annotations

import pytest

from bench import measure


@pytest.fixture(autouse=True)
def small_probes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measure the machine with a small product: the usual one takes a second, and is measured beside each load."""
    monkeypatch.setattr(measure, "_PROBE_SIZE", 256)
