"""`Cache-Control` and tags."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import InvalidRequest
from gateway.protocol.caching import MAX_TAGS, Caching, from_body, from_headers, stricter
from gateway.protocol.chat_completion_create import parse_chat_completion_create

CACHING = st.builds(
    Caching,
    no_store=st.booleans(),
    refresh=st.booleans(),
    max_age=st.none() | st.integers(0, 100),
    only_if_cached=st.booleans(),
    tags=st.lists(st.sampled_from("abcd"), unique=True).map(lambda tags: tuple(sorted(tags))),
)


@pytest.mark.parametrize(
    ("control", "caching"),
    [
        ("no-store", Caching(no_store=True)),
        ("No-Cache", Caching(refresh=True)),
        ("max-age=60", Caching(max_age=60)),
        ("max-age=60, max-age=5", Caching(max_age=5)),
        ("max-age=0", Caching(refresh=True, max_age=0)),
        ("only-if-cached, max-age=9", Caching(only_if_cached=True, max_age=9)),
        ('max-age="60"', Caching(max_age=60)),
        (f"max-age={'9' * 100}", Caching(max_age=10**9)),
        ("", Caching()),
    ],
)
def test_header_and_body_know_the_same_directives(control: str, caching: Caching) -> None:
    assert from_headers({"cache-control": control}) == from_body(control, None) == caching


def test_directives_that_mean_nothing_here_are_ignored_in_a_header_only() -> None:
    assert from_headers({"cache-control": "no-transform, max-stale=5, stale-if-error"}) == Caching()
    with pytest.raises(InvalidRequest, match="no-store, no-cache, max-age") as caught:
        from_body("no-transform", None)
    assert caught.value.param == "roundhouse.cache"


@pytest.mark.parametrize("control", ["max-age", "max-age=", "max-age=-1", "max-age=1.5", "max-age=abc", "max-age = 5"])
def test_an_age_that_cannot_be_read_is_not_taken_for_any_age(control: str) -> None:
    assert from_headers({"cache-control": control}) == Caching(refresh=True)
    with pytest.raises(InvalidRequest):
        from_body(control, None)


def test_tags_are_sorted_and_named_once() -> None:
    assert from_headers({"x-roundhouse-cache-tags": "news, faq,news"}).tags == ("faq", "news")
    assert from_body(None, ["news", "faq"]).tags == ("faq", "news")


@pytest.mark.parametrize("tag", ["", "*", "a b", "a=b", "ä", "x" * 65, "a\n"])
def test_tags_of_another_form_are_refused(tag: str) -> None:
    """`*` and `=` mean something in Redis."""
    with pytest.raises(InvalidRequest, match="1 to 64 letters") as caught:
        from_body(None, [tag])
    assert caught.value.param == "roundhouse.cache_tags"


def test_too_many_tags_are_refused_wherever_they_stand() -> None:
    names = [f"t{number}" for number in range(MAX_TAGS + 1)]
    with pytest.raises(InvalidRequest, match="at most 8"):
        from_headers({"x-roundhouse-cache-tags": ",".join(names)})
    with pytest.raises(InvalidRequest, match="at most 8"):
        stricter(Caching(tags=tuple(names[:5])), Caching(tags=tuple(names[5:])))


@given(CACHING, CACHING)
def test_together_they_never_ask_for_less_care_than_one(one: Caching, other: Caching) -> None:
    both = stricter(one, other)
    assert both == stricter(other, one)
    for each in (one, other):
        assert stricter(both, each) == both
        assert both.no_store >= each.no_store and both.refresh >= each.refresh
        assert both.only_if_cached >= each.only_if_cached and set(both.tags) >= set(each.tags)
        assert each.max_age is None or (both.max_age is not None and both.max_age <= each.max_age)


@pytest.mark.parametrize(("n", "several"), [(None, False), (1, False), (2, True)])
def test_several_answers_to_one_prompt_say_so(n: int | None, several: bool) -> None:
    body = {"model": "auto", "messages": [{"role": "user", "content": "hi"}], "n": n}
    assert {turn.caching.several for turn in parse_chat_completion_create(body).turns} == {several}
