"""Each recogniser finds its own, not what resembles it; says rightly what is pending; and takes linear time."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.recognisers.pattern import Pattern
from gateway.recognisers.recogniser import Match, Recogniser
from tests.gateway.recognisers.samples import FOUND, NOT_FOUND, RECOGNISERS, texts

RULES = sorted(RECOGNISERS)


def found(recogniser: Recogniser, text: str) -> list[str]:
    """What is found in a text that has ended."""
    out, at = [], 0
    while match := recogniser.find(text, at):
        at = match.end
        if match.rest is not None:
            at, closed = match.rest.consume(text, at, True)
            assert closed
        out.append(text[match.start : at])
    return out


@pytest.mark.parametrize("around", ["{}", "x {} y", "({})", "is {}, he said", "\n{}\n", '"{}"', "à {} é"])
@pytest.mark.parametrize("rule", RULES)
def test_finds_its_own_whole(rule: str, around: str) -> None:
    for text in FOUND[rule]:
        # A private key that is never closed takes what could be part of it.
        if rule == "private_key" and "END" not in text and around != "{}":
            continue
        assert found(RECOGNISERS[rule], around.format(text)) == [text]


@pytest.mark.parametrize("rule", RULES)
def test_leaves_what_resembles_it(rule: str) -> None:
    for text in NOT_FOUND[rule]:
        assert found(RECOGNISERS[rule], f"x {text} y") == []


@pytest.mark.parametrize("rule", RULES)
@given(text=texts, more=texts)
def test_what_starts_before_the_pending_position_is_final(rule: str, text: str, more: str) -> None:
    """The contract of `Recogniser.pending`: no text that follows changes it."""
    recogniser = RECOGNISERS[rule]
    position = recogniser.pending(text, 0)
    assert position >= len(text) - recogniser.reach

    def before(whole: str) -> list[Match]:
        matches, at = [], 0
        while (match := recogniser.find(whole, at)) and match.start < position:
            matches.append(match)
            at = match.start + 1
        return matches

    assert before(text) == before(text + more)


@pytest.mark.parametrize("rule", RULES)
@given(text=texts, data=st.data())
def test_a_match_depends_on_its_reach_only(rule: str, text: str, data: st.DataObject) -> None:
    recogniser = RECOGNISERS[rule]
    start = data.draw(st.integers(0, len(text)))
    match = recogniser.find(text, start)
    if match is not None:
        assert start <= match.start < match.end <= match.start + recogniser.reach
        assert recogniser.find(text[: match.start + recogniser.reach], start) == match


@pytest.mark.parametrize(
    ("expression", "reason"),
    [
        ("a+", "512"),
        ("(a{1,30}){1,30}", "512"),
        ("x{0,3}", "matches nothing"),
        ("^abc", "beginning or end"),
        ("abc$", "beginning or end"),
        ("(?<=a)b", "RE2"),
        (r"(a)\1", "RE2"),
        ("(", "RE2"),
        (r"\pN{3}", "cannot be read"),
    ],
)
def test_an_expression_that_cannot_be_used_is_refused_with_a_reason(expression: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        Pattern(expression)
