"""The benchmark of cancelling: it runs, and each slot becomes free."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.deep
def test_all_ways_are_measured(smallest_model: Path, tmp_path: Path) -> None:
    pytest.importorskip("xllamacpp")
    command = [sys.executable, "-m", "bench.cancelling", "--model", str(smallest_model), "--cancels", "2"]
    subprocess.run([*command, "--output", str(tmp_path)], check=True, capture_output=True, timeout=240)
    page = (tmp_path / "cancelling.md").read_text()
    rows = [[cell.strip() for cell in line.split("|")] for line in page.splitlines() if line.startswith("| while")]
    assert [(row[1], row[3]) for row in rows] == [
        *(("while the answer is written", "2"),) * 3,
        *(("while the prompt is read", "1"),) * 3,
    ]
