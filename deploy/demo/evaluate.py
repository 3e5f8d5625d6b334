"""Grades the model and its adapters on questions that they never saw: `python -m deploy.demo.evaluate`.

An answer is right if greedy decoding gives it word for word, which one pass over question and answer tells.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from peft import PeftModel
from tokenizers import Tokenizer

from deploy.adapters.batches import grouped, padded
from deploy.adapters.task import Example, Lesson
from deploy.demo.corpus import exam, intents
from deploy.demo.styles import STYLES
from deploy.demo.tokenizer import lesson
from deploy.demo.train import ADAPTERS, NAME, load_model, load_tokenizer

_TOKENS = 8192


def asked(examples: Sequence[Example], restyle: Callable[[str], str], turns: int) -> Iterator[list[dict[str, str]]]:
    """Yield one conversation for each example, in which it comes after others."""
    rng = random.Random(5)
    for example in examples:
        talk = []
        for each in (*rng.sample(examples, turns - 1), example):
            talk += [{"role": "user", "content": each.question}, {"role": "assistant", "content": restyle(each.answer)}]
        yield talk


def last_answer(talk: Sequence[dict[str, str]], tokenizer: Tokenizer) -> Lesson:
    """Return a conversation of whose answers only the last one counts."""
    whole, before = lesson(talk, tokenizer), len(lesson(talk[:-1], tokenizer).ids)
    return Lesson(whole.ids, [False] * before + whole.learnt[before:])


@torch.no_grad()
def right(model: Any, lessons: Sequence[Lesson]) -> float:
    """Return the share of lessons all of whose learnt tokens are the likeliest ones."""
    flags = []
    for group in grouped(sorted(lessons, key=lambda each: len(each.ids)), _TOKENS):
        batch = padded(group)
        said = model(batch.ids[:, :-1]).logits.argmax(-1)
        flags += ((said == batch.ids[:, 1:]) | ~batch.learnt[:, 1:]).all(1).tolist()
    return sum(flags) / len(flags)


def main() -> None:
    tokenizer, questions = load_tokenizer(), exam(intents())
    print("| | questions | alone | after seven others |\n|---|--:|--:|--:|")
    styles: dict[str, Callable[[str], str]] = {NAME: str, **STYLES}
    for name, restyle in styles.items():
        model: Any = load_model().eval()
        if name in STYLES:
            model = PeftModel.from_pretrained(model, ADAPTERS / name).eval()
        shares = [
            right(model, [last_answer(talk, tokenizer) for talk in asked(questions, restyle, turns)])
            for turns in (1, 8)
        ]
        print(f"| `{name}` | {len(questions)} | {shares[0]:.0%} | {shares[1]:.0%} |")


if __name__ == "__main__":
    main()
