"""The programs in the documentation, run as they stand against a fresh installation."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.e2e.conftest import Installation

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize(
    "page", ["batches.md", "protocol.md", "routing.md", "structured-output.md", "tools.md", "usage.md"]
)
def test_the_programs_of_a_page_run(page: str, roundhouse: Installation, capsys: pytest.CaptureFixture[str]) -> None:
    """One after the other, as a reader would: later ones use what earlier ones have defined."""
    blocks = re.findall(r"^```python\n(.*?)^```", (DOCS / page).read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)
    assert len(blocks) >= 2
    program = "\n".join(blocks)
    assert "http://127.0.0.1:8080" in program
    program = program.replace("127.0.0.1:8080", roundhouse.url.removeprefix("http://"))
    exec(compile(program, page, "exec", dont_inherit=True), {"__name__": "__main__"})
    assert capsys.readouterr().out.strip()
