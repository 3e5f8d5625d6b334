"""Turns one phrasing into the many ways in which people type it: case, politeness, slips, missing words.

All functions take their own `random.Random`, so a seed fixes the whole training stream.
"""

from __future__ import annotations

import random

_PREFIXES = (
    "please", "hi,", "hello,", "hey,", "hey", "hi there,", "good morning,", "ok,", "okay so", "so,", "well,", "um,",
    "quick question:", "one question:", "question:", "can you tell me", "could you tell me", "tell me", "i wonder",
    "i would like to know", "i want to know", "i'd like to know", "please tell me", "can you explain", "do you know",
    "sorry,", "excuse me,", "just curious,", "i have a question:", "help:", "and", "now", "next,", "thanks. now",
)  # fmt: skip
_SUFFIXES = (
    "please", "pls", "thanks", "thank you", "exactly", "by the way", "then", "now", "here", "in short",
    "for me", "today", "anyway", "again", "briefly", "if i may ask", "any idea", "right",
)  # fmt: skip
_STOP_WORDS = frozenset(
    {
        "a", "an", "the", "is", "are", "do", "does", "did", "i", "me", "my", "we", "our", "you", "your", "it", "its",
        "to", "of", "for", "in", "on", "at", "with", "by", "be", "can", "could", "should", "would", "there", "that",
        "this", "from", "and", "or", "so", "just", "please", "about", "get", "have", "has", "was", "will", "am",
    }
)  # fmt: skip
_NEIGHBOURS = {
    "a": "qs", "b": "vn", "c": "xv", "d": "sf", "e": "wr", "f": "dg", "g": "fh", "h": "gj", "i": "uo", "j": "hk",
    "k": "jl", "l": "k", "m": "n", "n": "bm", "o": "ip", "p": "o", "q": "w", "r": "et", "s": "ad", "t": "ry",
    "u": "yi", "v": "cb", "w": "qe", "x": "zc", "y": "tu", "z": "x",
}  # fmt: skip


def typo(word: str, rng: random.Random) -> str:
    """One slip of the finger in a word of four letters or more: swap, drop, double or neighbouring key."""
    if len(word) < 4 or not word.isalpha():
        return word
    at = rng.randrange(1, len(word) - 1)
    kind = rng.randrange(4)
    if kind == 0:
        return word[:at] + word[at + 1] + word[at] + word[at + 2 :]
    if kind == 1:
        return word[:at] + word[at + 1 :]
    if kind == 2:
        return word[:at] + word[at] + word[at:]
    return word[:at] + rng.choice(_NEIGHBOURS.get(word[at].lower(), word[at])) + word[at + 1 :]


def drop_words(text: str, rng: random.Random, stop_rate: float, word_rate: float) -> str:
    """Leaves out small words often and any word seldom, but never more than a third of the question."""
    words = text.split()
    allowed = len(words) // 3
    kept: list[str] = []
    for word in words:
        rate = stop_rate if word in _STOP_WORDS else word_rate
        if allowed and rng.random() < rate:
            allowed -= 1
        else:
            kept.append(word)
    return " ".join(kept)


def case_and_punctuation(text: str, rng: random.Random, question_mark: float = 0.6) -> str:
    """Writes a lower-case phrasing as people do: as it is, as a sentence, rarely in capitals; with or without mark."""
    kind = rng.random()
    if kind < 0.45:
        text = text[:1].upper() + text[1:]
        text = " ".join("I" if word == "i" else word for word in text.split())
        if rng.random() < 0.6:
            text = text.replace("roundhouse", "Roundhouse").replace("redis", "Redis")
    elif kind < 0.47:
        text = text.upper()
    mark = rng.random()
    if mark < question_mark:
        return text + "?"
    if mark < question_mark + 0.1:
        return text + rng.choice((".", "!", "??", "...", " ?"))
    return text


def augment(text: str, rng: random.Random) -> str:
    """Returns one training variant of a phrasing."""
    if rng.random() < 0.35:
        text = drop_words(text, rng, stop_rate=0.25, word_rate=0.08)
    words = text.split()
    if words and rng.random() < 0.07:
        at = rng.randrange(len(words))
        words[at] = typo(words[at], rng)
    text = " ".join(words)
    if rng.random() < 0.12:
        text = f"{rng.choice(_PREFIXES)} {text}"
    if rng.random() < 0.08:
        text = f"{text} {rng.choice(_SUFFIXES)}"
    return case_and_punctuation(text, rng)
