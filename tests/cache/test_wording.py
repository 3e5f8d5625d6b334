"""What can be told by words."""

from __future__ import annotations

import pytest

from cache import wording


@pytest.mark.parametrize(
    "text",
    [
        "What's the weather in Paris?",
        "who won the match yesterday",
        "Give me the LATEST version number",
        "What is the current exchange rate?",
        "what time is it",
        "What\u2019s the date?",
        "Who is the current president?",
        "What is the bitcoin price",
        "Wie ist das Wetter heute?",
        "Wie spät ist es?",
        "Quelle heure est-il ?",
        "quelle est la météo",
        "¿Qué hora es?",
        "x" * (wording.MAX_LENGTH + 1),
    ],
)
def test_what_depends_on_the_time_is_noticed(text: str) -> None:
    assert wording.depends_on_time(text)


@pytest.mark.parametrize(
    "text",
    ["Tell me another joke", "Pick a random number", "flip a coin", "Give me a different example", "Nenne noch eine"],
)
def test_what_asks_for_chance_is_noticed(text: str) -> None:
    assert wording.asks_for_chance(text)


@pytest.mark.parametrize("text", ["Where is my parcel?", "I am Bob", "Was kostet mein Vertrag?", "Où est mon colis ?"])
def test_what_is_personal_is_noticed(text: str) -> None:
    assert wording.is_personal(text)


@pytest.mark.parametrize(
    "text",
    [
        "What is a prefix cache?",
        "Explain electric charge.",
        "Write a sonnet about rivers",
        "2 + 2?",
        "",
        "Was ist Beton?",
    ],
)
def test_plain_questions_are_none_of_it(text: str) -> None:
    assert not wording.depends_on_time(text)
    assert not wording.asks_for_chance(text)
    assert not wording.is_personal(text)


@pytest.mark.parametrize(
    "answer",
    [
        "I'm sorry, but I can't help with that.",
        "I\u2019m sorry, but as an AI I cannot do that.",
        "I cannot assist with this request.",
        "As an AI language model, I have no opinions.",
        "Es tut mir leid, dabei kann ich nicht helfen.",
        "Lo siento, no puedo ayudarte.",
    ],
)
def test_refusals_are_noticed(answer: str) -> None:
    assert wording.refuses(answer)


@pytest.mark.parametrize(
    "answer", ["Sorry is a card game.", "It cannot rain.", "", "Paris. I'm sorry, but I can't say"]
)
def test_answers_are_no_refusals(answer: str) -> None:
    assert not wording.refuses(answer)
