"""Strict types of everything but tests, checked beside them: the first time takes a core for minutes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.timeout(1800)
def test_types_are_right() -> None:
    """As `make types`, with whose cache the second time takes seconds."""
    found = subprocess.run([sys.executable, "-m", "mypy"], cwd=ROOT, capture_output=True, text=True)
    assert found.returncode == 0, found.stdout + found.stderr
