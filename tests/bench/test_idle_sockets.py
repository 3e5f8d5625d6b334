"""The measurement of idle sockets runs, with few of them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.deep
def test_it_measures_a_gateway_beside_a_bare_socket(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "bench.idle_sockets", "--sockets", "20", "--output", str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=180,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    rows = [
        line.split("|")[1].strip()
        for line in (tmp_path / "idle-sockets.md").read_text().splitlines()
        if "| 20 |" in line
    ]
    assert rows == ["starlette, socket", "roundhouse, socket"]
