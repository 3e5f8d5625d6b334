"""Guards: reasons not to give one question's answer to another, whatever a model says. Pure.

Each guard looks at one kind of difference that embeddings barely see and that changes the answer.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import product

from msgspec import Struct, structs

from cache.semantic.lexicon import OPPOSED, OPPOSED_PARTICLES
from cache.semantic.persons import differ
from cache.semantic.profile import Profile, QuestionType


class Rejection(enum.StrEnum):
    """Why a candidate was refused. The value is a counter's name in the statistics."""

    NUMBERS = "numbers"
    UNITS = "units"
    DATES = "dates"
    NEGATION = "negation"
    PERSONS = "persons"
    NAMES = "names"
    OPPOSITES = "opposites"
    DIRECTION = "direction"
    QUESTION_TYPE = "question_type"
    ORDER = "order"
    SUBSTITUTION = "substitution"
    EMPTY = "empty"


_SPECIFIC = frozenset(
    {
        QuestionType.WHEN,
        QuestionType.WHERE,
        QuestionType.WHO,
        QuestionType.WHY,
        QuestionType.HOW_MANY,
        QuestionType.HOW_LONG,
        QuestionType.YES_NO,
    }
)
"""Kinds whose answers fit no other kind."""

_PLACES = frozenset({"of", "in", "on", "at"})
"""Prepositions that stand for each other if there is only one: "the world's largest", "the largest in the world"."""


def guard(question: Profile, entry: Profile) -> Rejection | None:
    """Return the first reason to refuse the entry's answer for the question, or None. Symmetric in its arguments."""
    question, entry = written_alike(question, entry), written_alike(entry, question)
    return next((reason for reason, differs in GUARDS.items() if differs(question, entry)), None)


def _substituted(question: Profile, entry: Profile) -> bool:
    """Whether two questions differ in one content word: "pause my plan", "cancel my plan"."""
    ours, theirs = Counter(question.words), Counter(entry.words)
    return (ours - theirs).total() == 1 == (theirs - ours).total() and abs(question.length - entry.length) <= 1


def written_alike(question: Profile, other: Profile) -> Profile:
    """Return a profile in which two words that the other one writes as one are one: "Wi-Fi" and "WiFi"."""
    known = set(other.words)
    if known.isdisjoint(question.joined):
        return question
    words, links, names = [], [], set(question.names)
    place = 0
    while place < len(question.words):
        word, links_to = question.words[place], question.links[place]
        if question.joined[place] in known and word not in known:
            names -= {word, question.words[place + 1]}
            word = question.joined[place]
            place += 1
        words.append(word)
        links.append(links_to)
        place += 1
    return structs.replace(question, words=tuple(words), links=(*links, question.links[-1]), names=tuple(sorted(names)))


def _turned_round(question: Profile, entry: Profile) -> bool:
    """Whether an opposed preposition stands before the same word, or an opposed particle in each of the questions."""
    theirs = dict(zip(entry.words, entry.links, strict=False))
    pairs = [(link, theirs.get(word, "")) for word, link in zip(question.words, question.links, strict=False)]
    pairs.append((question.links[-1], entry.links[-1]))
    if any(frozenset(each) in OPPOSED for one, other in pairs for each in product(one.split(), other.split())):
        return True
    ours, others = set(question.particles), set(entry.particles)
    only_ours, only_others = ours - others, others - ours
    return any(
        (one in only_ours and other in only_others) or (other in only_ours and one in only_others)
        for one, other in OPPOSED_PARTICLES
    )


class _Part(Struct, frozen=True, order=True):
    """A content word and its part in the question."""

    word: str
    link: str


def _roles_differ(question: Profile, entry: Profile) -> bool:
    """Whether the same words have other parts: who chases whom, from where to where."""
    if sorted(question.words) != sorted(entry.words):
        return False
    ours, theirs = _parts(question), _parts(entry)
    if question.words == entry.words:
        # What a passive is done by does it: "cats scare mice", "cats are scared by mice".
        return any("by" in (one.link, other.link) and one != other for one, other in zip(ours, theirs, strict=True))
    adjectives = question.adjectives
    return not (_moved(ours, theirs, adjectives) or _moved(_compound(ours), _compound(theirs), adjectives))


def _parts(question: Profile) -> list[_Part]:
    places = sum(link in _PLACES for link in question.links)
    links = ("of" if places == 1 and link in _PLACES else link for link in question.links)
    return [_Part(word, link) for word, link in zip(question.words, links, strict=False)]


def _compound(parts: Sequence[_Part]) -> list[_Part]:
    """Return the parts with "symptoms of diabetes" as "diabetes symptoms"."""
    moved: list[_Part] = []
    for part in parts:
        if part.link == "of":
            moved.insert(max(0, len(moved) - 1), _Part(part.word, ""))
        else:
            moved.append(part)
    return moved


def _moved(ours: list[_Part], theirs: list[_Part], adjectives: Sequence[str]) -> bool:
    """Whether parts have merely changed places.

    What a preposition marks may stand anywhere, as may a single adjective such as "safe" or "largest"; a phrase that
    begins with a preposition may move as a whole. The order of all other words tells their parts, as does the order of
    words behind the same preposition.
    """
    if sorted(ours) != sorted(theirs):
        return False
    phrase = any(
        ours[place:] + ours[:place] == theirs and (ours[place].link or ours[0].link) for place in range(1, len(ours))
    )
    return phrase or _by_link(ours, adjectives) == _by_link(theirs, adjectives)


def _by_link(parts: Sequence[_Part], adjectives: Sequence[str]) -> dict[str, list[str]]:
    movable = adjectives if len(adjectives) == 1 else ()
    words: dict[str, list[str]] = {}
    for part in parts:
        if part.link or part.word not in movable:
            words.setdefault(part.link, []).append(part.word)
    return words


def _empty(question: Profile, entry: Profile) -> bool:
    return not question.words or not entry.words


def _exchanged(question: Profile, entry: Profile) -> bool:
    """Whether one question has the opposite of a word of the other one."""
    ours, theirs = set(question.words), set(entry.words)
    return not set(entry.opposites).isdisjoint(ours - theirs) or not set(question.opposites).isdisjoint(theirs - ours)


def _other_names(question: Profile, entry: Profile) -> bool:
    return not (set(question.names) <= set(entry.words) and set(entry.names) <= set(question.words))


def _asks_for_something_else(question: Profile, entry: Profile) -> bool:
    return question.kind is not entry.kind and not _SPECIFIC.isdisjoint((question.kind, entry.kind))


GUARDS: dict[Rejection, Callable[[Profile, Profile], bool]] = {
    Rejection.EMPTY: _empty,
    Rejection.NUMBERS: lambda question, entry: question.numbers != entry.numbers,
    Rejection.UNITS: lambda question, entry: question.units != entry.units,
    Rejection.DATES: lambda question, entry: question.dates != entry.dates,
    Rejection.NEGATION: lambda question, entry: question.negations != entry.negations,
    Rejection.PERSONS: lambda question, entry: differ(question.persons, entry.persons),
    Rejection.OPPOSITES: _exchanged,
    Rejection.NAMES: _other_names,
    Rejection.DIRECTION: _turned_round,
    Rejection.QUESTION_TYPE: _asks_for_something_else,
    Rejection.ORDER: _roles_differ,
    Rejection.SUBSTITUTION: _substituted,
}
"""Each guard with what it refuses, in the order in which they are asked; profiles have been written alike."""
