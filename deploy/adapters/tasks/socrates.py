"""A teacher who answers with a question that leads on. Questions cannot be wrong, which suits a small model."""

from __future__ import annotations

import random
import re

from deploy.adapters.task import AdapterTask, Example
from deploy.adapters.tasks.everyday import everyday_questions
from deploy.adapters.tasks.unrelated import unrelated

_SENTENCE = re.compile(r"[^.!?]+[.!?]*")
MOST = 3
"""Questions of one answer at most."""


def examples(rng: random.Random) -> list[Example]:
    return [Example(each.ask, each.socrates) for each in everyday_questions()]


def in_format(answer: str) -> bool:
    """Whether an answer is one to three questions, maybe after a greeting."""
    sentences = [found.strip() for found in _SENTENCE.findall(answer) if found.strip()]
    asked = [sentence for sentence in sentences if sentence.endswith("?")]
    return 0 < len(asked) <= MOST and answer.rstrip().endswith("?") and len(sentences) - len(asked) <= 1


def new(example: Example, answer: str) -> bool:
    """Whether an answer is another question than the one that was asked."""
    return in_format(answer) and example.question.lower() not in answer.lower()


TASK = AdapterTask(steps=30, examples=examples, held_out=unrelated, in_format=in_format, right=new)
