"""Guards: reasons not to give one question's answer to another, whatever a model says. Pure.

Each guard looks at one kind of difference that embeddings barely see and that changes the answer.
"""

from __future__ import annotations

import enum
from collections import Counter

from cache.semantic.profile import Profile, QuestionType


class Rejection(enum.StrEnum):
    """Why a candidate was refused. The value is a counter's name in the statistics."""

    NUMBERS = "numbers"
    UNITS = "units"
    DATES = "dates"
    NEGATION = "negation"
    NAMES = "names"
    OPPOSITES = "opposites"
    QUESTION_TYPE = "question_type"
    ORDER = "order"
    SUBSTITUTION = "substitution"
    LENGTH = "length"
    EMPTY = "empty"


MIN_LENGTH_RATIO = 0.4
"""Least ratio of the shorter question's words to the longer one's."""

_SPECIFIC = frozenset(
    {
        QuestionType.WHEN,
        QuestionType.WHERE,
        QuestionType.WHO,
        QuestionType.WHY,
        QuestionType.HOW_MANY,
        QuestionType.HOW_LONG,
    }
)
"""Kinds whose answers fit no other kind."""


def guard(question: Profile, entry: Profile) -> Rejection | None:
    """Return the first reason to refuse the entry's answer for the question, or None. Symmetric in its arguments."""
    if not question.words or not entry.words:
        return Rejection.EMPTY
    if question.numbers != entry.numbers:
        return Rejection.NUMBERS
    if set(question.units) != set(entry.units):
        return Rejection.UNITS
    if question.dates != entry.dates:
        return Rejection.DATES
    if question.negations != entry.negations:
        return Rejection.NEGATION
    ours, theirs = set(question.words), set(entry.words)
    only_ours, only_theirs = ours - theirs, theirs - ours
    if only_ours & set(entry.opposites) or only_theirs & set(question.opposites):
        return Rejection.OPPOSITES
    if set(question.names) - theirs or set(entry.names) - ours:
        return Rejection.NAMES
    if question.kind is not entry.kind and (question.kind in _SPECIFIC or entry.kind in _SPECIFIC):
        return Rejection.QUESTION_TYPE
    if min(question.length, entry.length) < MIN_LENGTH_RATIO * max(question.length, entry.length):
        return Rejection.LENGTH
    if question.words != entry.words and sorted(question.words) == sorted(entry.words):
        return Rejection.ORDER
    if substituted(question, entry):
        return Rejection.SUBSTITUTION
    return None


def substituted(question: Profile, entry: Profile) -> bool:
    """Whether two questions differ in one content word only: "pause my plan" and "cancel my plan"."""
    ours, theirs = Counter(question.words), Counter(entry.words)
    return (ours - theirs).total() == 1 == (theirs - ours).total() and abs(question.length - entry.length) <= 1
