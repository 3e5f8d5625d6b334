"""Canonical forms of English words: spelling, inflection and common synonyms are evened out. Pure.

Light on purpose: two meanings must not fall together, so that only endings of inflection go and only spellings that
differ between British and American English are mapped. A form need not be a word.
"""

from __future__ import annotations

import re
from functools import lru_cache

from cache.semantic.lexicon import ANTONYMS, IRREGULAR, NEGATING_PREFIXES, SYNONYMS

_VOWEL = re.compile("[aeiouy]")
_ENDING = re.compile(r"(?<=[^aeiou])(?:y|ie)$")
"""Of city, cities; movie, movies."""
_SPELLINGS = (
    (re.compile(r"(?<=\w{3})our(?=s?$|ed$|ing$|ite|ful|able|less|ist|ly$|y$)"), "or"),  # colour, favourite
    (re.compile(r"(?<=\w{3})is(?=e[sdr]?$|ing$|ation)"), "iz"),  # organise, organisation
    (re.compile(r"(?<=\w{2})lys(?=e[sdr]?$|ing$)"), "lyz"),  # analyse
    (re.compile(r"(?<=\w{2})(t|b)re(?=s?$)"), r"\1er"),  # centre, fibre
    (re.compile(r"(?<=\w{3})ens(?=es?$)"), "enc"),  # license, defense
    (re.compile(r"(?<=\w{3})ll(?=$|s$|ed$|ing$|ers?$)"), "l"),  # travelling, enroll
    (re.compile(r"ae(?=[a-z]{3})"), "e"),  # anaemia
)
"""British and American spellings of one word; applied to all words, so that it does not matter which is which."""


@lru_cache(maxsize=20_000)
def canonical(word: str) -> str:
    """Return a content word, in small letters, as it is compared."""
    form = _form(word)
    return _SYNONYMS.get(form, form)


@lru_cache(maxsize=20_000)
def opposites(word: str) -> frozenset[str]:
    """Return the canonical forms that a word may not be exchanged for."""
    found = set(_ANTONYMS.get(_form(word), ()))
    for prefix in NEGATING_PREFIXES:
        base = word.removeprefix(prefix).removeprefix("-")
        if base != word and len(base) >= 4:
            found.add(canonical(base))
    return frozenset(found)


def _form(word: str) -> str:
    word = IRREGULAR.get(word, word)
    for spelling, replacement in _SPELLINGS:
        word = spelling.sub(replacement, word)
    return _stem(word)


def _stem(word: str) -> str:
    """Without the endings of plural and verb forms."""
    if len(word) > 4 and word.endswith(("sses", "shes", "ches", "xes")):
        return word[:-2]
    if len(word) > 3 and word.endswith("s") and not word.endswith(("ss", "us", "is")):
        word = word[:-1]
    for ending in ("ing", "ed"):
        stem = word.removesuffix(ending)
        if stem != word and len(stem) >= 3 and _VOWEL.search(stem) and not word.endswith("eed"):
            if len(stem) > 3 and stem[-1] == stem[-2] and stem[-1] not in "lsz":
                return stem[:-1]
            return _ENDING.sub("i", stem).rstrip("e") or stem
    if len(word) > 3:
        word = _ENDING.sub("i", word)
    return word.removesuffix("e") if len(word) > 4 else word


_SYNONYMS = {_form(word): _form(stands) for word, stands in SYNONYMS.items()}
"""All inflections of the words of one group stand for the same."""
_ANTONYMS: dict[str, frozenset[str]] = {}
for _word, _found in ANTONYMS.items():
    _ANTONYMS[_form(_word)] = _ANTONYMS.get(_form(_word), frozenset()) | {canonical(opposite) for opposite in _found}
