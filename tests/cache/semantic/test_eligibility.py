"""Which turns may ask the semantic cache."""

from __future__ import annotations

import pytest

from cache.semantic.eligibility import MAX_WORDS, Ineligible, ineligible, standalone

PLAIN = [
    "What is the capital of France?",
    "How do I delete my account?",
    "Why is the sky blue?",
    "What are the health benefits of green tea?",
    "Explain the difference between a virus and a bacterium.",
    "Who wrote the novel Moby Dick?",
    "How can I learn to play the guitar?",
    "Where do penguins live?",
    "How do I open a bank account?",
]


@pytest.mark.parametrize("question", PLAIN)
def test_a_plain_question_may_ask(question: str) -> None:
    assert ineligible(question) is None


@pytest.mark.parametrize(
    ("question", "reason"),
    [
        ("", Ineligible.LENGTH),
        ("42", Ineligible.LENGTH),
        ("what is " * MAX_WORDS, Ineligible.LENGTH),
        ("What does `x = y` do?", Ineligible.CODE),
        ("Why does this fail?\n```\nprint(1)\n```", Ineligible.CODE),
        ("What does def f(x): return x do?", Ineligible.CODE),
        ("What is a NullPointerException and where does it come from?", Ineligible.CODE),
        ("What does SELECT name FROM users do?", Ineligible.CODE),
        ("Where is the file in /etc/nginx/conf?", Ineligible.CODE),
        ("What is 17 + 25?", Ineligible.MATHEMATICS),
        ("What is x^2 for x = 3?", Ineligible.MATHEMATICS),
        ("How do I solve \\sqrt 2 of this?", Ineligible.MATHEMATICS),
        ("What is the derivative of the sine?", Ineligible.MATHEMATICS),
        ("Wie ist das Wetter in Berlin?", Ineligible.LANGUAGE),
        ("Quelle est la capitale de la France?", Ineligible.LANGUAGE),
        ("¿Cuál es la capital de España?", Ineligible.LANGUAGE),
        ("日本の首都はどこですか", Ineligible.LANGUAGE),
        ("What is the weather in Paris?", Ineligible.TIME),
        ("Who is the current president of Brazil?", Ineligible.TIME),
        ("What are the latest news about the strike?", Ineligible.TIME),
        ("What is the price of gold?", Ineligible.TIME),
        ("What is the exchange rate of the dollar?", Ineligible.TIME),
        ("Who won the match last week?", Ineligible.TIME),
        ("Write a poem about the sea.", Ineligible.CHANCE),
        ("What is a random fact about cats?", Ineligible.CHANCE),
        ("Tell the joke with the chicken and the road, that is another one.", Ineligible.CHANCE),
    ],
)
def test_what_may_not_ask_has_its_reason(question: str, reason: Ineligible) -> None:
    assert ineligible(question) is reason


@pytest.mark.parametrize(
    "question",
    [
        "How old is he?",
        "What about Germany, is it the same?",
        "And what is the capital of Spain?",
        "Why?",
        "Can you explain that in more detail?",
        "What is the second one for?",
        "Translate the answer to French please.",
        "Is this still true for adults?",
        "Which of them is the cheapest?",
        "What did you say in your answer about dosage?",
    ],
)
def test_a_later_turn_that_leans_on_an_earlier_one_may_not_ask(question: str) -> None:
    assert not standalone(question)
    assert ineligible(question, earlier_turns=2) in (Ineligible.CONTEXT, Ineligible.CHANCE)


@pytest.mark.parametrize("question", [question for question in PLAIN if len(question.split()) > 4])
def test_a_later_turn_that_stands_alone_may_ask(question: str) -> None:
    assert ineligible(question, earlier_turns=4) is None


def test_a_question_about_the_asker_is_kept_out_of_what_others_are_served_from() -> None:
    assert ineligible("Where is my parcel, and what is in it?", private=False) is Ineligible.PERSON
    assert ineligible("How do I delete my account?", private=False) is Ineligible.PERSON
    assert ineligible("How do I delete my account?", private=True) is None
    assert ineligible("How do I learn to play the guitar?", private=False) is None
