"""Reasons of decisions: kinds with figures, and the sentences that they make."""

from __future__ import annotations

import re

import pytest

from scale.reasons import SENTENCES, Figure, ScaleReason, ScaleReasonKind, sentence_of


def test_each_kind_has_a_sentence_for_each_of_its_sets_of_figures() -> None:
    assert SENTENCES.keys() == set(ScaleReasonKind)
    for kind, sentences in SENTENCES.items():
        places = [frozenset(re.findall(r"{(\w+)}", each)) for each in sentences]
        assert len(set(places)) == len(places), kind
        assert [sentence_of(kind, each) for each in places] == list(sentences)


@pytest.mark.parametrize(
    ("kind", "figures", "text"),
    [
        (
            ScaleReasonKind.LOAD,
            {"offered": 1234.5, "sized": 1470},
            "work keeps 1,234.5 replicas busy: 1,470 with room for chance",
        ),
        (
            ScaleReasonKind.LOAD,
            {"offered": 3.7, "sized": 7, "spare": 1},
            "work keeps 3.7 replicas busy: 7 with room for chance and 1 spare",
        ),
        (ScaleReasonKind.BOUNDS, {"bound": "max_replicas", "limit": 4, "target": 9}, "max_replicas is 4, not 9"),
        (ScaleReasonKind.KV, {"replicas": 6, "percent": 85}, "KV blocks in use need 6 replicas at 85% of each"),
        (ScaleReasonKind.BUDGET, {"budget": 2e6, "paid": 9}, "the budget of 2,000,000 an hour pays 9 replicas"),
        (ScaleReasonKind.ASLEEP, {}, "no request yet"),
        (
            ScaleReasonKind.STARTS_FAIL,
            {"count": 3, "seconds": 60, "cause": "no {GPU}"},
            "3 starts have failed, the next one is tried in 60 s: no {GPU}",
        ),
    ],
)
def test_the_sentence_has_the_figures(kind: ScaleReasonKind, figures: dict[str, Figure], text: str) -> None:
    assert ScaleReason(kind, figures).text == text


def test_figures_without_a_sentence_have_none() -> None:
    assert sentence_of("load", ["offered"]) is None
    assert sentence_of("a later version's", []) is None
