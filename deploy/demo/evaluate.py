"""Grades the checkpoints on questions they never saw. `python -m deploy.demo.evaluate` prints and writes the table.

An answer is right when greedy decoding gives the canonical answer; a generated problem is right when its final
result is. Whether a model would say the canonical answer is read off in one pass over question and answer, which is
the same as decoding and a hundred times faster; only problems that fail this are decoded token by token, for
their result may still be right.
"""

from __future__ import annotations

import argparse
import json
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer

from deploy.demo.conversations import ExamQuestion, build_exam
from deploy.demo.corpus import HERE, load_intents, normalise, split_corpus
from deploy.demo.model import SHAPES, Llama, load_checkpoint
from deploy.demo.tokenizer import Encoder, write_json

RESULTS_NAME = "accuracy.json"
SECTIONS = ("held-back", "easy", "arithmetic", "reasoning", "follow-up", "multi-turn")
LONGEST_ANSWER = 100


@dataclass(frozen=True)
class Graded:
    question: ExamQuestion
    said: str
    correct: bool


def is_correct(question: ExamQuestion, said: str) -> bool:
    if normalise(said) == normalise(question.answer):
        return True
    if question.result is None:
        return False
    if re.fullmatch(r"-?\d+", question.result):
        # The result is the last number, or the first where the sentence opens with it ("7 is larger than 3.").
        numbers = re.findall(r"\d+", said)
        first = bool(re.match(r"\d+ is (larger|smaller)|The next number", question.answer))
        return bool(numbers) and numbers[0 if first else -1] == question.result
    return normalise(question.result) in normalise(said.rsplit(",", 1)[-1])


@torch.no_grad()
def says_exactly(
    model: Llama, encoder: Encoder, questions: list[ExamQuestion], batch_tokens: int = 16384
) -> list[bool]:
    """For each question, whether greedy decoding gives the canonical answer token by token."""
    rows = []
    for index, question in enumerate(questions):
        prompt = encoder.prompt(question.messages)
        answer = encoder.tokenizer.encode(question.answer + "<|end|>").ids
        rows.append((index, prompt, answer))
    rows.sort(key=lambda row: len(row[1]) + len(row[2]))
    exact = [False] * len(questions)
    while rows:
        longest = len(rows[-1][1]) + len(rows[-1][2])
        count = max(1, batch_tokens // longest)
        group, rows = rows[-count:], rows[:-count]
        ids = torch.full((len(group), longest), encoder.pad)
        for number, (_, prompt, answer) in enumerate(group):
            ids[number, : len(prompt) + len(answer)] = torch.tensor(prompt + answer)
        with torch.autocast("cpu", torch.bfloat16):
            states = model.hidden(ids)
            for number, (index, prompt, answer) in enumerate(group):
                span = states[number, len(prompt) - 1 : len(prompt) + len(answer) - 1]
                exact[index] = model.logits(span).argmax(-1).tolist() == answer
    return exact


@torch.no_grad()
def generate(model: Any, encoder: Encoder, prompts: list[list[int]], batch: int = 96) -> list[str]:
    """Greedy answers of a transformers model, batched with padding on the left."""
    order = sorted(range(len(prompts)), key=lambda index: len(prompts[index]))
    said = [""] * len(prompts)
    for start in range(0, len(order), batch):
        group = order[start : start + batch]
        longest = max(len(prompts[index]) for index in group)
        ids = torch.tensor([[encoder.pad] * (longest - len(prompts[i])) + prompts[i] for i in group])
        mask = torch.tensor([[0] * (longest - len(prompts[i])) + [1] * len(prompts[i]) for i in group])
        out = model.generate(
            input_ids=ids, attention_mask=mask, max_new_tokens=LONGEST_ANSWER, do_sample=False,
            eos_token_id=encoder.end, pad_token_id=encoder.pad,
        )  # fmt: skip
        for row, index in enumerate(group):
            said[index] = encoder.decode(out[row, longest:].tolist()).strip()
    return said


def grade(folder: Path, questions: list[ExamQuestion], show: int = 0) -> list[Graded]:
    """Grades one checkpoint; answers at least `show` failed questions token by token, to be looked at."""
    from transformers import AutoModelForCausalLM

    encoder = Encoder(Tokenizer.from_file(str(folder / "tokenizer.json")))
    exact = says_exactly(load_checkpoint(folder), encoder, questions)
    failed = [question for question, done in zip(questions, exact, strict=True) if not done]
    shown = set(failed[:: max(1, len(failed) // max(1, show))][:show])
    open_questions = [question for question in failed if question.result is not None or question in shown]
    reference: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
    answers = iter(generate(reference, encoder, [encoder.prompt(question.messages) for question in open_questions]))
    graded = []
    for question, done in zip(questions, exact, strict=True):
        said = question.answer if done else ""
        if not done and (question.result is not None or question in shown):
            said = next(answers)
        graded.append(Graded(question, said, done or is_correct(question, said)))
    return graded


def summary(graded: list[Graded]) -> dict[str, dict[str, int]]:
    """Right answers and questions per section, and in all."""
    right = Counter(item.question.section for item in graded if item.correct)
    asked = Counter(item.question.section for item in graded)
    table = {name: {"right": right[name], "asked": asked[name]} for name in SECTIONS}
    table["all"] = {"right": right.total(), "asked": asked.total()}
    return table


def markdown(results: dict[str, dict[str, dict[str, int]]]) -> str:
    """The table of all sizes, as the README shows it."""
    names = (*SECTIONS, "all")
    lines = ["| exam | questions | " + " | ".join(results) + " |", "|---|---|" + "---|" * len(results)]
    for name in names:
        cells = [f"{100 * table[name]['right'] / max(1, table[name]['asked']):.1f} %" for table in results.values()]
        asked = next(iter(results.values()))[name]["asked"]
        lines.append(f"| {name} | {asked} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m deploy.demo.evaluate", description=__doc__)
    parser.add_argument("--size", choices=tuple(SHAPES), action="append", help="only this size (may be repeated)")
    parser.add_argument("--models", type=Path, default=HERE / "models")
    parser.add_argument("--wrong", type=int, default=0, help="also print this many wrong answers of each size")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--adapters", action="store_true", help="grade the adapters too")
    arguments = parser.parse_args()
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    questions = build_exam(split_corpus(load_intents()))
    results = {}
    for size in arguments.size or SHAPES:
        graded = grade(arguments.models / size, questions, arguments.wrong)
        results[size] = summary(graded)
        print(markdown({size: results[size]}), flush=True)
        wrong = [item for item in graded if not item.correct and item.said]
        for item in wrong[:: max(1, len(wrong) // max(1, arguments.wrong))][: arguments.wrong]:
            question = item.question.messages[-1]["content"]
            print(f"  [{item.question.section}] {question}\n    said: {item.said}\n    want: {item.question.answer}")
        # Sizes graded in other runs keep their figures.
        path = arguments.models / RESULTS_NAME
        known = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        write_json(path, {**known, size: results[size]})
    print(markdown(results))
    if arguments.adapters:
        from deploy.demo.adapters import evaluate_all

        print(json.dumps(evaluate_all(arguments.models / "medium"), indent=2))


if __name__ == "__main__":
    main()
