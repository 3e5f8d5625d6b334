"""The example of docs/autoscaling.md prints what the page says."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_example_prints_what_the_page_says() -> None:
    page = (ROOT / "docs" / "autoscaling.md").read_text("utf-8")
    [(program, printed)] = re.findall(r"^```python\n(.*?)^```\n.*?^```\n(.*?)^```", page, flags=re.M | re.S)
    run = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert run.stdout == printed
