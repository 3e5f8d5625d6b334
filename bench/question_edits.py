"""Questions that differ from an earlier one in a detail that changes the answer: by construction no hit is right."""

from __future__ import annotations

import calendar
import re
from collections.abc import Callable, Sequence

import msgspec
import numpy as np

_NAME = re.compile(r"(?<=[a-z,] )[A-Z][a-z]{3,}\b")
_NUMBER = re.compile(r"\b\d+\b")
_WORD = re.compile(r"(?<= )[a-z]{5,}\b")
_NEGATABLE = (
    (
        re.compile(r"^(Why|What|How|When|Where|Which \w+) (do|does|did|is|are|was|were|should|could|would)\b"),
        r"\1 \2n't",
    ),
    (re.compile(r"^(Why|What|How|When|Where) (can)\b"), r"\1 \2't"),
)
_PLAIN = frozenset(
    {"about", "after", "before", "could", "every", "other", "should", "their", "there", "these", "those", "where"}
    | {"which", "while", "would"}
)
"""Words whose exchange may leave the meaning as it is."""
_NO_NAMES = frozenset([*calendar.month_name, *calendar.day_name, "First", "Second", "Third", "Hundred", "Good"])
_EQUAL_PARTS = re.compile(r"(?i)\b(?:and|or|vs|between|versus)\b|,")
"""Words and signs around which two names may change places without a change of meaning."""
KINDS = ("number", "name", "negation", "word", "exchange")


class Edit(msgspec.Struct, frozen=True):
    """A question and its edited form."""

    kind: str
    source: int
    text: str


def edits(texts: Sequence[str], kind: str, count: int, seed: int) -> list[Edit]:
    """So many edits of one kind (fewer where there are no more), each of another question.

    number: another number in one place. name: another question's name. negation: an auxiliary verb negated. word:
    another question's word in one place. exchange: two names change places.
    """
    random = np.random.default_rng(seed)
    donors = sorted({name for text in texts for name in _NAME.findall(text)})
    words = sorted({word for text in texts[:5000] for word in _WORD.findall(text)} - _PLAIN)

    def pick(items: Sequence[str]) -> str:
        return items[int(random.integers(len(items)))]

    def number(text: str) -> str:
        return _replace(text, pick_match(_NUMBER, text), lambda old: str(int(old) + 1 + int(random.integers(9))))

    def name(text: str) -> str:
        match = pick_match(_NAME, text)
        if match is None or _alike(match[0], new := pick(donors)):
            return text
        return _replace(text, match, lambda _: new)

    def word(text: str) -> str:
        match = pick_match(_WORD, text)
        return text if match is None or match[0] in _PLAIN else _replace(text, match, lambda _: pick(words))

    def negation(text: str) -> str:
        return next((rule.sub(new, text) for rule, new in _NEGATABLE if rule.search(text)), text)

    def exchange(text: str) -> str:
        found = [match for match in _NAME.finditer(text) if match[0] not in _NO_NAMES]
        if len(found) < 2 or _alike(found[0][0], found[-1][0]) or _EQUAL_PARTS.search(text):
            return text
        first, last = found[0], found[-1]
        return text[: first.start()] + last[0] + text[first.end() : last.start()] + first[0] + text[last.end() :]

    def pick_match(pattern: re.Pattern[str], text: str) -> re.Match[str] | None:
        found = list(pattern.finditer(text))
        return found[int(random.integers(len(found)))] if found else None

    make: dict[str, Callable[[str], str]] = {
        "number": number,
        "name": name,
        "negation": negation,
        "word": word,
        "exchange": exchange,
    }
    made: list[Edit] = []
    for place in random.permutation(len(texts)):
        text = make[kind](texts[place])
        if text.lower() != texts[place].lower():
            made.append(Edit(kind, int(place), text))
            if len(made) == count:
                break
    return made


def _alike(one: str, other: str) -> bool:
    """Whether two names may be forms of one: Indian, Indians."""
    return one[:4].lower() == other[:4].lower()


def _replace(text: str, match: re.Match[str] | None, new: Callable[[str], str]) -> str:
    return text if match is None else text[: match.start()] + new(match[0]) + text[match.end() :]
