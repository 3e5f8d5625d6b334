"""The table in the engine's documentation is the list of what is tested."""

from __future__ import annotations

from pathlib import Path

from tests.engine.composition import FEATURES, table

PAGE = Path(__file__).resolve().parents[2] / "docs" / "engine.md"


def test_the_documented_table_is_the_one_that_is_tested() -> None:
    assert table() in PAGE.read_text("utf-8")


def test_every_feature_is_explained() -> None:
    page = PAGE.read_text("utf-8")
    assert all(f"- **{name}**: {meaning}\n" in page for name, meaning in FEATURES.items())
