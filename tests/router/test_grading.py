"""Graders of answers: lenient about what surrounds an answer, strict about the answer, and never an exception."""

from __future__ import annotations

import json
import re
from decimal import Decimal
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.grading import (
    Choice,
    Code,
    Contains,
    Grader,
    Json,
    Number,
    Regex,
    check,
    right,
    same,
    stated_choice,
    stated_number,
)

LETTERS = "ABCD"


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("42", "42"),
        ("**47**", "47"),
        ("The total is 1,234.50 dollars.", "1234.50"),
        ("7 + 5 = 12.", "12"),
        ("\u22125", "-5"),
        ("5 - 3", "3"),
        ("12\n\nExplanation: 3 times 4 is 12, see step 2.", "12"),
        ("The answer is 42 (see step 3).", "42"),
        ("So the final answer is: $19,000.\nCheck: 2 + 2 = 4", "19000"),
        (r"Therefore \[ \boxed{15} \] as 5 times 3 shows.", "15"),
        (".5", "0.5"),
        ("version v1.2.3", None),
        ("none", None),
        ("", None),
    ],
)
def test_the_number_that_an_answer_comes_to(text: str, number: str | None) -> None:
    assert stated_number(text) == (None if number is None else Decimal(number))


@given(st.decimals(min_value=-(10**9), max_value=10**9, allow_nan=False, places=3))
def test_a_number_is_right_however_it_is_wrapped_and_no_other_is(number: Decimal) -> None:
    grader = Number(expected=number)
    for text in (f"{number}", f"{number:,}", f"The answer is {number}.", f"x = {number} metres", f"**{number}**"):
        assert right(grader, text), text
        assert not right(Number(expected=number + 1), text)
    assert right(Number(expected=number + 1, tolerance=Decimal(1)), f"{number}")


@pytest.mark.parametrize(
    ("text", "letter"),
    [
        ("C", "C"),
        ("c", "C"),
        ("C.", "C"),
        ("(C)", "C"),
        ("**C)** in the refrigerator", "C"),
        ("The answer is A banana; so C", "C"),
        ("The answer is A banana", None),
        ("A banana is yellow.", None),
        ("The correct answer is C because it holds.", "C"),
        ("The correct answer is: A) foo", "A"),
        ("Answer: B", "B"),
        ("A) red\nB) green\nC) blue\nThe answer is B.", "B"),
        ("A) red\nB) green", None),
        ("The answer is A. No, the answer is B.", None),
        (r"\boxed{D}", "D"),
        ("E.", None),
        ("It is blue.", None),
        ("", None),
    ],
)
def test_a_letter_is_a_choice_only_where_it_is_stated_as_one(text: str, letter: str | None) -> None:
    assert stated_choice(text, LETTERS) == letter


FORMS = ["{}", "{}.", "({})", "The answer is {}.", "Answer: **{}**", "{}) so"]


@given(st.sampled_from(LETTERS), st.sampled_from(FORMS))
def test_the_letter_stated_is_right_and_the_others_are_wrong(letter: str, form: str) -> None:
    for expected in LETTERS:
        assert right(Choice(expected=expected), form.format(letter)) == (expected == letter)


def test_a_regular_expression_sees_the_answer_with_and_without_its_code_block() -> None:
    assert right(Regex(r"^\s*True\s*$"), "```python\nTrue\n```")
    assert right(Regex(r"```python"), "```python\nTrue\n```")
    assert not right(Regex(r"^\s*True\s*$"), "It prints True.")


@pytest.mark.parametrize(
    ("text", "there"),
    [
        ("It is PARIS.", True),
        ("Paris or London", False),
        ("comparison", False),
        ("in Paris,\n  France", True),
    ],
)
def test_words_count_as_whole_words_in_any_case(text: str, there: bool) -> None:
    assert right(Contains(words=("Paris",), none=("London",)), text) == there


def test_of_spellings_one_is_enough_and_of_words_all_are_needed() -> None:
    grader = Contains(words=(("carbon dioxide", "CO2"), "plants"))
    assert right(grader, "Plants take in CO2.") and right(grader, "carbon\ndioxide; plants")
    assert not right(grader, "CO2") and not right(grader, "plants")


plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**6), 10**6) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text(max_size=5), plain, min_size=1, max_size=3) | st.lists(plain, min_size=1, max_size=3))
def test_json_is_found_alone_in_a_code_block_and_in_a_sentence(value: Any) -> None:
    text = json.dumps(value, indent=2)
    for answer in (text, f"```json\n{text}\n```", f"Here you are: {text}\nThat is it."):
        if "```" not in text.replace("```json", ""):
            assert right(Json(value), answer)
    assert not right(Json([value]), text)


@given(plain, plain)
def test_json_values_are_the_same_where_python_and_types_say_so(one: Any, other: Any) -> None:
    assert same(one, other) == (json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True))
    assert same(one, json.loads(json.dumps(one)))


def test_numbers_of_json_are_compared_by_value_and_true_is_none() -> None:
    assert same({"a": [1, 2.0]}, {"a": [1.0, 2]}) and not same(1, True) and not same({"a": 1}, {"a": 1, "b": 2})
    assert not right(Json({"a": 1}), '{"a": NaN}')


SQUARE = Code(accepted=("def square(n):\n    return n * n", "def square(n):\n    return n ** 2"))


@pytest.mark.parametrize(
    ("text", "fine"),
    [
        ("def square(n):\n    return n * n", True),
        ("```python\ndef square(number: int) -> int:\n    '''Square.'''\n    return number * number  # so\n```", True),
        ("```\ndef square(n):\n    return n**2\n\nprint(square(3))\n```", True),
        ("def square(n):\n    return n + n", False),
        ("def cube(n):\n    return n * n", False),
        ("Use multiplication.", False),
        ("", False),
    ],
)
def test_code_is_compared_without_its_own_names_comments_and_annotations(text: str, fine: bool) -> None:
    assert right(SQUARE, text) == fine


@pytest.mark.parametrize(
    ("text", "fine"),
    [
        ("[x ** 2 for x in numbers]", True),
        ("squares = [n ** 2 for n in numbers]", True),
        ("`[n ** 2 for n in numbers]`", True),
        ("print([n ** 2 for n in numbers])", True),
        ("[n ** 2 for n in values]", False),
        ("[n ** m for n in numbers]", False),
    ],
)
def test_an_expression_may_be_named_or_shown(text: str, fine: bool) -> None:
    assert right(Code(accepted=("[n ** 2 for n in numbers]",)), text) == fine


GRADERS: list[Grader] = [
    Number(expected=Decimal(1)),
    Choice(expected="A"),
    Regex("(b|bb)+$"),
    Contains(words=("a",)),
    Json([]),
    SQUARE,
]


@given(st.sampled_from(GRADERS), st.text() | st.text(alphabet="answer is AB.([{}])\n`*0123,-\\\"'", max_size=200))
def test_no_answer_makes_a_grader_fail(grader: Grader, answer: str) -> None:
    assert right(grader, answer) in (True, False)


DEGENERATE = ["[" * 50_000, "(" * 5_000, "answer " * 50_000, " " * 90_000, "\ud800", "`" * 30_000]


@pytest.mark.parametrize("answer", DEGENERATE)
def test_not_even_a_degenerate_one(answer: str) -> None:
    assert not any(right(grader, answer) for grader in GRADERS if not isinstance(grader, Contains))


@pytest.mark.parametrize(
    ("grade", "said"),
    [
        ({"by": "regex", "pattern": "(unclosed"}, "RE2 cannot compile '(unclosed': missing"),
        ({"by": "choice", "expected": "E"}, "none of the letters ABCD"),
        ({"by": "contains", "words": [""]}, "empty"),
        ({"by": "code", "accepted": ["def"]}, "no Python"),
    ],
)
def test_a_grader_that_cannot_grade_is_refused(grade: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=re.escape(said)):
        check(msgspec.convert(grade, Grader))
