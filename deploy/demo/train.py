"""Trains the demo: tokenizer, the three checkpoints, the adapters. `python -m deploy.demo.train --help`.

Every stage can be interrupted and started again; it continues from `deploy/demo/.training/`.
"""

from __future__ import annotations

import argparse
import math
import shutil
from dataclasses import replace
from pathlib import Path

import torch
from tokenizers import Tokenizer

from deploy.demo import adapters
from deploy.demo.conversations import ConversationStream
from deploy.demo.corpus import HANDBOOK_FILE, HERE, SplitIntent, check, load_file, load_intents, split_corpus
from deploy.demo.grow import widen
from deploy.demo.memory import keep_memory, release_memory
from deploy.demo.model import SHAPES, Llama, load_checkpoint, save_checkpoint
from deploy.demo.styles import style_phrases
from deploy.demo.tokenizer import Encoder, train_tokenizer, write_tokenizer
from deploy.demo.trainer import Recipe, Trainer, load_model

STATE = HERE / ".training"
MODELS = HERE / "models"

#: `large` grows out of the finished medium model. That makes it reach in minutes on one core what it would not reach
#: in an hour from random weights; its gentler rates keep what it inherits.
RECIPES: dict[str, Recipe] = {
    "small": Recipe(steps=4000, seed=11),
    "medium": Recipe(steps=2400, seed=12),
    "large": Recipe(steps=1600, seed=14, warmup=15, muon_lr=0.01, adam_lr=4e-3, dropout=0.1),
}

#: With `--improve`: on from the committed checkpoints, at the gentler rates, on shorter answers.
IMPROVEMENTS: dict[str, Recipe] = {
    size: replace(RECIPES["large"], steps=2400, seed=seed, dropout=0.0, longest_cut=6)
    for size, seed in (("small", 31), ("medium", 32), ("large", 34))
}


def read_corpus() -> list[SplitIntent]:
    """The split corpus; refuses a corpus that breaks its rules."""
    intents = load_intents()
    problems = check(intents)
    if problems:
        raise SystemExit("the corpus is not sound:\n" + "\n".join(problems[:20]))
    return split_corpus(intents)


def prepare_tokenizer(splits: list[SplitIntent], state: Path, shipped: Path | None = None) -> Encoder:
    """Trains the tokenizer once, or takes that of the checkpoint `shipped`; resumed runs read it back."""
    folder = state / "tokenizer"
    if shipped is not None and not folder.exists():
        shutil.copytree(shipped, folder, ignore=shutil.ignore_patterns("config.json", "model.safetensors"))
    if not (folder / "tokenizer.json").exists():
        extra = [*style_phrases()]
        if HANDBOOK_FILE.exists():
            extra += [turn.answer for intent in load_file(HANDBOOK_FILE) for turn in (intent, *intent.followups)]
        write_tokenizer(train_tokenizer(splits, extra), folder)
    return Encoder(Tokenizer.from_file(str(folder / "tokenizer.json")))


def train_size(
    size: str, recipe: Recipe, splits: list[SplitIntent], state: Path, models: Path, *, improve: bool
) -> None:
    encoder = prepare_tokenizer(splits, state, models / size if improve else None)
    torch.manual_seed(recipe.seed)
    model = load_checkpoint(models / size) if improve else initial_model(size, recipe, state)
    if recipe.compile:
        model.fuse()
    trainer = Trainer(model, recipe, encoder, lambda seed: ConversationStream(splits, seed))

    def publish() -> None:
        save_checkpoint(model, state / "tokenizer", models / size)
        release_memory()

    trainer.run(state / (f"{size}-improved" if improve else size), size, publish)
    publish()


def initial_model(size: str, recipe: Recipe, state: Path) -> Llama:
    """Random weights; for large, the trained medium model, widened."""
    model = Llama(SHAPES[size], recipe.dropout)
    if size == "large":
        medium = Llama(SHAPES["medium"])
        medium.load_state_dict(load_model(state / "medium"))
        model.load_state_dict(widen(medium, model))
    return model


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m deploy.demo.train", description=__doc__)
    stages = ("small", "medium", "large", "adapters")
    parser.add_argument("--size", choices=stages, action="append", help="train only this (may be repeated)")
    parser.add_argument("--steps", type=int, help="optimizer steps for each size instead of the recipe's")
    parser.add_argument("--minutes", type=float, default=math.inf, help="end each size after this many minutes")
    parser.add_argument("--threads", type=int, help="CPU threads (default: torch's choice)")
    parser.add_argument(
        "--improve", action="store_true", help="train the committed checkpoints further instead of new ones"
    )
    parser.add_argument("--fresh", action="store_true", help="forget saved training state, the tokenizer included")
    parser.add_argument("--state", type=Path, default=STATE, help="where training state is kept")
    parser.add_argument("--models", type=Path, default=MODELS, help="where checkpoints are written")
    compiler = shutil.which("g++") is not None
    parser.add_argument(
        "--compile", action=argparse.BooleanOptionalAction, default=compiler, help="fuse small operations (needs g++)"
    )
    arguments = parser.parse_args()
    keep_memory()
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    if arguments.fresh:
        shutil.rmtree(arguments.state, ignore_errors=True)
    splits = read_corpus()
    for stage in arguments.size or stages:
        if stage == "adapters":
            adapters.train_all(splits, arguments.models / "medium", arguments.state, arguments.compile)
            continue
        recipe = replace(
            (IMPROVEMENTS if arguments.improve else RECIPES)[stage],
            minutes=arguments.minutes,
            compile=arguments.compile,
        )
        if arguments.steps:
            recipe = replace(recipe, steps=arguments.steps)
        train_size(stage, recipe, splits, arguments.state, arguments.models, improve=arguments.improve)


if __name__ == "__main__":
    main()
