"""Filtering a stream equals filtering its text, for every text and every way to cut it."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gateway.safety.stream import FilterRule, TextFilter, filter_text
from tests.gateway.recognisers.samples import FOUND, PEM, RECOGNISERS, cuts, texts

RULES = [FilterRule(name, recogniser, f"[{name}]") for name, recogniser in RECOGNISERS.items()]


def whole(text: str, rules: list[FilterRule] = RULES) -> tuple[str, list[tuple[str, str]]]:
    """An independent way to filter: all text at once, position after position."""
    out, at, findings = "", 0, []
    while at < len(text):
        for rule in rules:
            match = rule.recogniser.find(text, at)
            if match is not None and match.start == at:
                end = match.end if match.rest is None else match.rest.consume(text, match.end, True)[0]
                findings.append((rule.name, text[at:end]))
                out, at = out + rule.replacement, end
                break
        else:
            out, at = out + text[at], at + 1
    return out, findings


def streamed(chunks: list[str], rules: list[FilterRule] = RULES) -> tuple[str, list[tuple[str, str]]]:
    findings: list[tuple[str, str]] = []
    filter = TextFilter(rules, lambda rule, text: findings.append((rule.name, text)))
    bound = max(rule.recogniser.reach for rule in rules)
    out = ""
    for chunk in chunks:
        out += filter.feed(chunk)
        assert filter.held <= bound
    return out + filter.finish(), findings


@given(data=st.data(), text=texts)
@settings(max_examples=400)
def test_a_stream_comes_out_as_its_whole_text(data: st.DataObject, text: str) -> None:
    assert streamed(data.draw(cuts(text))) == whole(text)


@given(text=texts)
@example(PEM)
@settings(max_examples=200)
def test_one_character_at_a_time(text: str) -> None:
    assert streamed(list(text)) == whole(text)


@pytest.mark.parametrize("rule", sorted(FOUND))
def test_nothing_is_lost_at_any_edge(rule: str) -> None:
    """Whatever two places a secret is cut at."""
    only = [next(each for each in RULES if each.name == rule)]
    for secret in FOUND[rule]:
        text = f"it is {secret} !"
        expected = f"it is [{rule}]" + (" !" if "KEY" not in secret or "END" in secret else "!")
        for first in range(len(text)):
            for second in {first, min(first + 3, len(text)), len(text) - 1}:
                chunks = [text[:first], text[first : max(first, second)], text[max(first, second) :]]
                assert streamed(chunks, only)[0] == expected


def test_prose_is_not_held_back_beyond_its_last_word() -> None:
    # An expression of an operator's own always waits for its longest match, and "the" begins a blocked phrase.
    rules = [rule for rule in RULES if rule.name not in ("custom", "blocked")]
    filter = TextFilter(rules, lambda rule, text: None)
    assert filter.feed("Steam lifted the heavy ") == "Steam lifted the heavy "
    assert filter.feed("door") == ""
    assert filter.feed(" and") == "door "
    assert filter.finish() == "and"


def test_a_release_shows_what_waits_and_still_replaces_the_rest_of_it() -> None:
    filter = TextFilter(RULES, lambda rule, text: None)
    assert filter.feed("my card is 4111 1111 ") == "my card is "
    assert filter.release() == "4111 1111 "
    assert filter.held == 0
    assert filter.feed("1111 1111 thanks ") + filter.finish() == "[card] thanks "


def test_a_release_does_not_show_what_is_already_sure() -> None:
    filter = TextFilter(RULES, lambda rule, text: None)
    assert filter.feed("it is 4111 1111 1111 1111") == "it is "
    assert filter.release() == "[card]"
    assert filter.feed(", no?") + filter.finish() == ", no?"


@given(data=st.data(), text=texts)
def test_releases_lose_and_double_nothing_where_nothing_is_found(data: st.DataObject, text: str) -> None:
    rules = [FilterRule("email", RECOGNISERS["email"], "")]
    text = text.replace("@", "a")
    filter = TextFilter(rules, lambda rule, text: None)
    out = ""
    for chunk in data.draw(cuts(text)):
        out += filter.feed(chunk)
        if data.draw(st.booleans()):
            out += filter.release()
    assert out + filter.finish() == text


@given(data=st.data(), text=texts)
def test_a_blocking_rule_ends_the_text_before_what_it_found(data: st.DataObject, text: str) -> None:
    rules = [FilterRule("card", RECOGNISERS["card"], blocks=True), *RULES]
    findings: list[str] = []
    filter = TextFilter(rules, lambda rule, text: findings.append(rule.name))
    out = "".join(map(filter.feed, data.draw(cuts(text)))) + filter.finish()
    expected, seen = whole(text, rules)
    first = next((index for index, (name, _) in enumerate(seen) if name == "card"), None)
    assert filter.blocked == (first is not None)
    if first is None:
        assert out == expected
    else:
        assert findings == [name for name, _ in seen[: first + 1]]
        assert expected.startswith(out)
        assert filter.feed("more") == filter.finish() == filter.release() == ""


def test_a_long_text_with_many_findings_is_filtered_whole() -> None:
    text = "write to bob@example.com or call +49 30 1234567, " * 2000
    out, blocked = filter_text(text, RULES, lambda rule, text: None)
    assert out == "write to [email] or call [phone], " * 2000
    assert not blocked
