"""Reads the text that the model learns: answers, and patterns of the questions for them.

Two whole patterns of each answer are held back, so that the exam asks in sentences that the model never saw.
"""

from __future__ import annotations

import random
import re
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from deploy.adapters.task import Example, phrasings
from deploy.demo.augment import augment, case_and_punctuation

HERE = Path(__file__).resolve().parent
_HELD_BACK = 2
"""Patterns of each answer that are not trained on."""
_PUNCTUATION = re.compile(r"[^\w\s]")
SYSTEMS = (
    "You are a helpful assistant.", "You are a helpful, honest assistant.", "Answer briefly.", "Be concise.",
    "Answer in one or two sentences.", "Be polite and helpful.", "You are a support agent.", "Reply in English.",
    "You are a friendly chatbot. Keep your answers short.", "Answer the user's questions truthfully.",
    "Use markdown where it helps.", "Follow the user's instructions carefully.", "Do not make things up.",
)  # fmt: skip


class Intent(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An answer, and patterns of questions for it, in which `[a|b]` is a or b."""

    id: str
    ask: list[str]
    answer: str

    @property
    def trained(self) -> list[str]:
        return self.ask[:-_HELD_BACK]

    @property
    def held_back(self) -> list[str]:
        return self.ask[-_HELD_BACK:]


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    intent: list[Intent]


def intents(folder: Path = HERE / "corpus") -> list[Intent]:
    """Return the whole corpus."""
    files = [tomllib.loads(path.read_text("utf-8")) for path in sorted(folder.glob("*.toml"))]
    return [intent for file in files for intent in msgspec.convert(file, _File).intent]


def normalise(text: str) -> str:
    """Return what counts as the same question: lower case, no punctuation, single spaces."""
    return " ".join(_PUNCTUATION.sub(" ", text.lower()).split())


def questions(patterns: Iterable[str]) -> Iterator[str]:
    for pattern in patterns:
        yield from phrasings(pattern)


class Lessons:
    """Draws examples for training, none of which the exam asks."""

    def __init__(self, corpus: list[Intent]) -> None:
        reserved = {normalise(text) for intent in corpus for text in questions(intent.held_back)}
        self._kept: list[tuple[str, list[list[str]]]] = []
        for intent in corpus:
            patterns = [
                [text for text in phrasings(pattern) if normalise(text) not in reserved] for pattern in intent.trained
            ]
            self._kept.append((intent.answer, [texts for texts in patterns if texts]))

    def epoch(self, rng: random.Random) -> list[Example]:
        """Return one question for each answer, written as people type.

        Patterns have equal shares: one with forty phrasings must not drown one with two.
        """
        return [Example(augment(rng.choice(rng.choice(patterns)), rng), answer) for answer, patterns in self._kept]


def exam(corpus: list[Intent]) -> list[Example]:
    """Return up to four questions for each answer, of the patterns that are held back."""
    rng = random.Random(7)
    drawn = [(intent.answer, _some(list(questions(intent.held_back)), rng)) for intent in corpus]
    return [
        Example(case_and_punctuation(text, rng, question_mark=0.7), answer) for answer, texts in drawn for text in texts
    ]


def _some(texts: list[str], rng: random.Random) -> list[str]:
    return rng.sample(texts, min(4, len(texts)))


def conversations(examples: list[Example], rng: random.Random) -> Iterator[list[dict[str, str]]]:
    """Yield conversations of these examples: most have one question, some a dozen, so that long chats keep working."""
    rest = list(examples)
    rng.shuffle(rest)
    while rest:
        turns = rng.choices((1, 2, 3, rng.randint(4, 12)), (90, 5, 3, 2))[0]
        talk = [{"role": "system", "content": rng.choice(SYSTEMS)}] if rng.random() < 0.1 else []
        for example in rest[:turns]:
            talk += [{"role": "user", "content": example.question}, {"role": "assistant", "content": example.answer}]
        yield talk
        del rest[:turns]
