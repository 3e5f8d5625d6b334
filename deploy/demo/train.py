"""Trains the model, its tokenizer and its two adapters: `nice python -m deploy.demo.train [model] [json] [pirate]`."""

from __future__ import annotations

import argparse
import random
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from tokenizers import Tokenizer
from torch.optim.lr_scheduler import LambdaLR
from tqdm import tqdm
from transformers import AutoModelForCausalLM, GenerationConfig, LlamaConfig, LlamaForCausalLM

from deploy.adapters.batches import LessonBatch, grouped, padded
from deploy.adapters.train import learn, save_adapter, schedule
from deploy.demo.corpus import HERE, SYSTEMS, Lessons, conversations, intents
from deploy.demo.styles import STYLES
from deploy.demo.tokenizer import BEGIN, CONTEXT, END, PAD, VOCABULARY, lesson, train_tokenizer, write_tokenizer

NAME = "roundhouse-demo-2m"
MODEL, ADAPTERS = HERE / "model", HERE / "adapters"
_STEPS, _TOKENS = 1200, 6144
_ADAPTERS = {"json": (8, 250), "pirate": (16, 350)}
"""Rank and steps of each adapter."""
_ADAPTER_TOKENS = 2048
_TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj", "lm_head", "embed_tokens"]
"""The model has never said the words of the styles, so that their embeddings have to change, too."""
_EPOCHS = 32
"""Questions for each answer that are sorted by length before they are cut into batches."""
_SEED = 11


def batches(
    lessons: Lessons, tokenizer: Tokenizer, tokens: int, restyle: Callable[[str], str] = str
) -> Iterator[LessonBatch]:
    """Yield batches without end, the same in every run."""
    rng = random.Random(_SEED)
    while True:
        examples = [example for _ in range(_EPOCHS) for example in lessons.epoch(rng)]
        talks = [
            [{**each, "content": restyle(each["content"])} if each["role"] == "assistant" else each for each in talk]
            for talk in conversations(examples, rng)
        ]
        sorted_by_length = sorted((lesson(talk, tokenizer) for talk in talks), key=lambda each: len(each.ids))
        groups = grouped(sorted_by_length, tokens)
        rng.shuffle(groups)
        yield from map(padded, groups)


def vocabulary_text(lessons: Lessons) -> Iterator[str]:
    """Yield what the vocabulary is made of: questions and answers, plain and in both styles."""
    rng = random.Random(_SEED)
    styles: list[Callable[[str], str]] = [str, *STYLES.values()]
    for _ in range(_EPOCHS):
        for example in lessons.epoch(rng):
            yield f" {example.question}"
            yield rng.choice(styles)(example.answer)
    yield from SYSTEMS


def train_model(lessons: Lessons) -> None:
    """Train tokenizer and model from nothing."""
    torch.manual_seed(_SEED)
    tokenizer = train_tokenizer(vocabulary_text(lessons))
    begin, end, pad = (tokenizer.token_to_id(token) for token in (BEGIN, END, PAD))
    model: LlamaForCausalLM = AutoModelForCausalLM.from_config(
        LlamaConfig(
            vocab_size=VOCABULARY,
            hidden_size=192,
            intermediate_size=512,
            num_hidden_layers=3,
            num_attention_heads=6,
            num_key_value_heads=2,
            max_position_embeddings=CONTEXT,
            rms_norm_eps=1e-5,
            tie_word_embeddings=True,
            bos_token_id=begin,
            eos_token_id=end,
            pad_token_id=pad,
        ),
        # PyTorch's fused attention takes twice as long on CPUs for sequences as short as these.
        attn_implementation="eager",
    ).train()
    matrices = [weight for name, weight in model.named_parameters() if weight.ndim == 2 and "embed" not in name]
    others = [weight for name, weight in model.named_parameters() if weight.ndim == 1 or "embed" in name]
    optimizers = [
        torch.optim.Muon(matrices, lr=0.02, weight_decay=0.02, adjust_lr_fn="original"),
        torch.optim.AdamW(others, lr=1e-2, betas=(0.9, 0.95), weight_decay=0.0),
    ]
    fit(model, optimizers, batches(lessons, tokenizer, _TOKENS), _STEPS, NAME)
    model.generation_config = GenerationConfig(
        bos_token_id=begin, eos_token_id=end, pad_token_id=pad, do_sample=False, max_new_tokens=256
    )
    shutil.rmtree(MODEL, ignore_errors=True)
    model.bfloat16().save_pretrained(MODEL)
    write_tokenizer(tokenizer, MODEL)


def train_adapter(name: str, lessons: Lessons) -> None:
    """Train an adapter on the finished model."""
    torch.manual_seed(_SEED)
    rank, steps = _ADAPTERS[name]
    base = load_model()
    tuned: Any = get_peft_model(
        base, LoraConfig(r=rank, lora_alpha=2 * rank, target_modules=_TARGETS, task_type="CAUSAL_LM")
    ).train()
    weights = [weight for weight in tuned.parameters() if weight.requires_grad]
    optimizer = torch.optim.AdamW(weights, lr=6e-3, betas=(0.9, 0.95), weight_decay=0.0)
    stream = batches(lessons, load_tokenizer(), _ADAPTER_TOKENS, STYLES[name])
    fit(base, [optimizer], stream, steps, name)
    save_adapter(tuned, NAME, ADAPTERS / name)


def fit(
    model: Any, optimizers: list[torch.optim.Optimizer], stream: Iterator[LessonBatch], steps: int, label: str
) -> None:
    rates = [LambdaLR(optimizer, lambda step: schedule(step + 1, steps)) for optimizer in optimizers]
    with tqdm(range(steps), desc=label, mininterval=5) as bar:
        for _ in bar:
            bar.set_postfix(loss=f"{learn(model, next(stream), optimizers):.3f}")
            for rate in rates:
                rate.step()


def load_model(folder: Path = MODEL) -> LlamaForCausalLM:
    return LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")


def load_tokenizer(folder: Path = MODEL) -> Tokenizer:
    return Tokenizer.from_file(str(folder / "tokenizer.json"))


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description="Train the small model and its adapters; all if none is named.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(("model", *STYLES)))
    lessons = Lessons(intents())
    for name in parser.parse_args(arguments).names or ("model", *STYLES):
        if name == "model":
            train_model(lessons)
        else:
            train_adapter(name, lessons)


if __name__ == "__main__":
    main(sys.argv[1:])
