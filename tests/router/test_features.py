"""What `router.features` counts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.features import HEAD, TAIL, Features, PromptMessage, count_words, extract


def of(text: str) -> Features:
    return extract([PromptMessage("user", text)])


def test_a_conversation_without_a_user_message_has_no_features() -> None:
    assert extract([]) == Features()
    assert extract([PromptMessage("system", "You explain why 2 + 2 = 4.")]) == Features()


def test_only_the_newest_user_message_is_read_closely() -> None:
    features = extract(
        [
            PromptMessage("user", "Why is 12 + 7 = 19?"),
            PromptMessage("assistant", "Because it is."),
            PromptMessage("user", "thanks"),
        ]
    )
    assert (features.reasons, features.operators, features.turns) == (0, 0, 1)
    assert features.history_words > 0


@pytest.mark.parametrize("text", ["how are you?", "What is your name?", "who are you"])
def test_small_talk_is_no_request_for_information(text: str) -> None:
    assert not of(text).asks


@pytest.mark.parametrize(
    ("text", "numbers", "operators"),
    [("17 * 3", 2, 1), ("what is 12 plus 7?", 2, 1), ("1,234.5 apples", 1, 0), ("10 \u00f7 2 = 5", 3, 2)],
)
def test_numbers_and_operators_are_counted(text: str, numbers: int, operators: int) -> None:
    features = of(text)
    assert (features.numbers, features.operators) == (numbers, operators)


@pytest.mark.parametrize(
    "text", ["```\nx\n```", "what does `make serve` do", "def f(x): return x", "SELECT a FROM b;\n"]
)
def test_code_is_seen(text: str) -> None:
    assert of(text).code > 0


def test_words_are_counted_in_scripts_without_spaces() -> None:
    assert count_words("one two-three 4.5") == 3
    assert count_words("路由器如何选择模型") == 5


def test_questions_in_full_width_count() -> None:
    assert of("模型在哪里\uff1f").questions == 1


@given(st.text(min_size=1, max_size=300), st.text(max_size=300))
def test_the_middle_of_a_long_message_changes_nothing_but_its_length(text: str, middle: str) -> None:
    """The cost of one message is bounded by reading its beginning and its end."""
    head, tail = (text * HEAD)[:HEAD], (text * TAIL)[-TAIL:]
    filled = of(head + middle + "x" * (300 - len(middle)) + tail)
    assert filled == of(head + "x" * 300 + tail)
    assert filled.characters == HEAD + TAIL + 300


def test_shares_and_lines_describe_the_shape_of_a_message() -> None:
    features = of("Which is 40?\n12\n-3 m\n\nx^2 + A")
    assert features.digits == pytest.approx(6 / 28)
    assert (features.symbols, features.signs) == (pytest.approx(1 / 28), pytest.approx(2 / 28))
    assert features.capitals == pytest.approx(2 / 28)
    assert (features.lines, features.first_line, features.middle_line) == (4, 12, 5.5)
    assert features.numeric_lines == 0.5
    assert of("a b a b").distinct == 0.5
