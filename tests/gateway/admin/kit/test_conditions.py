"""`If-Match`, as RFC 9110 has it."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.admin.kit.conditions import entity_tag, parse_if_match
from gateway.errors import InvalidRequest, PreconditionFailed, PreconditionRequired


@given(st.lists(st.integers(min_value=0), min_size=1, max_size=8), st.sampled_from([",", ", ", " ,\t"]))
def test_any_of_the_tags_matches(revisions: list[int], comma: str) -> None:
    """And no other."""
    match = parse_if_match(comma.join(map(entity_tag, revisions)))
    for revision in revisions:
        match.check(entity_tag(revision))
    with pytest.raises(PreconditionFailed):
        match.check(entity_tag(max(revisions) + 1))


def test_a_star_matches_whatever_there_is() -> None:
    parse_if_match(" * ").check('"17"')


def test_a_weak_tag_matches_nothing() -> None:
    """If-Match compares strongly."""
    with pytest.raises(PreconditionFailed):
        parse_if_match('W/"17"').check('"17"')


def test_none_is_asked_for() -> None:
    with pytest.raises(PreconditionRequired):
        parse_if_match(None)


@pytest.mark.parametrize(
    "header", ["", "17", '"17', '17"', '"1" "2"', '"1",', '*, "1"', '"\x00"', '"' + "x" * 2000 + '"']
)
def test_what_is_no_list_of_tags_is_refused(header: str) -> None:
    with pytest.raises(InvalidRequest):
        parse_if_match(header)


@given(st.text(max_size=200))
def test_any_text_is_read_or_refused(header: str) -> None:
    """In time linear to its length, without another error."""
    with contextlib.suppress(InvalidRequest):
        parse_if_match(header)
