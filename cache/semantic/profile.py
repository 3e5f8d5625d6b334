"""Reduces a question to the profile that guards and model read. Pure.

Everything that is compared is compared for equality only, so that a profile can be sealed: its words replaced by keyed
digests before it is stored beside an entry.
"""

from __future__ import annotations

import enum
import hashlib
import re
from bisect import bisect_left
from collections.abc import Iterable

from msgspec import Struct, structs

from cache.semantic.lexicon import (
    ANTONYMS,
    AUXILIARIES,
    BARE_UNITS,
    DATES,
    FUNCTION_WORDS,
    NEGATING_PREFIXES,
    NEGATIONS,
    NUMBER_WORDS,
    PRONOUNS,
    SYMBOLS,
    SYNONYMS,
    UNITS,
)

MAX_CHARACTERS = 2000
"""Longer questions are not profiled; the semantic cache is for short ones."""


class QuestionType(enum.StrEnum):
    HOW = "how"
    HOW_MANY = "how_many"
    HOW_LONG = "how_long"
    WHAT = "what"
    WHEN = "when"
    WHERE = "where"
    WHICH = "which"
    WHO = "who"
    WHY = "why"
    YES_NO = "yes_no"
    OTHER = "other"


class Profile(Struct, frozen=True, array_like=True):
    """The profile of one question. Words are canonical: small letters, stemmed, common synonyms replaced."""

    kind: QuestionType
    length: int
    """Number of words."""
    words: tuple[str, ...]
    """Content words in the order of the text."""
    numbers: tuple[str, ...]
    """Numbers in the order of the text: "5 to 10" is not "10 to 5"."""
    units: tuple[str, ...]
    """Units with currencies, sorted."""
    dates: tuple[str, ...]
    """Months, weekdays and relative days in the order of the text. Years are numbers."""
    names: tuple[str, ...]
    """Content words that are written as names or identifiers, sorted."""
    opposites: tuple[str, ...]
    """Words that none of the content words may be exchanged for, sorted."""
    negations: int


_TOKEN = re.compile(
    r"""
    \d+(?:[.,]\d+)*(?:st|nd|rd|th)?(?![A-Za-z0-9_])     # a number, an ordinal
    | [A-Za-z]+[0-9_#+][\w#+.-]*[\w#+] | [A-Za-z]+[#+]+  # an identifier: gpt-4, c++, snake_case
    | \d+[A-Za-z][\w]*                                   # 5km, 2nd, 3g
    | [^\W\d_]+(?:['\u2019][^\W\d_]+)*                        # a word
    | [$€£₹¥%°&]
    """,
    re.VERBOSE,
)
_ROMAN = re.compile(r"(?=[IVX]{2,5}$)X{0,3}(?:IX|IV|V?I{0,3})$")
_AMOUNT = re.compile(r"(\d+(?:\.\d+)?)([a-z]+)$")
_SENTENCE_END = re.compile(r"[.?!:;\n\"\u201c(]\s*")
_NAME = re.compile(r"[A-Z][a-z]*[A-Z]|[A-Z]{2,}|.*[0-9_#+]")


def profile(text: str) -> Profile:
    """Return the profile of a question.

    Raises:
        ValueError: the text has more than `MAX_CHARACTERS`.
    """
    if len(text) > MAX_CHARACTERS:
        raise ValueError(f"a question of {len(text)} characters is too long for the semantic cache ({MAX_CHARACTERS})")
    raw, starts = _tokens(text)
    shouted = text.upper() == text
    words: list[str] = []
    numbers: list[str] = []
    units: list[str] = []
    dates: list[str] = []
    names: set[str] = set()
    opposites: set[str] = set()
    negations = 0
    joined = 0
    for position, token in enumerate(raw):
        small = token.lower().removesuffix("'s")
        if small in ("and", "or", "vs", "versus", "&"):
            joined = len(words)
        elif token in SYMBOLS:
            units.append(SYMBOLS[token])
        elif small[0].isdigit():
            _amount(small, numbers, units)
        elif small.replace("'", "") in NEGATIONS or small.endswith("n't"):
            negations += 1
        elif small in NUMBER_WORDS:
            numbers.append(NUMBER_WORDS[small])
        elif not shouted and _ROMAN.match(token):
            numbers.append(f"roman {token}")
        elif small in DATES or (small in ("may", "march") and _after_is_number(raw, position)):
            dates.append(small[:3])
        elif UNITS.get(small) in BARE_UNITS or (small in UNITS and position > 0 and raw[position - 1][0].isdigit()):
            units.append(UNITS[small])
        elif small in PRONOUNS:
            words.append(PRONOUNS[small])
            opposites.add("she" if PRONOUNS[small] == "he" else "he")
        elif small not in FUNCTION_WORDS or (_is_name(token) and not shouted and position not in starts):
            word = canonical(small)
            words.append(word)
            opposites.update(_opposites(small))
            if 0 < joined == len(words) - 1:
                # "X and Y" asks the same as "Y and X": one order stands for both.
                words[-2:] = sorted(words[-2:])
            if not shouted and (_NAME.match(token) or (token[0].isupper() and position not in starts)):
                names.add(word)
    return Profile(
        kind=question_type(raw),
        length=len(raw),
        words=tuple(words),
        numbers=tuple(numbers),
        units=tuple(sorted(units)),
        dates=tuple(dates),
        names=tuple(sorted(names)),
        opposites=tuple(sorted(opposites)),
        negations=negations,
    )


def _tokens(text: str) -> tuple[list[str], set[int]]:
    """The tokens as written, and which of them a sentence begins with: their capital letter says nothing."""
    matches = list(_TOKEN.finditer(text.replace("\u2019", "'")))
    begins = [match.start() for match in matches]
    starts = {0} | {bisect_left(begins, ending.end()) for ending in _SENTENCE_END.finditer(text)}
    return [match[0] for match in matches], starts


def seal(plain: Profile, key: bytes) -> Profile:
    """Replace the words of a profile by keyed digests: profiles sealed with one key compare as the plain ones do."""

    def digests(words: Iterable[str]) -> tuple[str, ...]:
        return tuple(hashlib.blake2b(word.encode(), key=key, digest_size=6).hexdigest() for word in words)

    return structs.replace(
        plain,
        words=digests(plain.words),
        numbers=digests(plain.numbers),
        units=tuple(sorted(digests(plain.units))),
        dates=digests(plain.dates),
        names=tuple(sorted(digests(plain.names))),
        opposites=tuple(sorted(digests(plain.opposites))),
    )


def question_type(tokens: list[str]) -> QuestionType:
    """Return what is asked for, by the first question word (or auxiliary verb, where there is none before it)."""
    words = [token.lower() for token in tokens]
    for position, word in enumerate(words):
        after = words[position + 1] if position + 1 < len(words) else ""
        match word:
            case "how" if after in ("many", "much"):
                return QuestionType.HOW_MANY
            case "how" if after in ("long", "old", "far", "tall", "often", "big", "fast", "high", "deep"):
                return QuestionType.HOW_LONG
            case "how":
                return QuestionType.HOW
            case "what" | "what's" | "whats":
                return _asked_for(words[position + 1 : position + 7])
            case "when" | "where" | "which" | "why":
                return QuestionType(word)
            case "who" | "whom" | "whose" | "who's":
                return QuestionType.WHO
            case _ if word in AUXILIARIES and position == 0:
                return QuestionType.YES_NO
    return QuestionType.OTHER


def _asked_for(after: list[str]) -> QuestionType:
    """What "what ..." asks for: "what is the reason" is a why, "what is the best way" a how."""
    for word in after:
        if word in ("reason", "reasons", "cause", "causes"):
            return QuestionType.WHY
        if word in ("way", "ways", "method", "methods", "procedure", "process", "steps"):
            return QuestionType.HOW
        if word in ("time", "date", "year", "day"):
            return QuestionType.WHEN
        if word in ("place", "places", "city", "country"):
            return QuestionType.WHERE
        if word in ("number", "amount", "cost", "price", "population"):
            return QuestionType.HOW_MANY
    return QuestionType.WHAT


def canonical(word: str) -> str:
    """A content word as it is compared."""
    stemmed = _stem(word)
    return SYNONYMS.get(word) or SYNONYMS.get(stemmed) or stemmed


def _stem(word: str) -> str:
    """Without the endings of plural and verb forms. Light on purpose: two meanings must not fall together."""
    if len(word) > 4 and word.endswith("ies"):
        return word[:-3] + "y"
    if len(word) > 4 and word.endswith(("sses", "shes", "ches", "xes")):
        return word[:-2]
    if len(word) > 3 and word.endswith("s") and not word.endswith(("ss", "us", "is")):
        return word[:-1]
    for ending in ("ing", "ed"):
        stem = word.removesuffix(ending)
        if stem != word and len(stem) >= 3 and re.search("[aeiouy]", stem):
            if len(stem) > 3 and stem[-1] == stem[-2] and stem[-1] not in "lsz":
                return stem[:-1]
            return stem.rstrip("e")
    return word.removesuffix("e") if len(word) > 4 else word


def _opposites(word: str) -> set[str]:
    found = {canonical(opposite) for opposite in ANTONYMS.get(word, ()) or ANTONYMS.get(_stem(word), ())}
    for prefix in NEGATING_PREFIXES:
        base = word.removeprefix(prefix).removeprefix("-")
        if base != word and len(base) >= 4:
            found.add(canonical(base))
    return found


def _amount(token: str, numbers: list[str], units: list[str]) -> None:
    """One that begins with a digit: 5, 5.0, 1,000, 5km, 21st."""
    compact = token.replace(",", "")
    if compact[-2:] in ("st", "nd", "rd", "th"):
        numbers.append(f"#{compact[:-2]}")
    elif (found := _AMOUNT.match(compact)) is None:
        # 9.1 and 9.10 stay apart: they may be versions.
        numbers.append(compact if "." in compact else compact.lstrip("0") or "0")
    elif found[2] in UNITS:
        _amount(found[1], numbers, units)
        units.append(UNITS[found[2]])
    else:
        numbers.append(compact)


def _after_is_number(tokens: list[str], position: int) -> bool:
    return position + 1 < len(tokens) and tokens[position + 1][0].isdigit()


def _is_name(token: str) -> bool:
    return len(token) > 1 and (token[0].isupper() or _NAME.match(token) is not None)
