"""Batches of conversations of like lengths."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from deploy.adapters.task import AdapterTask, Lesson, conversations, tokenise
from engine.text.processor import TextProcessor

_TOKENS = 384
"""Most tokens of a batch, padding included."""


@dataclass(frozen=True, slots=True)
class LessonBatch:
    """Conversations side by side, padded behind, which causal attention does not see."""

    ids: torch.Tensor
    """[conversations, tokens]"""
    learnt: torch.Tensor
    """[conversations, tokens]; whether a token counts in the loss."""


def batches(task: AdapterTask, text: TextProcessor, seed: int) -> Iterator[LessonBatch]:
    """Yield batches without end. The same seed gives the same batches."""
    rng = random.Random(seed)
    while True:
        lessons = [tokenise(each, text) for each in conversations(task.examples(rng), rng)]
        groups = grouped(sorted(lessons, key=lambda lesson: len(lesson.ids)), _TOKENS)
        rng.shuffle(groups)
        yield from map(padded, groups)


def grouped(lessons: Sequence[Lesson], tokens: int) -> list[list[Lesson]]:
    """Cut lessons, sorted by length, into groups of at most `tokens` once padded; a longer lesson is alone."""
    groups: list[list[Lesson]] = []
    for lesson in lessons:
        if not groups or (len(groups[-1]) + 1) * len(lesson.ids) > tokens:
            groups.append([])
        groups[-1].append(lesson)
    return groups


def padded(lessons: Sequence[Lesson]) -> LessonBatch:
    width = max(len(lesson.ids) for lesson in lessons)
    ids = torch.zeros(len(lessons), width, dtype=torch.long)
    learnt = torch.zeros(len(lessons), width, dtype=torch.bool)
    for row, lesson in enumerate(lessons):
        ids[row, : len(lesson.ids)] = torch.tensor(lesson.ids)
        learnt[row, : len(lesson.ids)] = torch.tensor(lesson.learnt)
    return LessonBatch(ids, learnt)
