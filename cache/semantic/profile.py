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
from itertools import pairwise

from msgspec import Struct, structs

from cache.semantic.canonical import canonical, opposites
from cache.semantic.lexicon import (
    AUXILIARIES,
    BARE_UNITS,
    CONJUNCTIONS,
    CURRENCIES,
    DATES,
    FUNCTION_WORDS,
    IRREGULAR,
    LANGUAGES,
    MOVABLE,
    NEGATIONS,
    NOT_MOVABLE,
    NOT_WITHOUT,
    NUMBER_WORDS,
    PREPOSITIONS,
    QUANTIFIERS,
    REFUSALS,
    REFUSALS_DOING,
    REFUSALS_TO,
    UNITS,
)
from cache.semantic.persons import persons

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
    """The profile of one question. Words are canonical: small letters, spelling and inflection evened out, common
    synonyms replaced."""

    kind: QuestionType
    length: int
    """Number of words."""
    words: tuple[str, ...]
    """Content words in the order of the text; the verb of a passive ("can X be removed") before what it acts on."""
    links: tuple[str, ...]
    """Prepositions right before each of the words, empty where there are none; then those that end the text."""
    particles: tuple[str, ...]
    """All prepositions and quantifiers of the text, sorted."""
    adjectives: tuple[str, ...]
    """Those of the words that may stand in several places: safe, largest, quickly."""
    joined: tuple[str, ...]
    """Each word written together with the next one, as "wifi" for "Wi-Fi"; empty for the last one."""
    numbers: tuple[str, ...]
    """Numbers in the order of the text: "5 to 10" is not "10 to 5"."""
    units: tuple[str, ...]
    """Units and currencies, each with the number that it belongs to, sorted."""
    dates: tuple[str, ...]
    """Months, weekdays and relative days in the order of the text. Years are numbers."""
    names: tuple[str, ...]
    """Content words that are written as names or identifiers, and languages, sorted."""
    persons: tuple[str, ...]
    """Personal pronouns in the order of the text, but for those of whoever asks "how do I" (`persons`)."""
    opposites: tuple[str, ...]
    """Words that none of the content words may be exchanged for, sorted."""
    negations: int
    """Number of negations, exclusions ("without", "other than") and refusals."""


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
_EXCLUSION = re.compile(
    r"""\b(?:(?:apart|aside)\ from|(?:other|rather)\ than|instead\ of|(?:anything|everything|all)\ but|(?:save|but)\ for
    |(?:devoid|void|bereft)\ of|free\ (?:of|from)|in\ (?:lieu|place|the\ absence)\ of|with\ no|except(?:\ for|ing)?
    |excluding|exclusive\ of|leaving\ out|omitting|skipping|barring|minus|(?-i:sans))\b
    |(?<=\w)-free\b""",
    re.VERBOSE | re.IGNORECASE,
)
"""What means "without"."""
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
    tokens, starts = _tokens(text)
    reader = _Reader(tokens, starts, shouted=text.upper() == text)
    for position in range(len(tokens)):
        reader.read(position)
    words = [canonical(word) for word in reader.words]
    pairs = [canonical(one + other) for one, other in pairwise(reader.words)]
    return Profile(
        kind=question_type(tokens),
        length=len(tokens),
        words=tuple(words),
        links=(*reader.links, reader.link),
        particles=tuple(sorted(reader.particles)),
        adjectives=tuple(canonical(word) for word in reader.words if _is_adjective(word) and word not in reader.names),
        joined=(*pairs, "")[: len(words)],
        numbers=tuple(reader.numbers),
        units=tuple(sorted(reader.units)),
        dates=tuple(reader.dates),
        names=tuple(sorted({canonical(name) for name in reader.names})),
        persons=persons(tokens),
        opposites=tuple(sorted(frozenset().union(*map(opposites, reader.words)))),
        negations=reader.negations,
    )


class _Reader:
    """What the tokens of a text say, one after the other."""

    def __init__(self, tokens: list[str], starts: set[int], *, shouted: bool) -> None:
        self.words: list[str] = []
        self.links: list[str] = []
        self.numbers: list[str] = []
        self.units: list[str] = []
        self.dates: list[str] = []
        self.names: set[str] = set()
        self.negations = 0
        self.particles: set[str] = set()
        self.link = ""
        """Prepositions that no word has followed yet."""
        self._tokens = tokens
        self._starts = starts
        self._shouted = shouted
        self._joined = 0
        """Number of words before the last "and" or "or"."""

    def read(self, position: int) -> None:
        token = self._tokens[position]
        small = token.lower().removesuffix("'s")
        before = self._tokens[position - 1].lower() if position else ""
        after = self._tokens[position + 1].lower() if position + 1 < len(self._tokens) else ""
        if small in CONJUNCTIONS:
            self._joined = len(self.words)
        elif token in CURRENCIES and after[:1].isdigit():
            pass  # read with the number
        elif small[0].isdigit():
            self._amount(small, CURRENCIES.get(before, ""))
        elif small.replace("'", "") in NEGATIONS or small.endswith("n't"):
            self.negations += 1
        elif small in NUMBER_WORDS:
            self.numbers.append(NUMBER_WORDS[small])
        elif not self._shouted and _ROMAN.match(token):
            self.numbers.append(f"roman {token}")
        elif small in DATES or (small in ("may", "march") and after[:1].isdigit()):
            self.dates.append(small[:3])
        elif small in UNITS and (UNITS[small] in BARE_UNITS or _is_number(before)):
            self._unit(UNITS[small], bound=_is_number(before))
        else:
            self._word(position, small, before, after)

    def _word(self, position: int, small: str, before: str, after: str) -> None:
        token = self._tokens[position]
        capital = not self._shouted and position not in self._starts
        if small in PREPOSITIONS or small in QUANTIFIERS:
            self.particles.add(small)
        if small in FUNCTION_WORDS and not (capital and _is_name(token)):
            if small in PREPOSITIONS:
                self.link = f"{self.link} {small}".strip() if before in PREPOSITIONS else small
            return
        self.negations += small in REFUSALS or (small in REFUSALS_TO and after == "to")
        later = self._tokens[position + 1 : position + 4] if small in REFUSALS_DOING else []
        self.negations += any(each == "from" or each.endswith("ing") for each in map(str.lower, later))
        self.negations += len(small) > 6 and small.endswith("less") and small not in NOT_WITHOUT
        if before in ("be", "been", "being") and (small.endswith("ed") or small in IRREGULAR):
            self.words.insert(0, small)
            self.links.insert(0, "")
            self.link = ""
        else:
            self.words.append(small)
            self.links.append(f"{self.link} of".strip() if token.endswith("'s") else self.link)
            self.link = ""
            if 0 < self._joined == len(self.words) - 1:
                # "X and Y" asks the same as "Y and X": one order stands for both.
                self.words[-2:] = sorted(self.words[-2:], key=canonical)
        if small in LANGUAGES or (capital and token[0].isupper()) or (not self._shouted and _NAME.match(token)):
            self.names.add(small)

    def _amount(self, token: str, currency: str) -> None:
        """Read what begins with a digit: 5, 5.0, 1,000, 5km, 21st."""
        compact = token.replace(",", "")
        found = _AMOUNT.match(compact)
        if compact[-2:] in ("st", "nd", "rd", "th"):
            self.numbers.append(f"#{compact[:-2]}")
        elif found is None:
            # 9.1 and 9.10 stay apart: they may be versions.
            self.numbers.append(compact if "." in compact else compact.lstrip("0") or "0")
        elif found[2] in UNITS:
            self._amount(found[1], "")
            self._unit(UNITS[found[2]], bound=True)
        else:
            self.numbers.append(compact)
        if currency:
            self._unit(currency, bound=True)

    def _unit(self, unit: str, *, bound: bool) -> None:
        into = "to " if self.link.endswith("to") else ""  # "celsius to fahrenheit"
        self.units.append(f"{self.numbers[-1]} {unit}" if bound and self.numbers else into + unit)
        self.link = ""


def _tokens(text: str) -> tuple[list[str], set[int]]:
    """Return the tokens as written, and which of them a sentence begins with: their capital letter says nothing."""
    plain = _EXCLUSION.sub(" without ", text.replace("\u2019", "'"))
    matches = list(_TOKEN.finditer(plain))
    begins = [match.start() for match in matches]
    starts = {0} | {bisect_left(begins, ending.end()) for ending in _SENTENCE_END.finditer(plain)}
    return [match[0] for match in matches], starts


def seal(plain: Profile, key: bytes) -> Profile:
    """Replace the words of a profile by keyed digests: profiles sealed with one key compare as the plain ones do."""

    def digests(words: Iterable[str]) -> tuple[str, ...]:
        return tuple(word and hashlib.blake2b(word.encode(), key=key, digest_size=6).hexdigest() for word in words)

    return structs.replace(
        plain,
        words=digests(plain.words),
        adjectives=digests(plain.adjectives),
        joined=digests(plain.joined),
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
    """Return what "what ..." asks for: "what is the reason" is a why, "what is the best way" a how."""
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


def _is_adjective(word: str) -> bool:
    return word in MOVABLE or (len(word) > 4 and word.endswith(("est", "ly")) and word not in NOT_MOVABLE)


def _is_number(token: str) -> bool:
    return token[:1].isdigit() or token in NUMBER_WORDS


def _is_name(token: str) -> bool:
    return len(token) > 1 and (token[0].isupper() or _NAME.match(token) is not None)
