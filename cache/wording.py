"""Detects by its words whether a request or an answer depends on the time, asks for chance, is personal or a refusal.

Word lists in English, German, French and Spanish. They err on the safe side: a word too many costs a miss, one too few
may serve what was right yesterday. RE2 keeps the time linear in the length of the text. Pure.
"""

from __future__ import annotations

from collections.abc import Callable

import re2

MAX_LENGTH = 65_536
"""Longest text that is searched; a longer one counts as time-bound and personal without a search."""


def _words(*alternatives: str) -> Callable[[str], object | None]:
    """A search for any of the alternatives as a whole word."""
    search: Callable[[str], object | None] = re2.compile(r"(?i)\b(?:" + "|".join(alternatives) + r")\b").search
    return search


_TIME = _words(
    # English
    r"today(?:'?s)?|tonight|tomorrow|yesterday|currently|nowadays|latest|newest|up[- ]to[- ]date|as of now",
    r"(?:right|just|by|until) now|at (?:the|this) moment|most recent(?:ly)?|so far this|breaking|news|headlines?",
    r"current(?:ly)? (?:\w+ )?(?:time|date|day|year|month|weather|temperature|price|rate|version|status|score)s?",
    r"current(?:ly)? (?:\w+ )?(?:president|minister|chancellor|king|queen|champion|leader|ceo|mayor|record)s?",
    r"(?:this|next|last) (?:morning|afternoon|evening|week|weekend|month|quarter|season)|this year",
    r"what(?:'s| is) the (?:time|date|day)|what (?:time|day|date|year) is (?:it|today)|how long (?:until|till)",
    r"weather|forecast|(?:stock|share|exchange|gas|fuel|bitcoin) (?:price|rate|quote)s?|traffic|opening hours",
    # German
    r"heut(?:e|ig\w*)|morgen|gestern|gerade|derzeit\w*|zurzeit|momentan|jetzt|aktuell\w*|neuest\w*|wetter\w*",
    r"nachrichten|wie sp(?:ä|ae)t ist es|wechselkurs\w*|aktienkurs\w*|diese[rsn]? (?:woche|monat|jahr)",
    # French
    r"aujourd'hui|demain|actuel\w*|maintenant|en ce moment|m[ée]t[ée]o|derni[èe]res? nouvelles?",
    r"quelle heure|cette (?:semaine|ann[ée]e)",
    # Spanish
    r"hoy|ayer|ma[ñn]ana|ahora|actualmente|noticias?|qu[ée] hora|tiempo hace|esta semana",
)
_CHANCE = _words(
    r"random\w*|roll (?:a|the|two) dic?e|flip a coin|coin (?:flip|toss)|surprise me|shuffle\w*",
    r"(?:another|a different|some other|a new) (?:one|joke|story|poem|idea|example|version|answer|name|quote|fact)s?",
    r"(?:tell|give|write)(?: me)? (?:an?other|a different)|try again|again[,.!]? (?:but )?different\w*",
    r"(?:generate|make|create|invent)(?: me)? (?:an?|some) (?:\w+ )?(?:uuid|password|username)s?",
    r"zufällig\w*|würfel\w*|überrasch\w*|noch (?:eine?n?|mal)|aléatoire\w*|au hasard|une? autre",
    r"aleatori\w*|al azar|otr[oa]s?",
)
_PERSONAL = _words(
    r"my|mine|myself|me|i|i'm|i've|our|ours|us|we",
    r"mein\w*|mich|mir|ich|wir|uns|unser\w*",
    r"mon|ma|mes|moi|je|j'\w+|notre|nos|nous",
    r"mi|mis|mío|yo|nosotr[oa]s|nuestr[oa]s?|soy|tengo",
)
_REFUSAL = re2.compile(
    r"(?i)^\W*(?:"
    r"(?:i'?m |i am )?(?:so |very |really )?sorry,? (?:but )?(?:i|as|we|that)\b|(?:i|we) apologi[sz]e,? but"
    r"|(?:unfortunately,? |i'm afraid )?(?:i|we) (?:can'?t|cannot|can not|won'?t|(?:am|are|'m) (?:not able|unable))\b"
    r"|i (?:do not|don'?t) (?:have (?:access|enough|the ability)|feel comfortable)|as an ai\b|i'm just an ai"
    r"|i must decline|i(?:'d| would) rather not"
    r"|es tut mir leid|tut mir leid|leider kann ich|ich kann (?:das|dabei|ihnen|dir|diese\w*) (?:leider )?nicht"
    r"|(?:je suis )?désolée?,|je ne peux pas|lo siento,|no puedo\b"
    r")"
)


def depends_on_time(text: str) -> bool:
    """Whether an answer that is right today may be wrong tomorrow."""
    return _found(_TIME, text)


def asks_for_chance(text: str) -> bool:
    """Whether a different answer is wanted every time."""
    return _found(_CHANCE, text)


def is_personal(text: str) -> bool:
    """Whether a text speaks of its author."""
    return _found(_PERSONAL, text)


def refuses(answer: str) -> bool:
    """Whether an answer begins like a refusal."""
    return _REFUSAL.search(_plain(answer[:200])) is not None


def _found(words: Callable[[str], object | None], text: str) -> bool:
    return len(text) > MAX_LENGTH or words(_plain(text)) is not None


def _plain(text: str) -> str:
    """With the apostrophe that keyboards have."""
    return text if text.isascii() else text.replace("\u2019", "'").replace("\u02bc", "'")
