"""The benchmark of the chat page, in small."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from bench.page import LONG_TASK, ConversationRow, StreamRow, kinds, markdown
from tests.e2e.browser import needs_chromium


def test_what_misses_its_aim_says_so() -> None:
    """Each load beside its own: tasks while it streams as fast as models do, gaps beyond that."""
    slow = StreamRow("list", 200, 100, 1, LONG_TASK + 1, 17.0, 60.0)
    fast = StreamRow("mixed", 1000, 100, 0, 0.0, 20.0, 50.0)
    page = markdown([slow, fast], ConversationRow(2000, 900.0, 51.0), 4.0, 1.0)
    assert "| list | 200 | 100 | 1 | 51 of 50 (missed) | 17 | 60 |" in page
    assert "| mixed | 1,000 | 100 | 0 | 0 | 20 of 34 | 50 |" in page
    assert "| 2,000 | 900 of 1000 | 51 of 50 (missed) |" in page


def test_each_kind_is_one_long_block() -> None:
    """The last one has something of all."""
    texts = kinds(4000)
    assert all(3900 <= len(text) <= 4100 for text in texts.values())
    for name, mark in (("list", "- item"), ("table", "|---|"), ("paragraph", "**and**"), ("code", "```python")):
        assert mark in texts[name] and mark in texts["mixed"]


@needs_chromium
def test_every_load_is_measured(tmp_path: Path) -> None:
    """In a real browser."""
    words = ["--tokens", "100", "--turns", "20", "--slower", "1", "--output", str(tmp_path)]
    subprocess.run([sys.executable, "-m", "bench.page", *words], check=True, capture_output=True, timeout=240)
    found = json.loads((tmp_path / "page.json").read_text())
    assert [(row["kind"], row["rate"]) for row in found["streams"]] == [
        *((kind, 200) for kind in kinds(1)),
        ("mixed", 1000),
    ]
    assert all(row["frames"] > 0 for row in found["streams"])
    assert found["conversation"]["messages"] == 40
    assert found["conversation"]["usable"] > 0
