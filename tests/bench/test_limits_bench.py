"""The benchmark of limits: it runs, and ours does not overshoot."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.deep
def test_ours_is_measured(tmp_path: Path) -> None:
    """Whether clients name their output limit or not."""
    command = [sys.executable, "-m", "bench.limits", "--subject", "roundhouse", "--clients", "20", "--limit", "1100"]
    command += ["--seconds", "1", "--turns", "50", "--output", str(tmp_path)]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    page = (tmp_path / "limits.md").read_text()
    rows = [[cell.strip() for cell in line.split("|")] for line in page.splitlines() if "**roundhouse**" in line]
    assert [row[2] for row in rows] == ["yes", "no"]
    for row in rows:
        assert int(row[4].replace(",", "")) > 0
        assert (row[5], row[7]) == ("0 (0%)", "0")
