"""Cursors of lists."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.admin.kit import cursors
from gateway.errors import InvalidRequest


@given(st.text(max_size=70), st.text(max_size=200))
def test_a_cursor_leads_back(listing: str, position: str) -> None:
    """And is safe in a URL."""
    cursor = cursors.encode(listing, position)
    assert cursors.decode(listing, cursor) == position
    assert re.fullmatch(r"[A-Za-z0-9_-]+", cursor)


@given(st.text(max_size=50))
def test_one_of_another_list_is_refused(listing: str) -> None:
    with pytest.raises(InvalidRequest):
        cursors.decode(listing, cursors.encode(listing + "x", "a"))


@given(st.text(max_size=100) | st.binary(max_size=60).map(lambda content: content.hex()))
def test_any_text_is_refused(cursor: str) -> None:
    """Without another error."""
    with pytest.raises(InvalidRequest):
        cursors.decode("tenants", cursor)


def test_none_is_the_beginning() -> None:
    assert cursors.decode("tenants", None) == ""
