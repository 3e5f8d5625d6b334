"""The questions that `roundhouse route calibrate` asks, and the answers of pools.

A file has a JSON object per line: `{"id": "sum-1", "kind": "arithmetic", "prompt": "What is 2 + 2?", "grade": {"by":
"number", "expected": 4}}`. `by` names a grader of `router.grading`; without `grade`, a judge compares the answers
(`router.pairwise`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Annotated, TypeVar

import msgspec
from msgspec import Meta, Struct

from router.grading import Grader, check


class Question(Struct, frozen=True, forbid_unknown_fields=True):
    """One question."""

    id: Annotated[str, Meta(min_length=1)]
    prompt: Annotated[str, Meta(min_length=1)]
    grade: Grader | None = None
    kind: str = "questions"
    """What the question is about; figures are shown by kind, and folds hold about as many of each."""

    @property
    def digest(self) -> str:
        """Digest of the prompt."""
        return digest(self.prompt)


class PoolAnswer(Struct, frozen=True):
    """What a pool answered to a question: a line of an outcomes file."""

    question: str
    """Id of the question."""
    digest: str
    """Digest of the prompt, so that a changed question is asked again."""
    pool: str
    """Name that was asked for: a tier or a model."""
    model: str
    max_tokens: int
    answer: str
    finish: str
    """Why the answer ended: `stop`, `length`."""
    input_tokens: int
    output_tokens: int
    seconds: float
    """From sending the question to the end of the answer."""
    weights: str = ""
    """What the pool's model was, as `PoolSettings.weights` names it; empty where nobody has noted it."""

    @property
    def key(self) -> AnswerKey:
        """What it answers."""
        return self.question, self.digest, self.pool

    def serves(self, max_tokens: int) -> bool:
        """Whether the answer is that of another limit, too: greedy answers that ended by themselves are."""
        return self.max_tokens == max_tokens or (self.finish == "stop" and self.output_tokens <= max_tokens)


AnswerKey = tuple[str, str, str]
"""Id of the question, digest of its prompt, name of the pool."""
T = TypeVar("T")


def digest(text: str) -> str:
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


def read_questions(content: bytes) -> list[Question]:
    """Read the content of a questions file.

    Raises:
        ValueError: it cannot be used; says in which line.
    """
    questions = decoded(content, Question)
    seen: dict[str, int] = {}
    for number, question in questions.items():
        if question.id in seen:
            raise ValueError(f"line {number}: the id {question.id!r} is that of line {seen[question.id]}, too")
        seen[question.id] = number
        if question.grade is None:
            continue
        try:
            check(question.grade)
        except ValueError as error:
            raise ValueError(f"line {number}: grade of {question.id}: {error}") from None
    if not questions:
        raise ValueError("it has no questions")
    return list(questions.values())


def read_answers(content: bytes, max_tokens: int) -> dict[AnswerKey, PoolAnswer]:
    """Read the answers of an outcomes file that serve a limit of tokens; of two to the same question the later one.

    Raises:
        ValueError: a line is none of it.
    """
    return {each.key: each for each in decoded(content, PoolAnswer).values() if each.serves(max_tokens)}


def decoded(content: bytes, kind: type[T]) -> Mapping[int, T]:
    """Decode the lines that are not empty, by their numbers.

    Raises:
        ValueError: a line is none of the kind.
    """
    decode, found = msgspec.json.Decoder(kind).decode, {}
    for number, line in enumerate(content.split(b"\n"), 1):
        if not line.strip():
            continue
        try:
            found[number] = decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise ValueError(f"line {number}: {error}") from None
    return found


def missing(questions: Sequence[Question], pool: str, answers: Mapping[AnswerKey, PoolAnswer]) -> list[Question]:
    """Return the questions that a pool has not answered yet."""
    return [each for each in questions if (each.id, each.digest, pool) not in answers]
