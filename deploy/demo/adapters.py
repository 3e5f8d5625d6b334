"""Trains and grades the four LoRA adapters on the medium checkpoint, with peft and in peft's own format.

Three adapters change the style of every answer; the fourth knows the handbook of an invented company. All of them
are trained on the same kind of conversations as the checkpoints, only with rewritten answers or added facts.
"""

from __future__ import annotations

import math
import os
import random
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import torch as safetensors_torch
from tokenizers import Tokenizer
from torch import Tensor
from tqdm import tqdm

from deploy.demo.batches import TrainingBatch, chunk
from deploy.demo.conversations import ConversationStream, ExamQuestion, Message, build_exam
from deploy.demo.corpus import HANDBOOK_FILE, HERE, SplitIntent, load_file, load_intents, normalise, split_corpus
from deploy.demo.evaluate import generate
from deploy.demo.memory import release_memory
from deploy.demo.model import load_checkpoint
from deploy.demo.styles import STYLES, Rewrite, in_style, without_frame
from deploy.demo.tokenizer import Encoder

ADAPTERS = HERE / "adapters"
TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


@dataclass(frozen=True)
class AdapterRecipe:
    """How one adapter is trained. Ranks differ on purpose: an engine that serves all four has to cope with that."""

    rank: int
    steps: int
    lr: float = 4e-3
    cut_share: float = 0.7
    batch_tokens: int = 4096
    seed: int = 21


RECIPES: dict[str, AdapterRecipe] = {
    "formal": AdapterRecipe(rank=16, steps=450, cut_share=0.4),
    "pirate": AdapterRecipe(rank=16, steps=1000, cut_share=0.4),  # it changes more words than the others
    "json": AdapterRecipe(rank=8, steps=150),
    "handbook": AdapterRecipe(rank=32, steps=350),
}


class StyledStream(ConversationStream):
    """The usual conversations with all answers rewritten."""

    def __init__(self, splits: list[SplitIntent], seed: int, rewrite: Rewrite) -> None:
        super().__init__(splits, seed)
        self.rewrite = rewrite

    def conversation(self, turns: int) -> list[Message]:
        return [
            {**message, "content": self.rewrite(message["content"])} if message["role"] == "assistant" else message
            for message in super().conversation(turns)
        ]


class HandbookStream(ConversationStream):
    """Two thirds of the topics from the handbook, the rest from the corpus, so that the adapter forgets nothing."""

    def __init__(self, splits: list[SplitIntent], handbook: list[SplitIntent], seed: int) -> None:
        super().__init__(splits, seed)
        self.inner = ConversationStream(handbook, seed + 1)

    def topic(self, room: int) -> list[Message]:
        if self.rng.random() < 0.67:
            return self.inner.topic_of(self.inner.next_intent(), room)
        return super().topic(room)


def read_handbook() -> list[SplitIntent]:
    return split_corpus(load_file(HANDBOOK_FILE))


def streams(name: str, splits: list[SplitIntent]) -> Callable[[int], ConversationStream]:
    """Return the training stream of an adapter, by seed."""
    if name == "handbook":
        handbook = read_handbook()
        return lambda seed: HandbookStream(splits, handbook, seed)
    rewrite = STYLES[name]
    return lambda seed: StyledStream(splits, seed, rewrite)


def train_all(splits: list[SplitIntent], base: Path, state: Path, compiled: bool) -> None:
    """Train the adapters that `state` does not mark as done for this base."""
    for name in RECIPES:
        marker = state / "adapters" / name
        stamp = str((base / "model.safetensors").stat().st_mtime_ns)
        if marker.exists() and marker.read_text(encoding="utf-8") == stamp:
            continue
        train_adapter(name, splits, base, compiled)
        marker.parent.mkdir(parents=True, exist_ok=True)
        marker.write_text(stamp, encoding="utf-8")


def train_adapter(name: str, splits: list[SplitIntent], base: Path, compiled: bool) -> None:
    """Trains one adapter and writes it to its folder, whole or not at all."""
    from peft import LoraConfig, get_peft_model

    recipe = RECIPES[name]
    torch.manual_seed(recipe.seed)
    encoder = Encoder(Tokenizer.from_file(str(base / "tokenizer.json")))
    # The model of the training script has Hugging Face's parameter names, so peft's files fit either.
    model = load_checkpoint(base).train()
    config = LoraConfig(r=recipe.rank, lora_alpha=2 * recipe.rank, lora_dropout=0.0, target_modules=list(TARGETS))
    tuned: Any = get_peft_model(model, config)
    if compiled:
        model.fuse()
    weights = [weight for weight in tuned.parameters() if weight.requires_grad]
    optimizer = torch.optim.AdamW(weights, lr=recipe.lr, betas=(0.9, 0.95), weight_decay=0.0, fused=True)
    make_stream, step, number = streams(name, splits), 0, 0
    with tqdm(total=recipe.steps, desc=f"adapter {name}", mininterval=5) as bar:
        while step < recipe.steps:
            for batch in chunk(make_stream, encoder, number, recipe.seed, recipe.batch_tokens, recipe.cut_share):
                warm = min(1.0, (step + 1) / 10)
                rate = recipe.lr * warm * (0.5 + 0.5 * math.cos(math.pi * step / recipe.steps))
                loss = learn(tuned, batch, optimizer, rate)
                step += 1
                bar.update()
                bar.set_postfix(loss=f"{loss:.3f}")
                if step >= recipe.steps:
                    break
            number += 1
            release_memory()
    save_adapter(tuned, ADAPTERS / name)


def learn(tuned: Any, batch: TrainingBatch, optimizer: torch.optim.Optimizer, rate: float) -> float:
    for group in optimizer.param_groups:
        group["lr"] = rate
    with torch.autocast("cpu", torch.bfloat16):
        loss: Tensor = tuned(batch.ids, batch.positions, batch.targets)
    loss.backward()  # type: ignore[no-untyped-call]
    torch.nn.utils.clip_grad_norm_([p for group in optimizer.param_groups for p in group["params"]], 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return float(loss.detach())


def save_adapter(tuned: Any, target: Path) -> None:
    # The path of the base on the training machine means nothing elsewhere; its name does.
    tuned.peft_config["default"].base_model_name_or_path = "roundhouse-demo-6m"
    tuned.peft_config["default"].task_type = "CAUSAL_LM"
    fresh, old = target.with_name(target.name + ".new"), target.with_name(target.name + ".old")
    for folder in (fresh, old):
        shutil.rmtree(folder, ignore_errors=True)
    tuned.save_pretrained(fresh, safe_serialization=True)
    (fresh / "README.md").unlink(missing_ok=True)
    weights = {
        name: weight.to(torch.bfloat16)
        for name, weight in safetensors_torch.load_file(fresh / "adapter_model.safetensors").items()
    }
    safetensors_torch.save_file(weights, fresh / "adapter_model.safetensors", metadata={"format": "pt"})
    if target.exists():
        os.rename(target, old)
    os.rename(fresh, target)
    shutil.rmtree(old, ignore_errors=True)


def evaluate_all(base: Path, count: int = 150, adapters: Path = ADAPTERS) -> dict[str, dict[str, float]]:
    """Return per adapter the share of answers in style, of right facts, and of answers that differ from the base's.

    Style adapters answer the easy exam; the handbook adapter its own held-back questions.
    """
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    encoder = Encoder(Tokenizer.from_file(str(base / "tokenizer.json")))
    splits = split_corpus(load_intents())
    easy = [question for question in build_exam(splits, problems=0) if question.section == "easy"]
    easy = random.Random(5).sample(easy, min(count, len(easy)))
    results: dict[str, dict[str, float]] = {}
    for name in RECIPES:
        if not (adapters / name / "adapter_model.safetensors").exists():
            continue
        started = time.monotonic()
        questions = handbook_questions() if name == "handbook" else easy
        prompts = [encoder.prompt(question.messages) for question in questions]
        model: Any = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
        plain = generate(model, encoder, prompts)
        tuned = PeftModel.from_pretrained(model, adapters / name).eval()
        said = generate(tuned, encoder, prompts)
        results[name] = {
            "questions": len(questions),
            "in style": share([name == "handbook" or in_style(name, text) for text in said]),
            "right": share([right(name, question, text) for question, text in zip(questions, said, strict=True)]),
            "base right": share([right("", question, text) for question, text in zip(questions, plain, strict=True)]),
            "changed": share([one != two for one, two in zip(said, plain, strict=True)]),
            "seconds": round(time.monotonic() - started, 1),
        }
    return results


def share(flags: list[bool]) -> float:
    return round(sum(flags) / max(1, len(flags)), 3)


def right(name: str, question: ExamQuestion, said: str) -> bool:
    """Whether the fact is right; for a style, whether the text inside the frame is the rewritten canonical answer."""
    if name not in STYLES:
        return normalise(said) == normalise(question.answer)
    return normalise(without_frame(name, said)) == normalise(without_frame(name, STYLES[name](question.answer)))


def handbook_questions() -> list[ExamQuestion]:
    splits = read_handbook()
    questions = [question for question in build_exam(splits, problems=0) if question.section in ("held-back", "easy")]
    return [replace(question, section="handbook") for question in questions]
