"""Tells which persons a question is about, by its pronouns. Pure.

"Can you lend me money" and "can I lend you money" have the same words; who lends differs. Pronouns are therefore
compared, in their order and with their case, but for those that say nothing: whoever asks "how do I", "how do you",
"how to" or "why do we" means anybody, and "my" means anybody's own there: it may be left out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

_NOMINATIVE = {"i": "1", "we": "1 we", "you": "2", "he": "he", "she": "she", "they": "they"}
_OBJECTIVE = {"me": "1", "us": "1 we", "him": "he", "them": "they"}
_POSSESSIVE = {"my": "1", "our": "1 we", "ours": "1 we", "your": "2", "yours": "2", "his": "he", "their": "they"}
_POSSESSIVE |= {"her": "she", "hers": "she", "theirs": "they"}
_REFLEXIVE = {"myself": "1", "ourselves": "1 we", "yourself": "2", "himself": "he", "herself": "she"}
_REFLEXIVE |= {"themselves": "they"}
_CASES = {
    pronoun: (person, case)
    for case, pronouns in (
        ("", _NOMINATIVE),
        (" object", _OBJECTIVE),
        (" own", _POSSESSIVE),
        (" self", _REFLEXIVE),
    )
    for pronoun, person in pronouns.items()
}
_QUESTION_WORDS = frozenset({"how", "what", "where", "when", "which", "why", "who"})
_MODALS = frozenset({"can", "could", "should", "would", "must", "may", "might", "shall"})
_ANYBODY = frozenset({"i", "you", "we", "one"})
_OPTIONAL = frozenset(
    {"they", "they object", "they own", "they self", "2", "2 own", "2 self", "1 object", "anybody own"}
)
"""May be left out: "why do dogs chase (their) tails", "is it bad to crack (your) knuckles", "how long does it take (me)
to learn Spanish"."""


def persons(tokens: Sequence[str]) -> tuple[str, ...]:
    """Return the persons that a question is about, with the case of the pronoun, in the order of the text."""
    words = [_plain(token) for token in tokens]
    subject, asking = _anybody(words)
    found = []
    for position, word in enumerate(words):
        person, case = _CASES.get(word, ("", ""))
        if person in asking:
            person, case = "anybody", case if case == " own" else ""
        country = word == "us" and words[position - 1] == "the"
        if person and position != subject and not country:
            found.append(person + case)
    return tuple(found)


def differ(ours: Sequence[str], theirs: Sequence[str]) -> bool:
    """Whether two questions are about different persons. Symmetric."""
    if Counter(ours) == Counter(theirs):
        return tuple(ours) != tuple(theirs)
    only_ours, only_theirs = Counter(ours) - Counter(theirs), Counter(theirs) - Counter(ours)
    if only_ours and only_theirs:
        return True
    return not _OPTIONAL.issuperset((*only_ours, *only_theirs))


def _anybody(words: Sequence[str]) -> tuple[int | None, frozenset[str]]:
    """Return where the subject stands that means anybody, and the persons that mean the same one then."""
    asked = next((word for word in words if word in _QUESTION_WORDS), None)
    for position, (auxiliary, subject) in enumerate(pairwise(words) if asked else ()):
        if (auxiliary, subject) == ("how", "to"):
            return None, frozenset({"1", "1 we", "2"})
        asks_for_a_way = auxiliary in _MODALS or (auxiliary in ("do", "does") and (asked == "how" or subject == "we"))
        if subject in _ANYBODY and asks_for_a_way:
            person = _NOMINATIVE.get(subject, "one")
            return position + 1, frozenset({person, "1"} if person == "1 we" else {person})
    return None, frozenset()


def _plain(token: str) -> str:
    """In small letters, without a verb that is contracted with it."""
    return "" if token == "US" else token.lower().partition("'")[0]  # the country is no pronoun
