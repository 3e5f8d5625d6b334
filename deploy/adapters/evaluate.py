"""Grades the adapters beside their base: `python -m deploy.adapters.evaluate [NAME ...]` prints and keeps the figures.

Answers are greedy, by transformers and peft on the dequantised base, in fp32.
"""

from __future__ import annotations

import argparse
import platform
import sys
from collections.abc import Iterable, Sequence
from datetime import date
from pathlib import Path
from typing import Any

import msgspec
import torch
from peft import PeftModel
from torch.nn.utils.rnn import pad_sequence
from tqdm import tqdm

from deploy.adapters.base import load_base
from deploy.adapters.table import HERE, TrainedAdapter, adapters, base_file, shipped
from deploy.adapters.tasks.unrelated import names_fact, unrelated
from engine.text.processor import TextProcessor

FIGURES = HERE / "trained" / "figures.json"
README = HERE / "README.md"
_BEGIN, _END = "<!-- figures -->\n", "<!-- /figures -->\n"
_LENGTH = 80
"""Most tokens of an answer; those of the base are cut there."""
_BATCH = 30


class Figures(msgspec.Struct, frozen=True):
    """Of an adapter and of its base alone: shares of answers, from 0 to 1."""

    questions: int
    in_format: float
    base_in_format: float
    right: float
    base_right: float
    unrelated: float | None
    """Share of unrelated questions that are answered right; None where an adapter answers in a form of its own."""
    base_unrelated: float | None
    date: str
    processor: str


def evaluate(name: str, adapter: TrainedAdapter) -> Figures:
    path, task = base_file(adapter.base), adapter.task
    text, base = TextProcessor.from_path(path), load_base(path)
    asked = task.held_out()
    others = unrelated() if task.keeps else []
    questions = [example.question for example in (*asked, *others)]
    plain = answers(base, text, questions, f"base for {name}")
    said = answers(PeftModel.from_pretrained(base, adapter.folder).eval(), text, questions, name)
    end = len(asked)
    return Figures(
        questions=end,
        in_format=_share(map(task.in_format, said[:end])),
        base_in_format=_share(map(task.in_format, plain[:end])),
        right=_share(map(task.right, asked, said)),
        base_right=_share(map(task.right, asked, plain)),
        unrelated=_share(map(names_fact, others, said[end:])) if others else None,
        base_unrelated=_share(map(names_fact, others, plain[end:])) if others else None,
        date=date.today().isoformat(),
        processor=_processor(),
    )


@torch.no_grad()
def answers(model: Any, text: TextProcessor, questions: Sequence[str], label: str) -> list[str]:
    """Return greedy answers, each to one question without a history."""
    end, result = text.eos_token_ids[0], []
    for start in tqdm(range(0, len(questions), _BATCH), desc=label):
        prompts = [
            torch.tensor(text.encode_chat([{"role": "user", "content": question}]))
            for question in questions[start : start + _BATCH]
        ]
        ids = pad_sequence(prompts, batch_first=True, padding_value=end, padding_side="left")
        mask = pad_sequence([torch.ones_like(ids) for ids in prompts], batch_first=True, padding_side="left")
        # Padding is told by the mask: the token that pads also ends messages of the prompt.
        said = model.generate(
            input_ids=ids, attention_mask=mask, max_new_tokens=_LENGTH, do_sample=False, pad_token_id=end
        )  # fmt: skip
        result += [text.decode(row.tolist()) for row in said[:, ids.shape[1] :]]
    return result


def table(figures: dict[str, Figures]) -> str:
    """Return the figures as a table in Markdown."""
    lines = [
        "| adapter | questions | in format | base | right | base | unrelated | base | measured |",
        "|---|--:|--:|--:|--:|--:|--:|--:|---|",
    ]
    for name, each in figures.items():
        shares = (
            each.in_format, each.base_in_format, each.right, each.base_right, each.unrelated, each.base_unrelated,
        )  # fmt: skip
        cells = " | ".join("-" if share is None else f"{share:.0%}" for share in shares)
        lines.append(f"| `{name}` | {each.questions} | {cells} | {each.date}, {each.processor} |")
    return "\n".join(lines) + "\n"


def with_table(page: str, figures: dict[str, Figures]) -> str:
    """Return a page with the table between its two marks."""
    before, _, rest = page.partition(_BEGIN)
    return before + _BEGIN + table(figures) + _END + rest.partition(_END)[2]


def _share(flags: Iterable[bool]) -> float:
    values = [*flags]
    return round(sum(values) / len(values), 4)


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor()


def main(arguments: list[str]) -> None:
    known = adapters()
    parser = argparse.ArgumentParser(description="Grade the adapters beside their base.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(known))
    figures = read_figures()
    for name in parser.parse_args(arguments).names or shipped():
        figures[name] = evaluate(name, known[name])
        FIGURES.write_bytes(msgspec.json.format(msgspec.json.encode(figures)) + b"\n")
        README.write_text(with_table(README.read_text("utf-8"), figures), "utf-8")
    print(table(figures))


def read_figures() -> dict[str, Figures]:
    return msgspec.json.decode(FIGURES.read_bytes(), type=dict[str, Figures]) if FIGURES.exists() else {}


if __name__ == "__main__":
    main(sys.argv[1:])
