"""`docs/api.md` names every parameter of the completion endpoints."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import fields

from gateway.protocol.chat_completion_create import ChatCompletionCreate
from gateway.protocol.completion_create import CompletionCreate

PAGE = Path(__file__).parents[3] / "docs" / "api.md"


@pytest.mark.parametrize(
    ("body", "section"), [(ChatCompletionCreate, "Chat completions"), (CompletionCreate, "Completions")]
)
def test_the_page_lists_exactly_the_parameters_that_exist(body: type[msgspec.Struct], section: str) -> None:
    """In the table of both endpoints or in its own."""
    sections = re.split(r"^## ", PAGE.read_text("utf-8"), flags=re.MULTILINE)
    tables = [text for text in sections if text.startswith(("Parameters of both", section + "\n"))]
    rows = [row.split("|")[1] for text in tables for row in text.splitlines() if row.startswith("| `")]
    assert len(tables) == 2
    assert {name for row in rows for name in re.findall(r"`(\w+)`", row)} == {field.name for field in fields(body)}
