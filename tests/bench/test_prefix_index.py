"""The measurement of a full prefix index, with a small one."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path


def test_an_index_is_filled_and_prompts_are_placed(tmp_path: Path) -> None:
    """In a process of its own, whose memory nothing else has used."""
    sizes = ["--replicas", "2", "--tokens", "400000", "--prompts", "2"]
    subprocess.run([sys.executable, "-m", "bench.prefix_index", "--output", str(tmp_path), *sizes], check=True)
    found = json.loads((tmp_path / "prefix-index.json").read_bytes())
    assert found["blocks"] == 2 * 400_000 // 16
    assert 50 < found["bytes"] / found["blocks"] < 1000
    assert [each["tokens"] for each in found["prompts"]] == [1_000, 8_000, 32_000, 128_000]
    assert all(0 < each["placing_p50"] <= each["placing_p99"] for each in found["prompts"])
    assert "| 128,000 |" in (tmp_path / "prefix-index.md").read_text()
