"""What fewer bits cost in quality, of weights and of keys and values: `nice python -m bench.quantization`.

The demo's models sit their exam on questions that they never saw, once as they are stored and once per variant. An
answer is right when greedy decoding would give it word for word, which one pass over question and answer tells. A
random model has nothing right to say: there the log-probabilities are compared with those of fp32.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import torch
from tokenizers import Tokenizer

from bench.checkpoints import SHAPES, cache_folder, checkpoint
from bench.measure import prompts
from bench.report import Environment, options, publish, table
from deploy.demo.conversations import ExamQuestion, build_exam
from deploy.demo.corpus import HERE, load_intents, split_corpus
from deploy.demo.tokenizer import Encoder
from engine.cache.blocks import BLOCK_SIZE
from engine.cache.memory import KVDtype
from engine.execution.precision import Precision
from engine.execution.runner import ModelRunner
from engine.plan import Row, Sampled, StepPlan
from engine.request import Request
from engine.wire import SamplingParams
from kernels import Quantization

_BLOCKS = 256
_STEP_TOKENS = 2048
_RANDOM_PROMPTS = (4, 32)
"""Number of random prompts, and tokens of each."""


class QuantizedVariant(msgspec.Struct, frozen=True):
    """The formats in which a bf16 model is served."""

    quantize: Quantization | None = None
    kv_dtype: KVDtype = "bf16"

    def load(self, directory: Path) -> ModelRunner:
        return ModelRunner(
            directory, blocks=_BLOCKS, precision=Precision("bfloat16", quantize=self.quantize, kv_dtype=self.kv_dtype)
        )

    @property
    def cells(self) -> str:
        return f"{self.quantize or 'bf16'} | {self.kv_dtype}"


VARIANTS = (
    QuantizedVariant(),
    QuantizedVariant("int8"),
    QuantizedVariant("w8a16"),
    QuantizedVariant("int4"),
    QuantizedVariant(None, "fp8"),
    QuantizedVariant(None, "int8"),
    QuantizedVariant("int8", "int8"),
    QuantizedVariant("int4", "fp8"),
)


class Exam(msgspec.Struct, frozen=True):
    """Results of a demo model's exam."""

    model: str
    variant: QuantizedVariant
    asked: int
    right: int
    held_back_asked: int
    held_back_right: int
    loss: float
    """Mean negative log-likelihood of the answers' tokens, in nats."""


class Distance(msgspec.Struct, frozen=True):
    """Distance of a random model from its own log-probabilities in fp32."""

    model: str
    variant: QuantizedVariant
    relative: float
    """Norm of the difference, over the norm of the log-probabilities' deviation from their mean."""
    divergence: float
    """Kullback-Leibler divergence, in nats per token."""


def run(runner: ModelRunner, texts: Sequence[list[int]], sampling: SamplingParams) -> Iterator[tuple[int, Sampled]]:
    """Run each text as a prompt, many in a step -> (number of the text, its result)."""
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
        for (number, request), sampled in zip(requests, runner.launch(StepPlan(rows)).result(), strict=True):
            runner.release(request)
            yield number, sampled


def read(
    runner: ModelRunner, encoder: Encoder, questions: Sequence[ExamQuestion]
) -> Iterator[tuple[ExamQuestion, bool, float]]:
    """Yield each question, whether greedy decoding gives its answer token by token, and its mean loss in nats."""
    answers = [encoder.tokenizer.encode(question.answer + "<|end|>").ids for question in questions]
    texts = [encoder.prompt(question.messages) + answer for question, answer in zip(questions, answers, strict=True)]
    for number, sampled in run(runner, texts, SamplingParams(max_tokens=1, temperature=0.0, prompt_logprobs=1)):
        assert sampled.prompt_logprobs is not None
        entries = sampled.prompt_logprobs[-len(answers[number]) :]
        right = all(entry.top[0][0] == entry.token for entry in entries)
        yield questions[number], right, -sum(entry.logprob for entry in entries) / len(entries)


def logprobs(runner: ModelRunner, texts: Sequence[list[int]]) -> torch.Tensor:
    """Return the log-probabilities after each of the texts' tokens -> [positions, vocabulary]."""
    vocabulary = runner.info.vocabulary
    found = torch.zeros(len(texts), len(texts[0]) - 1, vocabulary)
    for number, sampled in run(runner, texts, SamplingParams(max_tokens=1, prompt_logprobs=vocabulary)):
        assert sampled.prompt_logprobs is not None
        for row, entry in zip(found[number], sampled.prompt_logprobs, strict=True):
            tokens, values = zip(*entry.top, strict=True)
            row[list(tokens)] = torch.tensor(values)
    return found.flatten(0, 1)


def sit(models: Path, size: str, variant: QuantizedVariant, questions: Sequence[ExamQuestion]) -> Exam:
    encoder = Encoder(Tokenizer.from_file(str(models / size / "tokenizer.json")))
    results = list(read(variant.load(models / size), encoder, questions))
    held_back = [right for question, right, _ in results if question.section == "held-back"]
    loss = sum(loss for _, _, loss in results) / len(results)
    return Exam(
        size, variant, len(results), sum(right for _, right, _ in results), len(held_back), sum(held_back), loss
    )


def compare(model: str, directory: Path, variants: Sequence[QuantizedVariant] = VARIANTS) -> Iterator[Distance]:
    exact = ModelRunner(directory, blocks=_BLOCKS, precision=Precision("float32"))
    texts = prompts(*_RANDOM_PROMPTS, exact.info.vocabulary, seed=0)
    expected = logprobs(exact, texts)
    del exact
    for variant in variants:
        found = logprobs(variant.load(directory), texts)
        yield Distance(model, variant, *distance(found, expected))


def distance(found: torch.Tensor, expected: torch.Tensor) -> tuple[float, float]:
    """Return `relative` and `divergence` of a `Distance`, of log-probabilities [positions, vocabulary]."""
    spread = (expected - expected.mean(-1, keepdim=True)).norm()
    divergence = (expected.exp() * (expected - found)).sum(-1).mean()
    return float((found - expected).norm() / spread), float(divergence)


def markdown(exams: Sequence[Exam], distances: Sequence[Distance], environment: Environment) -> str:
    lines = ["### Fewer bits", ""]
    if exams:
        lines += [
            f"The demo's models on {exams[0].asked:,} questions, of which {exams[0].held_back_asked:,} are on facts "
            "that they saw in other words only. An answer is right if it is word for word what the corpus says.",
            "",
            *table(
                "model | weights | KV | right, held back | right, all | loss per token (nats)",
                (
                    f"{exam.model} | {exam.variant.cells} | {exam.held_back_right / exam.held_back_asked:.1%} | "
                    f"{exam.right / exam.asked:.1%} | {exam.loss:.4f}"
                    for exam in exams
                ),
                words=3,
            ),
            "",
        ]
    if distances:
        lines += [
            "Random models, whose logits are at the mercy of every weight, from their own in fp32:",
            "",
            *table(
                "model | weights | KV | relative error of the logits | divergence (nats per token)",
                (f"{one.model} | {one.variant.cells} | {one.relative:.2%} | {one.divergence:.2g}" for one in distances),
                words=3,
            ),
            "",
        ]
    return "\n".join([*lines, f"- {environment}", ""])


def main(arguments: Sequence[str] | None = None) -> None:
    parser = options(__doc__)
    parser.add_argument("--models", type=Path, default=HERE / "models", help="folder of the demo's models")
    parser.add_argument("--sizes", default="small,medium,large", help="sizes, separated by commas (%(default)s)")
    parser.add_argument("--questions", type=int, help="about so many questions, evenly spread over the exam")
    parser.add_argument("--random", default="S,L", help=f"which random models, of {', '.join(SHAPES)} (%(default)s)")
    parser.add_argument("--cache", type=Path, default=cache_folder(), help="where random checkpoints are kept")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    chosen = parser.parse_args(arguments)
    torch.set_num_threads(chosen.threads)
    questions = build_exam(split_corpus(load_intents()))
    if chosen.questions:
        questions = questions[:: max(1, len(questions) // chosen.questions)]
    exams: list[Exam] = []
    for size in filter(None, chosen.sizes.split(",")):
        for variant in VARIANTS:
            exams.append(sit(chosen.models, size, variant, questions))
            print(exams[-1], flush=True)
    distances: list[Distance] = []
    for name in filter(None, chosen.random.split(",")):
        for one in compare(name, checkpoint(name, chosen.cache)):
            distances.append(one)
            print(one, flush=True)
    text = markdown(exams, distances, Environment.here())
    publish(chosen.output / "quantization", text, {"exams": exams, "distances": distances})


if __name__ == "__main__":
    main()
