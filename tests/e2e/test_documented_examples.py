"""The programs in the documentation, run as they stand against a fresh installation."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.conftest import Installation

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize(
    "page", ["batches.md", "protocol.md", "routing.md", "structured-output.md", "tools.md", "usage.md"]
)
def test_the_programs_of_a_page_run(page: str, roundhouse: Installation) -> None:
    """One after the other, as a reader would: later ones use what earlier ones have defined."""
    blocks = re.findall(r"^```python\n(.*?)^```", (DOCS / page).read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)
    assert len(blocks) >= 2
    program = "\n".join(blocks)
    assert "http://127.0.0.1:8080" in program
    program = program.replace("127.0.0.1:8080", roundhouse.url.removeprefix("http://"))
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
