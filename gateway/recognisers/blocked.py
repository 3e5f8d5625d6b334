"""Phrases that must not pass, known by keyed digests only, so that the list discloses nothing.

A phrase is one to eight words. Case, accents' encoding, punctuation and the width of gaps make no difference. Each line
of a list is `<first>:<words>:<digest>`: 16 bits of the first word's digest, which rule almost every word out at once,
the number of words, and 128 bits of the phrase's. `roundhouse safety digest` makes the lines.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Iterable, Mapping
from functools import lru_cache

from gateway.recognisers.recogniser import Match

MAX_WORDS = 8
MAX_WORD = 64
"""Longest word in characters."""
MAX_GAP = 16
"""Most characters between two words of a phrase."""
MAX_PHRASES = 1_000_000

_WORD = re.compile(r"[\w\u0300-\u036f\u00ad\u200b-\u200d\u2060\ufeff]+")
"""With accents that are characters of their own, and characters without width."""
_INVISIBLE = re.compile("[\u00ad\u200b-\u200d\u2060\ufeff]")
_LINE = re.compile(r"([0-9a-f]{4}):([1-8]):([0-9a-f]{32})")


def _words(text: str) -> list[str]:
    return [word[0] for word in _WORD.finditer(_normal(text))]


def _normal(text: str) -> str:
    return unicodedata.normalize("NFKC", _INVISIBLE.sub("", text)).casefold()


def _digest(words: Iterable[str], secret: bytes) -> str:
    return hashlib.blake2b(" ".join(words).encode("utf-8", "replace"), digest_size=16, key=secret).hexdigest()


def line(phrase: str, secret: bytes) -> str:
    """Return the line of a list that stands for a phrase.

    Raises:
        ValueError: it has no words, too many, or one that is too long.
    """
    words = _words(phrase)
    if not 1 <= len(words) <= MAX_WORDS or any(len(word) > MAX_WORD for word in words):
        raise ValueError(f"a phrase has 1 to {MAX_WORDS} words of at most {MAX_WORD} characters")
    return f"{_digest(words[:1], secret)[:4]}:{len(words)}:{_digest(words, secret)}"


def read(lines: Iterable[str]) -> dict[str, dict[int, set[str]]]:
    """Read a list: digests of phrases by number of words, by the first word's digest. Empty lines and `#` are skipped.

    Raises:
        ValueError: a line is none of a list's, or there are too many.
    """
    phrases: dict[str, dict[int, set[str]]] = {}
    for number, text in enumerate(lines, 1):
        if not (text := text.strip()) or text.startswith("#"):
            continue
        found = _LINE.fullmatch(text)
        if found is None or number > MAX_PHRASES:
            raise ValueError(f"line {number}: expected <4 hex>:<words>:<32 hex>, at most {MAX_PHRASES} lines")
        phrases.setdefault(found[1], {}).setdefault(int(found[2]), set()).add(found[3])
    return phrases


class Blocked:
    """Finds the phrases of a list. Words are compared whole."""

    def __init__(self, phrases: Mapping[str, Mapping[int, set[str]]], secret: bytes) -> None:
        self._phrases = {first: dict(sorted(lengths.items())) for first, lengths in phrases.items()}
        self._secret = secret
        self._longest = max((max(lengths) for lengths in phrases.values()), default=1)
        # Most words of a text are repeated.
        self._first = lru_cache(65_536)(self._lengths)
        self.reach = self._longest * (MAX_WORD + MAX_GAP) + 1

    def find(self, text: str, start: int) -> Match | None:
        for word in _WORD.finditer(text, start):
            if word.end() - word.start() > MAX_WORD or _middle(text, word.start()):
                continue
            lengths = self._first(word[0])
            if lengths and (end := self._end(text, word, lengths)):
                return Match(word.start(), end)
        return None

    def pending(self, text: str, start: int) -> int:
        """The last word may go on; a word that begins phrases waits for those after it."""
        for word in _WORD.finditer(text, max(start, len(text) - self.reach)):
            if _middle(text, word.start()):
                continue
            if word.end() == len(text):
                return word.start()
            lengths = self._first(word[0])
            if lengths and self._unfinished(text, word, max(lengths)):
                return word.start()
        return len(text)

    def _lengths(self, word: str) -> dict[int, set[str]]:
        words = _words(word)
        return self._phrases.get(_digest(words[:1], self._secret)[:4], {}) if words else {}

    def _end(self, text: str, first: re.Match[str], lengths: dict[int, set[str]]) -> int | None:
        """The end of the longest phrase that begins with a word."""
        best, words, last = None, [], first
        for count in range(1, max(lengths) + 1):
            words.append(last[0])
            if count in lengths and _digest(_words(" ".join(words)), self._secret) in lengths[count]:
                best = last.end()
            following = _WORD.search(text, last.end(), last.end() + MAX_GAP + MAX_WORD + 1)
            if following is None or not _near(last, following):
                break
            last = following
        return best

    def _unfinished(self, text: str, first: re.Match[str], longest: int) -> bool:
        last = first
        for _ in range(longest - 1):
            following = _WORD.search(text, last.end(), last.end() + MAX_GAP + MAX_WORD + 1)
            if following is None:
                return len(text) - last.end() <= MAX_GAP
            if following.end() == len(text):
                return following.start() - last.end() <= MAX_GAP
            if not _near(last, following):
                return False
            last = following
        return False


def _middle(text: str, at: int) -> bool:
    """Whether a position is within a word."""
    return _WORD.match(text[max(at - 1, 0) : at]) is not None


def _near(last: re.Match[str], following: re.Match[str]) -> bool:
    return following.start() - last.end() <= MAX_GAP and following.end() - following.start() <= MAX_WORD
