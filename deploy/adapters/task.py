"""One adapter's lesson, and the conversations that it is trained on."""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from engine.text.processor import TextProcessor

_CHOICE = re.compile(r"\[([^]]*)\]")
_MOST_TURNS = 3
"""Examples in one training conversation: adapters keep their style in later turns, and share a system message."""
_OTHER_SYSTEM = 0.2
"""Share of conversations with a system message of their own in place of the chat template's."""
_SYSTEMS = ("You are a helpful assistant.", "Answer briefly.", "Be friendly and precise.")


def phrasings(pattern: str) -> list[str]:
    """Return the questions that a pattern stands for: `[one|other|]` is each of its choices.

    >>> phrasings("who [is|was] it")
    ['who is it', 'who was it']
    """
    pieces = _CHOICE.split(pattern)
    choices = [piece.split("|") if index % 2 else [piece] for index, piece in enumerate(pieces)]
    return list(dict.fromkeys(" ".join("".join(parts).split()) for parts in itertools.product(*choices)))


@dataclass(frozen=True, slots=True)
class Example:
    """A message of a user, and the answer that the adapter should give."""

    question: str
    answer: str


@dataclass(frozen=True, slots=True)
class AdapterTask:
    """What an adapter learns, and how it is graded."""

    steps: int
    """Optimiser steps of training."""
    examples: Callable[[random.Random], list[Example]]
    """Draws the examples of one epoch."""
    held_out: Callable[[], list[Example]]
    """Returns the examples that are graded; no training example has their wording."""
    in_format: Callable[[str], bool]
    """Whether an answer has the form that the adapter teaches."""
    right: Callable[[Example, str], bool]
    """Whether an answer's content fits the example."""
    keeps: bool = False
    """Whether facts of unrelated questions should be in the answers as they are in those of the base."""


@dataclass(frozen=True, slots=True)
class Lesson:
    """Token ids of one conversation, and which of them are learnt."""

    ids: list[int]
    learnt: list[bool]


def conversations(examples: Sequence[Example], rng: random.Random) -> list[list[dict[str, str]]]:
    """Join examples to conversations of one to three turns; most of them have one."""
    rest, result = list(examples), []
    rng.shuffle(rest)
    while rest:
        turns = rng.choice((1, 1, *range(1, _MOST_TURNS + 1)))
        messages = [{"role": "system", "content": rng.choice(_SYSTEMS)}] if rng.random() < _OTHER_SYSTEM else []
        for example in rest[:turns]:
            messages.append({"role": "user", "content": example.question})
            messages.append({"role": "assistant", "content": example.answer})
        result.append(messages)
        del rest[:turns]
    return result


def tokenise(messages: Sequence[dict[str, str]], text: TextProcessor) -> Lesson:
    """Return a conversation's ids up to its last answer's end token, where answers and their ends are learnt."""
    ids = text.encode_chat(messages, add_generation_prompt=False)
    learnt, end = [False] * len(ids), 0
    for index, message in enumerate(messages):
        if message["role"] == "assistant":
            begin = len(text.encode_chat(messages[:index]))
            end = next(at for at in range(begin, len(ids)) if ids[at] in text.eos_token_ids) + 1
            learnt[begin:end] = [True] * (end - begin)
    return Lesson(ids[:end], learnt[:end])
