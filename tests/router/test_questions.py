"""Files of questions and of outcomes."""

from __future__ import annotations

import contextlib
import io
import re
from collections import Counter
from decimal import Decimal

import msgspec
import pytest

from gateway.cli.calibrate import EXAM
from router.grading import Code, Contains, Json, Number, right
from router.questions import PoolAnswer, Question, missing, read_answers, read_questions

LINE = b'{"id": "a", "prompt": "What is 2 + 2?", "grade": {"by": "number", "expected": 4}}'


def answer(question: Question, pool: str = "small", **changed: object) -> PoolAnswer:
    made = PoolAnswer(question.id, question.digest, pool, "tiny", 100, "4", "stop", 9, 1, 0.1)
    return msgspec.structs.replace(made, **changed)


def test_a_question_is_a_line() -> None:
    (question,) = read_questions(b"\n" + LINE + b"\n\n")
    assert (question.id, question.kind, question.grade) == ("a", "questions", Number(expected=Decimal(4)))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "it has no questions"),
        (b"{", "line 1: "),
        (LINE + b"\n" + LINE, "line 2: the id 'a' is that of line 1, too"),
        (LINE.replace(b"number", b"guess"), "line 1: Invalid value 'guess' - at `$.grade.by`"),
        (LINE.replace(b'"expected"', b'"expectd"'), "line 1: Object contains unknown field `expectd` - at `$.grade`"),
        (LINE.replace(b'"number", "expected": 4', b'"regex", "pattern": "("'), "line 1: grade of a: RE2 cannot"),
        (b"\xff", "line 1: "),
    ],
)
def test_a_file_that_cannot_be_used_is_refused_by_its_line(content: bytes, said: str) -> None:
    with pytest.raises(ValueError, match=re.escape(said)):
        read_questions(content)


def test_only_what_a_pool_has_not_answered_is_missing() -> None:
    (question,) = read_questions(LINE)
    kept = read_answers(msgspec.json.encode(answer(question)), 100)
    assert missing([question], "small", kept) == []
    assert missing([question], "large", kept) == [question]
    assert missing([msgspec.structs.replace(question, prompt="What is 2 + 3?")], "small", kept) != []


@pytest.mark.parametrize(
    ("changed", "limits"),
    [
        ({}, {50: True, 100: True, 200: True}),
        ({"output_tokens": 80}, {50: False, 100: True, 200: True}),
        ({"finish": "length", "output_tokens": 100}, {50: False, 100: True, 200: False}),
    ],
)
def test_an_answer_that_ended_by_itself_serves_other_limits(
    changed: dict[str, object], limits: dict[int, bool]
) -> None:
    (question,) = read_questions(LINE)
    line = msgspec.json.encode(answer(question, **changed))
    assert {limit: bool(read_answers(line, limit)) for limit in limits} == limits


def test_of_two_answers_the_later_one_counts() -> None:
    (question,) = read_questions(LINE)
    lines = b"\n".join(msgspec.json.encode(answer(question, answer=text)) for text in ("5", "4"))
    assert [each.answer for each in read_answers(lines, 100).values()] == ["4"]


def shipped() -> list[Question]:
    return read_questions(EXAM.read_bytes())


def test_the_questions_of_the_repository_are_of_many_kinds() -> None:
    kinds = Counter(question.kind for question in shipped())
    assert kinds.total() >= 150 and len(kinds) >= 9 and min(kinds.values()) >= 10
    assert len({question.prompt for question in shipped()}) == kinds.total()


def test_their_graders_take_what_they_expect() -> None:
    for question in shipped():
        match question.grade:
            case Number(expected=number):
                assert right(question.grade, f"{number}"), question.id
            case Contains(words=words):
                spellings = [each if isinstance(each, str) else each[0] for each in words]
                assert right(question.grade, ", ".join(spellings)), question.id
            case Json(expected=value):
                assert right(question.grade, msgspec.json.encode(value).decode()), question.id
            case Code(accepted=accepted):
                assert all(right(question.grade, f"```python\n{each}\n```") for each in accepted), question.id
        assert not right(question.grade, "I do not know."), question.id


def test_their_python_programs_print_what_is_expected() -> None:
    """Python itself says so."""
    ran = 0
    for question in shipped():
        if question.kind == "code reading" and (
            program := re.search(r"```python\n(.*)```", question.prompt, re.DOTALL)
        ):
            printed = io.StringIO()
            with contextlib.redirect_stdout(printed):
                exec(program[1], {})
            assert right(question.grade, printed.getvalue()), question.id
            ran += 1
    assert ran >= 20
