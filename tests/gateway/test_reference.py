"""Generated pages are what the code says."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.reference import PAGES


@pytest.mark.parametrize("name", PAGES)
def test_a_generated_page_is_up_to_date(name: str) -> None:
    assert Path("docs", name).read_text("utf-8") == PAGES[name](), "run: make docs"
