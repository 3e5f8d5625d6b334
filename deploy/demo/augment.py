"""Turns one phrasing into the many ways people really type it: case, politeness, fillers, slips, synonyms.

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
    "please", "pls", "thanks", "thank you", "exactly", "by the way", "then", "now", "here", "in short", "in roundhouse",
    "with roundhouse", "for me", "today", "anyway", "again", "briefly", "if i may ask", "any idea", "right",
)  # fmt: skip
_FILLERS = ("actually", "just", "really", "basically", "maybe", "also", "like", "exactly", "even", "then")
_STOP_WORDS = frozenset(
    {
        "a", "an", "the", "is", "are", "do", "does", "did", "i", "me", "my", "we", "our", "you", "your", "it", "its",
        "to", "of", "for", "in", "on", "at", "with", "by", "be", "can", "could", "should", "would", "there", "that",
        "this", "from", "and", "or", "so", "just", "please", "about", "get", "have", "has", "was", "will", "am",
    }
)  # fmt: skip
#: Groups of words that may stand for one another without changing what is asked.
_SYNONYM_GROUPS = (
    ("show", "display", "list", "give me"), ("start", "launch", "run", "boot"), ("stop", "halt", "shut down", "end"),
    ("change", "modify", "alter", "adjust", "edit"), ("set", "configure", "define"), ("config", "configuration"),
    ("big", "large"), ("fast", "quick", "speedy"), ("slow", "sluggish"), ("error", "problem", "failure"),
    ("fix", "repair", "solve"), ("create", "make", "generate"), ("delete", "remove"), ("use", "work with"),
    ("need", "require"), ("explain", "describe"), ("meaning", "sense", "definition"), ("purpose", "point", "aim"),
    ("docs", "documentation"), ("repo", "repository"), ("setup", "installation"),
    ("machine", "computer", "box", "host"),
    ("key", "api key"), ("query", "question", "request"), ("reply", "answer", "response"), ("users", "people"),
    ("pick", "choose", "select"), ("see", "view", "look at"), ("check", "verify", "inspect"), ("find", "locate"),
    ("allow", "permit", "let"), ("limit", "cap"), ("default", "standard"), ("happens", "occurs"),
    ("kind", "type", "sort"),
    ("what is", "what's", "whats"), ("how do i", "how can i", "how to", "how would i", "how should i", "how do we"),
    ("how does", "in what way does"), ("why is", "why's", "how come"), ("where is", "where's", "where do i find"),
    ("can i", "may i", "could i", "is it possible to"), ("do i need", "must i have", "do i have to have"),
    ("what does", "whats"), ("who is", "who's"), ("tell me about", "explain", "what about"), 
    ("is there", "do you have"),
    ("supported", "available"), ("multiple", "several", "many", "more than one"), 
    ("turn off", "disable", "switch off"),
    ("turn on", "enable", "switch on"), ("folder", "directory"), ("program", "app", "application"), ("model", "llm"),
)  # fmt: skip
_SYNONYMS: dict[str, tuple[str, ...]] = {
    word: tuple(other for other in group if other != word) for group in _SYNONYM_GROUPS for word in group
}
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


def synonyms(text: str, rng: random.Random, rate: float) -> str:
    """Replaces words and two- or three-word phrases from the table, each with probability `rate`."""
    words, out, at = text.split(), [], 0
    while at < len(words):
        for length in (3, 2, 1):
            phrase = " ".join(words[at : at + length])
            if at + length <= len(words) and phrase in _SYNONYMS:
                out.append(rng.choice(_SYNONYMS[phrase]) if rng.random() < rate else phrase)
                at += length
                break
        else:
            out.append(words[at])
            at += 1
    return " ".join(out)


def keywords(text: str, rng: random.Random) -> str:
    """Only the words that carry meaning, sometimes in another order: how people type into a search box."""
    words = [word for word in text.split() if word not in _STOP_WORDS]
    if len(words) < 2:
        return text
    if rng.random() < 0.5:
        rng.shuffle(words)
    return " ".join(words)


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
    if rng.random() < 0.06:
        text = keywords(text, rng)
    if rng.random() < 0.35:
        text = synonyms(text, rng, rate=0.35)
    if rng.random() < 0.35:
        text = drop_words(text, rng, stop_rate=0.25, word_rate=0.08)
    words = text.split()
    if words and rng.random() < 0.06:
        words.insert(rng.randrange(len(words) + 1), rng.choice(_FILLERS))
    if len(words) > 3 and rng.random() < 0.03:
        at = rng.randrange(len(words) - 1)
        words[at], words[at + 1] = words[at + 1], words[at]
    if words and rng.random() < 0.07:
        at = rng.randrange(len(words))
        words[at] = typo(words[at], rng)
    text = " ".join(words)
    if rng.random() < 0.12:
        text = f"{rng.choice(_PREFIXES)} {text}"
    if rng.random() < 0.08:
        text = f"{text} {rng.choice(_SUFFIXES)}"
    return case_and_punctuation(text, rng)


def lightly(text: str, rng: random.Random) -> str:
    """Varies case and punctuation only, as exam questions are written."""
    return case_and_punctuation(text, rng, question_mark=0.7)
