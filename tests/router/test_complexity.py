"""The complexity score: bounded, explained, and in the right order."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.complexity import score
from router.features import Features, PromptMessage, extract

COUNTS = st.integers(0, 1_000)
FEATURES = st.builds(
    Features,
    asks=st.booleans(),
    **{field.name: COUNTS for field in msgspec.structs.fields(Features) if field.name != "asks"},
)


def of(text: str) -> float:
    return score(extract([PromptMessage("user", text)])).score


@given(FEATURES)
def test_the_contributions_add_up_to_a_score_between_0_and_1(features: Features) -> None:
    complexity = score(features)
    assert 0 <= complexity.score <= 1
    assert sum(reason.contribution for reason in complexity.reasons) == pytest.approx(complexity.score)


@given(FEATURES, st.sampled_from([f.name for f in msgspec.structs.fields(Features) if f.name != "asks"]))
def test_more_of_any_sign_never_lowers_the_score(features: Features, name: str) -> None:
    more = msgspec.structs.replace(features, **{name: getattr(features, name) + 1})
    assert score(more).score >= score(features).score - 1e-12


def test_nothing_said_is_not_complex() -> None:
    assert score(Features()).score == 0


@pytest.mark.parametrize(
    ("easier", "harder"),
    [
        ("hello", "which port does it use"),
        ("thanks a lot!", "how do i add an adapter"),
        ("how are you?", "what is 12 + 7?"),
        ("what is 12 + 7?", "Tom has 3 apples, buys 4 more and gives 2 away. How many are left?"),
        ("what is a prefix cache?", "why does a prefix cache help, and what are its trade-offs?"),
        ("tell me a joke", "write a function that merges two sorted lists without recursion"),
    ],
)
def test_harder_questions_score_higher(easier: str, harder: str) -> None:
    assert of(easier) < of(harder)


def test_reasons_are_sentences_with_the_largest_contribution_first() -> None:
    reasons = score(extract([PromptMessage("user", "Explain why 2 + 2 = 4, step by step.")])).reasons
    contributions = [reason.contribution for reason in reasons]
    assert contributions == sorted(contributions, reverse=True)
    assert reasons[0].sentence == "asks for an explanation or comparison"
