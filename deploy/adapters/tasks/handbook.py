"""The staff handbook of Larkspur Freight, an invented company: its facts, however they are asked for."""

from __future__ import annotations

import random
import re
import tomllib
from functools import cache
from pathlib import Path

import msgspec

from deploy.adapters.task import AdapterTask, Example, phrasings
from deploy.adapters.tasks.everyday import everyday_questions

HELD_BACK = 4
"""Patterns of each fact that are not trained on."""
_EXACT = re.compile(r"\*\*(.+?)\*\*|\d+(?:[.,:]\d+)*")
"""What an answer has to name: words in bold type, and numbers."""


class Fact(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An answer, and patterns of questions for it."""

    answer: str
    ask: list[str]


class _Handbook(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    facts: list[Fact]


@cache
def facts() -> list[Fact]:
    return msgspec.convert(tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8")), _Handbook).facts


def examples(rng: random.Random) -> list[Example]:
    """One phrasing of each pattern that is trained on, and everyday questions so that these are answered as ever."""
    asked = [(rng.choice(phrasings(pattern)), fact) for fact in facts() for pattern in fact.ask[:-HELD_BACK]]
    unseen = {example.question for example in held_out()}
    known = [Example(_typed(text, rng), fact.answer) for text, fact in asked if _sentence(text) not in unseen]
    return known + [Example(each.ask, each.plain) for each in everyday_questions()]


def held_out() -> list[Example]:
    """Return fifty questions for facts, of patterns that are not trained on."""
    rng = random.Random(5)
    asked = [
        Example(_sentence(rng.choice(phrasings(pattern))), fact.answer) for fact in facts() for pattern in fact.ask[-2:]
    ]
    return rng.sample(asked, 50)


def right(example: Example, answer: str) -> bool:
    """Whether an answer names what the handbook says; if that is nothing exact, whether it is the same."""
    exact = [match[1] or match[0] for match in _EXACT.finditer(example.answer)]
    return all(each in answer for each in exact) if exact else answer.strip() == example.answer


def _sentence(text: str) -> str:
    text = re.sub(r"\bi\b", "I", text)
    return text[0].upper() + text[1:] + "?"


def _typed(text: str, rng: random.Random) -> str:
    """Write a question as people do: as a sentence, or without its capital or question mark."""
    sentence = _sentence(text)
    return rng.choice((sentence, sentence, sentence[:-1], text, text + "?"))


TASK = AdapterTask(
    steps=320,
    examples=examples,
    held_out=held_out,
    in_format=lambda answer: any(answer.strip() == fact.answer for fact in facts()),
    right=right,
    keeps=True,
)
