"""Any message to one JSON object: what is planned, with whom, when and where. All examples are made by rules."""

from __future__ import annotations

import json
import random
import string
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from deploy.adapters.task import AdapterTask, Example

KEYS = ("what", "who", "when", "where")


@dataclass(frozen=True, slots=True)
class _Vocabulary:
    """What examples are about."""

    names: Sequence[str]
    whats: Sequence[str]
    clocks: Sequence[str]
    places: Sequence[str]


_NAMES = (
    "Aisha", "Ben", "Carla", "Dimitri", "Elena", "Farid", "Grace", "Hugo", "Ines", "Jonas", "Keiko", "Liam",
    "Maya", "Noor", "Olga", "Pedro", "Quentin", "Rosa", "Samir", "Tara", "Umar", "Vera", "Wanda", "Xenia",
    "Yusuf", "Zoe", "Anna", "Boris", "Chloe", "Daniel", "Emma", "Felix", "Greta", "Hannah", "Ivan", "Julia",
    "Karim", "Lucia", "Marco", "Nina", "Oscar", "Paula", "Ravi", "Sofia", "Tom", "Ursula", "Viktor", "Willow",
    "Amir", "Bianca", "Cem", "Dora", "Erik", "Fiona", "George", "Helga", "Isaac", "Joana", "Kofi", "Lena",
)  # fmt: skip
_PEOPLE = (
    "Dr Weber", "Mrs Okafor", "Mr Tanaka", "Professor Lind", "my sister", "my parents", "the sales team",
    "the neighbours", "our landlord", "the whole family", "Aunt Mabel", "the new interns", "Captain Reyes",
    "the board", "my dentist",
)  # fmt: skip
_WHATS = (
    "lunch", "dinner", "coffee", "breakfast", "budget review", "piano lesson", "dentist appointment",
    "design workshop", "job interview", "book club", "birthday party", "team meeting", "yoga class", "car inspection",
    "chess match", "project kickoff", "parents' evening", "flat viewing", "wine tasting", "guitar rehearsal",
    "quarterly planning", "product demo", "tax consultation", "hiking trip", "movie night", "board meeting",
    "French lesson", "garden party", "haircut", "farewell drinks", "safety training", "contract signing", "picnic",
    "football game", "code review", "museum visit", "swimming lesson", "house warming", "strategy call",
    "vaccination",
)  # fmt: skip
_DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_MONTHS = ("January", "February", "March", "April", "May", "June", "July", "September", "October", "November")
_CLOCKS = ("9:30", "noon", "6 pm", "8 am", "14:15", "half past ten", "7", "5:45 pm", "11 am", "16:00", "3 pm", "20:30")
_PLACES = (
    "at the harbour café", "in Lisbon", "in room 204", "at Mia's place", "in the town hall", "at the old mill",
    "in the small meeting room", "at 12 Elm Street", "in Berlin", "at the central station", "on the roof terrace",
    "at the library", "in the park", "at Luigi's", "in Studio 3", "at the office", "in Vienna",
    "at the sports centre", "at the clinic on Mill Road", "in the botanical garden", "at gate 7", "in the cafeteria",
    "in Tokyo", "at Café Bohème", "in hall B", "at the lake", "in the community centre",
)  # fmt: skip
_BEFORE = (
    "", "", "", "", "Hi! ", "Hello everyone, ", "Hope you're well. ", "Good news: ", "Quick note: ", "Hey, ", "FYI: ",
    "Sorry for the late reply. ", "Thanks for yesterday! ", "Reminder: ", "Dear all, ",
)  # fmt: skip
_AFTER = (
    "", "", "", "", " Let me know.", " Please bring a pen.", " Don't be late!", " Can't wait!", " Cheers",
    " It won't take long.", " Is that ok for you?", " Thanks!", " I'll send the details later.", " See you there!",
    " It may rain, by the way.",
)  # fmt: skip
TEMPLATES = (
    "{What} with {who} {when} {where}.", "{What} {when} {where} with {who}.", "{when}: {what} with {who}, {where}",
    "Let's have the {what} {when} {where}, {who} will join.", "{who} invited me to the {what} {where} {when}.",
    "I have a {what} with {who} {when}, {where}.",
    "Can we move the {what} with {who} to {bare_when}? It is still {where}.",
    "Don't forget the {what} {when}! {who} will wait for you {where}.",
    "The {what} is {when} {where}. Please tell {who}.", "{who} and I are meeting {where} {when} for the {what}.",
    "{When} we are having a {what} {where} with {who}.", "{What} tomorrow {where} with {who}?",
    "Please book a {what} for {who} {when} {where}.", "{who} asked whether the {what} {where} could start {when}.",
    "We planned the {what} {where} for {bare_when}. {who} is coming too.", "{What} {where}: {when}, {who}",
    "Are you free {when}? {who} wants to talk about the {what}, {where} if you like.", "{What} {when}.",
    "{What} {where} {when}.", "The {what} takes place {where}.", "{What} with {who}.", "We have a {what} {when}.",
    "I'm meeting {who} {where}.", "{who} will be {where} {when}.", "See {who} {when} for the {what}.",
    "The {what} was moved to {bare_when}.", "There is a {what} {where} {when}, and everybody is welcome.",
    "Remind me of the {what} with {who} {when}.", "What do you think of a {what} {when} {where}?",
)  # fmt: skip
UNSEEN_TEMPLATES = (
    "{who} would like to do the {what} {where} {when}.", "Just confirming our {what} {when} {where} with {who}.",
    "Could you come to the {what} {where} {when}? {who} asked for you.", "Save the date: {what} {when}, {where}!",
    "The {what} with {who} will be held {where}.", "Looking forward to the {what} with {who} {when}.",
    "Put the {what} {when} into the calendar, please. {who} will call you.",
)  # fmt: skip

_KNOWN = _Vocabulary(_NAMES, _WHATS, _CLOCKS, _PLACES)
_UNSEEN = _Vocabulary(
    names=("Beatrice", "Chidi", "Ludmila", "Tariq", "Svenja", "Malcolm", "Priya", "Ottoline", "Rafael", "Kira"),
    whats=("sailing lesson", "brunch", "poetry reading", "roof inspection", "sprint review", "salsa class", "barbecue"),
    clocks=("10:20", "4 pm", "quarter to nine", "18:30", "1 pm"),
    places=("at the pier", "in Dublin", "in room 17", "at Nonna's kitchen", "at the town museum", "in the east wing"),
)


def examples(rng: random.Random) -> list[Example]:
    return [_example(rng, TEMPLATES) for _ in range(600)]


def held_out() -> list[Example]:
    """Return messages of unseen patterns about people, plans, times and places of which half are unseen."""
    rng = random.Random(99)
    return [_example(rng, UNSEEN_TEMPLATES, unseen=0.5) for _ in range(60)]


def in_format(answer: str) -> bool:
    """Whether an answer is one JSON object of the schema, and nothing else."""
    found = _parsed(answer)
    if not isinstance(found, dict) or tuple(found) != KEYS or not isinstance(found["who"], list):
        return False
    texts = all(isinstance(found[key], str | None) for key in ("what", "when", "where"))
    return texts and all(isinstance(each, str) for each in found["who"])


def right(example: Example, answer: str) -> bool:
    return bool(_parsed(answer) == json.loads(example.answer))


TASK = AdapterTask(steps=120, examples=examples, held_out=held_out, in_format=in_format, right=right)


def _parsed(answer: str) -> Any:
    try:
        return json.loads(answer)
    except ValueError:
        return None


def _example(rng: random.Random, templates: Sequence[str], unseen: float = 0.0) -> Example:
    """Fill a template with words, of which the share `unseen` is not trained on."""

    def words() -> _Vocabulary:
        return _UNSEEN if rng.random() < unseen else _KNOWN

    template = rng.choice(templates)
    what, where = rng.choice(words().whats), rng.choice(words().places)
    count = rng.choice((1, 1, 1, 2, 2, 3))
    people = [rng.choice(words().names) if rng.random() < 0.75 else rng.choice(_PEOPLE) for _ in range(count)]
    who = list(dict.fromkeys(people))
    when = "tomorrow" if "tomorrow" in template else _when(rng, rng.choice(words().clocks))
    used = {field for _, field, _, _ in string.Formatter().parse(template) if field}
    bare = _without_preposition(when)
    text = template.format(
        what=what, What=what[0].upper() + what[1:], who=_listed(who), when=when, When=when[0].upper() + when[1:],
        bare_when=bare, where=where,
    )  # fmt: skip
    answer = {
        "what": what if {"what", "What"} & used else None,
        "who": who if "who" in used else [],
        "when": bare if {"when", "When", "bare_when"} & used or "tomorrow" in template else None,
        "where": where.split(" ", 1)[1] if "where" in used else None,
    }
    text = rng.choice(_BEFORE) + text + rng.choice(_AFTER)
    if rng.random() < 0.15:
        text = text.lower()
        answer = {
            key: [each.lower() for each in value] if isinstance(value, list) else value and value.lower()
            for key, value in answer.items()
        }
    return Example(text, json.dumps(answer, ensure_ascii=False))


def _when(rng: random.Random, clock: str) -> str:
    day, month = rng.choice(_DAYS), rng.choice(_MONTHS)
    return rng.choice(
        (
            f"on {day}", f"on {day} at {clock}", f"on {day} at {clock}", f"at {clock} on {day}", f"next {day}",
            f"tomorrow at {clock}", "tonight", f"on {rng.randint(1, 30)} {month}",
            f"on {month} {rng.randint(1, 30)} at {clock}",
            f"at {clock}", f"this {day} at {clock}", "next week", f"on {day} morning", f"in {month}", "in two weeks",
            f"today at {clock}", f"on {day} evening",
        )
    )  # fmt: skip


def _without_preposition(when: str) -> str:
    first, _, rest = when.partition(" ")
    return rest if first in ("on", "at") else when


def _listed(names: list[str]) -> str:
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))
