"""The text that a request is judged by, whatever it is wrapped in."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.cli.calibrate import EXAM
from router.canonical import LONGEST, canonical
from router.questions import read_questions

PLAIN = "Which number comes next: 2, 4, 8, 16, ...?\n18\n24\n32\n64"
QUESTION = PLAIN.splitlines()[0]


@pytest.mark.parametrize(
    "text",
    [
        PLAIN,
        f"{QUESTION}\nA) 18\nB) 24\nC) 32\nD) 64\nAnswer with the letter only.",
        f"{QUESTION}\nA. 18\nB. 24\nC. 32\nD. 64\nAnswer:",
        f"Question: {QUESTION}\n\n(A) 18\n(B) 24\n(C) 32\n(D) 64\n\nChoose the correct option.",
        f"{QUESTION} Options: (A) 18 (B) 24 (C) 32 (D) 64",
        f"Hello! Please answer the following question: {QUESTION}\n18\n  24\n32\n64  \nThank you very much!",
    ],
)
def test_options_labels_and_instructions_change_nothing(text: str) -> None:
    assert canonical(text) == PLAIN


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("Hi there, could you tell me what a monad is? Thanks!", "What a monad is?"),
        ("Write a poem about rain. Reply in German.", "Write a poem about rain."),
        ("Answer with one word.", "Answer with one word."),
        ("def f(a):\n    return a", "def f(a):\nreturn a"),
        ("Compare A) and B) in this text.", "Compare A) and B) in this text."),
        ("Dear team, the lift is out of order.", "Dear team, the lift is out of order."),
        ("Question: Answer with one word.\nAnswer:", "Answer with one word."),
        ("", ""),
        ("日本の首都はどこですか。", "日本の首都はどこですか。"),
        (f"one{' ' * 1500}two{chr(0x3000) * 1500}three{chr(0x1F) * 500}four", "one two three four"),
        (f"Hi! {'a' * LONGEST}", f"Hi! {'a' * LONGEST}"),
    ],
)
def test_what_is_asked_stays(text: str, left: str) -> None:
    assert canonical(text) == left


def test_many_wrappings_are_not_all_taken_away() -> None:
    """Each takes another look at the whole text, whose length a client decides."""
    assert canonical("please " * 500 + "sing").count("please") > 400


@given(st.text(max_size=300))
def test_something_always_stays(text: str) -> None:
    assert bool(canonical(text)) == bool(text)


@pytest.mark.parametrize(
    "wrapped", ["Question: {}\nAnswer:", "Hello! {}", "Please answer this question: {}", "{}\n\nThanks!"]
)
def test_wrapping_a_question_of_the_exam_changes_nothing(wrapped: str) -> None:
    for question in read_questions(EXAM.read_bytes()):
        assert canonical(wrapped.format(question.prompt)) == canonical(question.prompt), question.id


def test_every_wording_belongs_to_a_question_of_the_exam() -> None:
    known = {question.id for question in read_questions(EXAM.read_bytes())}
    lines = (EXAM.parents[2] / "bench" / "texts" / "wordings.jsonl").read_bytes().splitlines()
    found = [msgspec.json.decode(line) for line in lines]
    assert {each["question"] for each in found} <= known
    assert all(len({*each["wordings"]}) == 5 for each in found)
