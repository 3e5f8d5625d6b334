"""What quantised weights cost in quality: `python -m bench.quantization`.

The demo's models sit their exam on questions that they never saw, once as they are stored and once per quantisation.
An answer is right when greedy decoding would give it word for word, which one pass over question and answer tells. A
random model has nothing right to say: there the log-probabilities are compared with those of fp32.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import get_args

import msgspec
import torch
from tokenizers import Tokenizer

from bench.checkpoints import cache_folder, checkpoint
from bench.measure import prompts
from bench.report import Environment
from deploy.demo.conversations import Question, build_exam
from deploy.demo.corpus import HERE, load_intents, split_corpus
from deploy.demo.tokenizer import Encoder
from engine.kv import BLOCK_SIZE
from engine.plan import Row, Sampled, StepPlan
from engine.request import Request
from engine.runner import ModelRunner
from engine.wire import SamplingParams
from kernels import Quantization

RESULTS = Path(__file__).parent / "results"
_BLOCKS = 256
_STEP_TOKENS = 2048
_RANDOM_PROMPTS = (4, 32)
"""How many, and of how many tokens."""
_VARIANTS: tuple[Quantization | None, ...] = (None, *get_args(Quantization))


class Exam(msgspec.Struct, frozen=True):
    """A demo model as it is stored (None) or quantised."""

    model: str
    quantize: str | None
    asked: int
    right: int
    held_back_asked: int
    held_back_right: int


class Distance(msgspec.Struct, frozen=True):
    """A random model, from its own log-probabilities in fp32."""

    model: str
    quantize: str | None
    relative: float
    """Norm of the difference over that of what differs from token to token."""
    divergence: float
    """Kullback-Leibler, in nats per token."""


def run(runner: ModelRunner, texts: Sequence[list[int]], sampling: SamplingParams) -> Iterator[tuple[int, Sampled]]:
    """Run each text as a prompt, many in a step -> (number of the text, what it gave)."""
    waiting = sorted(range(len(texts)), key=lambda number: len(texts[number]))
    while waiting:
        requests: list[tuple[int, Request]] = []
        tokens = used = 0
        while waiting and (not requests or tokens + len(texts[waiting[-1]]) <= _STEP_TOKENS):
            number = waiting.pop()
            request = Request(str(number), texts[number], sampling, arrival=0.0)
            blocks = -(-(len(texts[number]) + 1) // BLOCK_SIZE)
            request.block_table += range(used, used + blocks)
            used, tokens = used + blocks, tokens + len(texts[number])
            requests.append((number, request))
        rows = [Row(request, 0, len(texts[number]), True) for number, request in requests]
        for (number, request), sampled in zip(requests, runner.execute(StepPlan(rows)), strict=True):
            runner.release(request)
            yield number, sampled


def says(runner: ModelRunner, encoder: Encoder, questions: Sequence[Question]) -> list[bool]:
    """Whether greedy decoding gives each question's answer, token by token."""
    answers = [encoder.tokenizer.encode(question.answer + "<|end|>").ids for question in questions]
    texts = [encoder.prompt(question.messages) + answer for question, answer in zip(questions, answers, strict=True)]
    right = [False] * len(questions)
    sampling = SamplingParams(max_tokens=1, temperature=0.0, prompt_logprobs=1)
    for number, sampled in run(runner, texts, sampling):
        assert sampled.prompt_logprobs is not None
        entries = sampled.prompt_logprobs[-len(answers[number]) :]
        right[number] = all(entry.top[0][0] == entry.token for entry in entries)
    return right


def logprobs(runner: ModelRunner, texts: Sequence[list[int]]) -> torch.Tensor:
    """Of every token after each of the texts' -> [positions, vocabulary]."""
    vocabulary = runner.info.vocabulary
    found = torch.zeros(len(texts), len(texts[0]) - 1, vocabulary)
    for number, sampled in run(runner, texts, SamplingParams(max_tokens=1, prompt_logprobs=vocabulary)):
        assert sampled.prompt_logprobs is not None
        for row, entry in zip(found[number], sampled.prompt_logprobs, strict=True):
            tokens, values = zip(*entry.top, strict=True)
            row[list(tokens)] = torch.tensor(values)
    return found.flatten(0, 1)


def sit(models: Path, size: str, quantize: Quantization | None, questions: Sequence[Question]) -> Exam:
    runner = ModelRunner(models / size, blocks=_BLOCKS, dtype="bfloat16", quantize=quantize)
    encoder = Encoder(Tokenizer.from_file(str(models / size / "tokenizer.json")))
    right = says(runner, encoder, questions)
    held_back = [done for done, question in zip(right, questions, strict=True) if question.section == "held-back"]
    return Exam(size, quantize, len(right), sum(right), len(held_back), sum(held_back))


def compare(model: str, directory: Path) -> Iterator[Distance]:
    exact = ModelRunner(directory, blocks=_BLOCKS, dtype="float32")
    texts = prompts(*_RANDOM_PROMPTS, exact.info.vocabulary, seed=0)
    expected = logprobs(exact, texts)
    spread = (expected - expected.mean(-1, keepdim=True)).norm()
    for quantize in _VARIANTS:
        found = logprobs(ModelRunner(directory, blocks=_BLOCKS, dtype="bfloat16", quantize=quantize), texts)
        divergence = (expected.exp() * (expected - found)).sum(-1).mean()
        yield Distance(model, quantize, float((found - expected).norm() / spread), float(divergence))


def markdown(exams: Sequence[Exam], distances: Sequence[Distance], environment: Environment) -> str:
    lines = ["### Quantised weights", "", "| model | weights | held-back answers right | all answers right |"]
    lines.append("|---|---|--:|--:|")
    for exam in exams:
        shares = exam.held_back_right / exam.held_back_asked, exam.right / exam.asked
        lines.append(
            f"| {exam.model} | {exam.quantize or 'bf16'} | " + " | ".join(f"{one:.1%}" for one in shares) + " |"
        )
    lines += ["", "| random model | weights | relative error of the logits | divergence (nats per token) |"]
    lines.append("|---|---|--:|--:|")
    for one in distances:
        lines.append(f"| {one.model} | {one.quantize or 'bf16'} | {one.relative:.2%} | {one.divergence:.2g} |")
    if exams:
        lines += ["", f"- {exams[0].asked:,} questions, {exams[0].held_back_asked:,} of them held back"]
    lines += [
        f"- {environment.date}, revision {environment.revision}, torch {environment.torch}, {environment.cpu}",
        "",
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.quantization", description=__doc__)
    parser.add_argument("--models", type=Path, default=HERE / "models", help="folder of the demo's models")
    parser.add_argument("--sizes", default="small,medium,large", help="which, separated by commas (%(default)s)")
    parser.add_argument("--questions", type=int, help="only so many, evenly spread over the exam")
    parser.add_argument("--cache", type=Path, default=cache_folder(), help="where random checkpoints are kept")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder for the table and its JSON")
    arguments = parser.parse_args()
    questions = build_exam(split_corpus(load_intents()))
    if arguments.questions:
        questions = questions[:: max(1, len(questions) // arguments.questions)]
    exams = []
    for size in arguments.sizes.split(","):
        for quantize in _VARIANTS:
            exams.append(sit(arguments.models, size, quantize, questions))
            print(exams[-1], flush=True)
    distances = list(compare("S", checkpoint("S", arguments.cache)))
    text = markdown(exams, distances, Environment.here())
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / "quantization.md").write_text(text)
    content = msgspec.json.encode({"exams": exams, "distances": distances})
    (arguments.out / "quantization.json").write_bytes(msgspec.json.format(content, indent=1))
    print(text)


if __name__ == "__main__":
    main()
