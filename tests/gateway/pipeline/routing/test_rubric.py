"""What a judge is asked, and how it is understood."""

from __future__ import annotations

import json

import pytest

from gateway.pipeline.routing import rubric
from gateway.protocol.requests import Message


def test_both_answers_and_the_whole_conversation_are_in_the_question() -> None:
    said = rubric.conversation_text((Message("user", "Is {this} 91 prime?"),), "Be brief.")
    asked = rubric.question(said, " No: 7 x 13. ", "Yes {}.")
    assert "[system]\nBe brief.\n\n[user]\nIs {this} 91 prime?" in asked
    assert asked.index("## Answer A\n\nNo: 7 x 13.\n\n## Answer B\n\nYes {}.\n") > asked.index("[user]")
    assert rubric.conversation_text((Message("user", "Hi"),), None) == "[user]\nHi"


@pytest.mark.parametrize(("text", "found"), [("A", 1), (" B\n", -1), ("T", 0), ("", None), ("Answer A", None)])
def test_a_verdict_is_one_letter(text: str, found: int | None) -> None:
    assert rubric.verdict(text) == found


def test_a_judge_may_answer_nothing_else() -> None:
    assert {rubric.verdict(letter) for letter in json.loads(rubric.VERDICTS.source)} == {1, 0, -1}
