"""The benchmark of gateways before llama.cpp's server: it runs, and what is added is counted round by round."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from bench.upstreams import DIRECT, LITELLM_PROXY, MESSAGES, TOKENS, UpstreamRun, markdown, summarise


def test_what_a_gateway_adds_is_that_of_each_round() -> None:
    """However the machine's speed changes between them."""
    runs = [
        run
        for base in (100.0, 900.0)
        for run in (
            UpstreamRun(TOKENS, 1, [base + 3, base + 4, base + 50], [base + 13, base + 14, base + 90], 0.03, 0),
            UpstreamRun(DIRECT, 1, [base, base + 1, base + 2], [base + 10, base + 11, base + 12], 0.0, 0),
        )
    ]
    direct, ours = summarise(runs)
    assert (direct.way, direct.ttft.p50, direct.ttft.added, direct.cpu_per_answer) == (DIRECT, 102, [], None)
    assert (ours.way, ours.answers, ours.ttft.added, ours.whole.added) == (TOKENS, 6, [3, 3], [3, 3])
    assert ours.cpu_per_answer == pytest.approx(10)
    assert "| 1 | llama.cpp, directly | 102.0 / 902.0 |  | 112 / 912 |  |  | 6 | 0 |" in markdown([direct], [])


@pytest.mark.deep
def test_all_ways_are_measured(smallest_model: Path, tmp_path: Path) -> None:
    pytest.importorskip("xllamacpp")
    command = [sys.executable, "-m", "bench.upstreams", "--model", str(smallest_model), "--rounds", "1"]
    subprocess.run(
        [*command, "--answers", "4", "--output", str(tmp_path)], check=True, capture_output=True, timeout=500
    )
    page = (tmp_path / "upstreams.md").read_text()
    rows = [
        [cell.strip(" *") for cell in line.split("|")] for line in page.splitlines() if line.startswith(("| 1", "| 4"))
    ]
    for clients in ("1", "4"):
        mine = {row[2]: row for row in rows if row[1] == clients}
        assert set(mine) - {LITELLM_PROXY} == {DIRECT, TOKENS, MESSAGES}
        assert {(row[-3], row[-2]) for row in mine.values()} == {("4", "0")}
