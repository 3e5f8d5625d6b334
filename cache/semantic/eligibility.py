"""Decides which conversations may use the semantic cache at all. Pure.

Only a last turn that can be understood without the ones before it, short, in English (the language that the guards and
the model know), whose answer neither time nor person nor chance decides, and that is about neither code nor formulas,
where a single character changes the answer.
"""

from __future__ import annotations

import enum
import re

from cache.semantic.lexicon import ENGLISH, FOREIGN
from cache.semantic.profile import MAX_CHARACTERS
from cache.wording import asks_for_chance, depends_on_time, is_personal


class Ineligible(enum.StrEnum):
    """Why a turn does not look up. The value is a counter's name in the statistics."""

    CONTEXT = "context"
    """The turn continues earlier turns."""
    LENGTH = "length"
    LANGUAGE = "language"
    CODE = "code"
    MATHEMATICS = "mathematics"
    TIME = "time"
    """The answer changes with time."""
    PERSON = "person"
    """The question is about the one who asks."""
    CHANCE = "chance"
    """A different answer is wanted each time."""


MAX_WORDS = 60
_WORD = re.compile(r"[^\W\d_]+(?:['\u2019][^\W\d_]+)*")
_CODE = re.compile(
    r"""```|`[^`]+`|[{};]\s*$|[{}]|=>|->|::|==|!=|\+\+\s*[;)]|</?\w+>|\w+\([^)]*\)\s*[:;{.]|\b(?:def|class|import)\s+\w+\s*[:(]
    |Traceback|\b\w+(?:Error|Exception)\b|(?:^|\s)[~.]?/\w+/|\b(?:SELECT|INSERT|UPDATE|DELETE)\s.+\b(?:FROM|INTO|SET)\b
    |^\s*[$>#]\s""",
    re.VERBOSE | re.MULTILINE,
)
_MATHEMATICS = re.compile(
    r"""\\[a-zA-Z]+|\$[^$\d][^$]*\$|[A-Za-z0-9)]\s*\^|[√∫∑∏≤≥≠≈∞π±÷\u00d7²³]|[\w)]\s*=\s*[\w(-]|\d\s*[+*/]\s*\d
    |\d\s+[-]\s+\d|\b\d+[a-z]\s*[-+]|\b(?:sin|cos|tan|log|ln|sqrt|lim|integral|derivative)\s*(?:\(|of\b)|[-+*/]\s*\d+\s*[-+*/=]
    |\b[a-z]\s*[-+*/]\s*[a-z]\b\s*[-+*/=)]""",
    re.VERBOSE,
)
_REFERENCE = re.compile(
    r"""^(?:and|but|so|also|then|or|why\s+not|what\s+about|how\s+about|ok(?:ay)?|yes|no|sure|thanks?|great|really|continue
    |go\s+on|more|again|another|shorter|longer|simpler|rephrase|rewrite|translate|summari[sz]e|elaborate|explain\s+more)\b
    |\b(?:it|its|that|this|these|those|they|them|their|he|him|his|she|her|hers|one|ones|former|latter|above|previous
    |earlier|before|aforementioned|same|else|instead|again|more|other|another|your\s+(?:answer|reply|response|code|list)
    |you\s+(?:said|wrote|mentioned)|step\s+\d+|(?:first|second|third|last)\s+(?:one|point|option|step|part|example))\b""",
    re.VERBOSE | re.IGNORECASE,
)
_CHANGING = re.compile(r"\b(?:prices?|costs?|scores?|now|recent(?:ly)?|upcoming|trending|stocks?)\b", re.IGNORECASE)
"""What `cache.wording` lets pass, because the same words within minutes mean the same, but not similar words."""
_ANYBODY = re.compile(r"\b(?:do|can|could|should|would|may|must|will)\s+i\b", re.IGNORECASE)
""""How do I" is how anybody asks."""
_INVENTION = re.compile(
    r"\b(?:brainstorm|joke|poem|story|haiku|limerick|lyrics|slogan|pick\s+(?:an?|one|any)|choose\s+(?:an?|one|any)"
    r"|write|compose|invent|imagine|generate|make\s+up|come\s+up)\b",
    re.IGNORECASE,
)
"""What is to be made up: many answers are right, and the same again is not what is wanted."""


def ineligible(question: str, *, earlier_turns: int = 0, private: bool = True) -> Ineligible | None:
    """Return None if a conversation's last turn may look up (and its answer be stored as an entry), else the reason why
    not.

    Args:
        question: the last turn's text.
        earlier_turns: user and assistant messages before it; instructions do not count, they belong to the partition.
        private: entries are shared with nobody but the asking user; otherwise questions about the user are kept out.
    """
    words = [word.lower() for word in _WORD.findall(question)]
    if not words or len(words) > MAX_WORDS or len(question) > MAX_CHARACTERS:
        return Ineligible.LENGTH
    if _CODE.search(question):
        return Ineligible.CODE
    if _MATHEMATICS.search(question):
        return Ineligible.MATHEMATICS
    if earlier_turns and not standalone(question):
        return Ineligible.CONTEXT
    if not english(words):
        return Ineligible.LANGUAGE
    if depends_on_time(question) or _CHANGING.search(question):
        return Ineligible.TIME
    if asks_for_chance(question) or _INVENTION.search(question):
        return Ineligible.CHANCE
    return Ineligible.PERSON if not private and is_personal(_ANYBODY.sub("", question)) else None


def standalone(question: str) -> bool:
    """Whether a later turn can be understood alone: a whole question of some length without a word that points back.

    Fails closed: "What is it about cats that ..." is kept out though it needs no context.
    """
    words = _WORD.findall(question)
    return len(words) >= 4 and _REFERENCE.search(question) is None


def english(words: list[str]) -> bool:
    """Whether a text looks like English: more of its function words than of other languages'."""
    ours = sum(word in ENGLISH for word in words)
    if ours <= sum(word in FOREIGN for word in words):
        return False
    letters = "".join(words)
    return sum(letter.isascii() for letter in letters) >= 0.9 * len(letters)
