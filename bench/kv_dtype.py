"""What eight-bit keys and values cost in quality: `python -m bench.kv_dtype [--size small] [--questions 400]`.

The demo models answer questions that their training held back, greedily and in bfloat16, with each type of keys and
values. Beside the share of right answers stands the share of answers that are the same, word for word, as with bf16.
"""

from __future__ import annotations

import argparse
import os
import random
from contextlib import closing
from pathlib import Path
from typing import get_args

import torch
from tokenizers import Tokenizer

from deploy.demo.conversations import Question, build_exam
from deploy.demo.corpus import load_intents, split_corpus
from deploy.demo.evaluate import LONGEST_ANSWER, is_correct
from deploy.demo.tokenizer import Encoder
from engine.core import EngineCore, SchedulerConfig
from engine.kv_cache import KVDtype
from engine.runner import ModelRunner
from engine.wire import Generate, SamplingParams

_MODELS = Path(__file__).parent.parent / "deploy" / "demo" / "models"
_BLOCKS = 2048


def answer(folder: Path, questions: list[Question], kv_dtype: KVDtype) -> list[str]:
    """What a model says to each question."""
    encoder = Encoder(Tokenizer.from_file(str(folder / "tokenizer.json")))
    runner = ModelRunner(folder, blocks=_BLOCKS, dtype="bfloat16", kv_dtype=kv_dtype)
    said: list[list[int]] = [[] for _ in questions]
    sampling = SamplingParams(temperature=0.0, max_tokens=LONGEST_ANSWER, stop_token_ids=(encoder.end,))
    with closing(EngineCore(runner, runner.info, SchedulerConfig(_BLOCKS, max_running=64))) as core:
        for i, question in enumerate(questions):
            core.add(Generate(str(i), encoder.prompt(question.messages), sampling))
        while not core.idle:
            for output in core.step():
                said[int(output.id)] += output.tokens
    return [encoder.decode(tokens).strip() for tokens in said]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.kv_dtype", description=__doc__)
    parser.add_argument("--size", choices=("small", "medium", "large"), action="append", help="may be repeated")
    parser.add_argument("--questions", type=int, default=400, help="how many of the exam, drawn once and for all")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    exam = build_exam(split_corpus(load_intents()))
    questions = random.Random(0).sample(exam, min(arguments.questions, len(exam)))
    print(f"{len(questions)} questions\n\n| model | KV | right | as with bf16 |\n|---|---|---|---|")
    for size in arguments.size or ["small", "medium"]:
        plain: list[str] = []
        for kv_dtype in get_args(KVDtype)[1:]:
            said = answer(_MODELS / size, questions, kv_dtype)
            plain = plain or said
            right = sum(is_correct(question, one) for question, one in zip(questions, said, strict=True))
            same = sum(one == other for one, other in zip(said, plain, strict=True))
            shares = (f"{100 * count / len(questions):.1f} %" for count in (right, same))
            print(f"| {size} | {kv_dtype} | {' | '.join(shares)} |", flush=True)


if __name__ == "__main__":
    main()
