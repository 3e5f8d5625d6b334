"""Canonical forms of words."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cache.semantic.canonical import canonical, opposites


@pytest.mark.parametrize(
    "words",
    [
        "stain stains",
        "city cities",
        "movie movies film films",
        "remove removes removed removing erase erased",
        "house houses",
        "colour color colours colors",
        "favourite favorite",
        "organise organize organised organizing",
        "analyse analyze",
        "centre center centres",
        "travelling traveling travelled travel",
        "licence license",
        "improve enhances increasing",
        "box boxes",
        "write wrote written writes writing",
    ],
)
def test_spellings_inflections_and_synonyms_fall_together(words: str) -> None:
    assert len({canonical(word) for word in words.split()}) == 1


@pytest.mark.parametrize(
    "words", ["sell buy", "hour our", "sense since", "raise rise", "four for", "breed bread", "tree three"]
)
def test_other_words_stay_apart(words: str) -> None:
    assert len({canonical(word) for word in words.split()}) == 2


@pytest.mark.parametrize(
    ("word", "other"),
    [("increase", "reduces"), ("improved", "lowering"), ("unlocked", "locks"), ("legal", "illegal"), ("buys", "sold")],
)
def test_opposites_are_known_in_all_forms(word: str, other: str) -> None:
    assert canonical(other) in opposites(word) or canonical(word) in opposites(other)


@given(st.text("aeingds", min_size=1, max_size=8))
def test_no_form_is_empty(word: str) -> None:
    """As in "eeeing". An empty word would stand for the missing neighbour of a question's last word."""
    assert canonical(word)
