"""What grammars cost: their compilation, the masks of each token, and a step with them beside one without.

    python -m bench.grammar                              this repository's model
    python -m bench.grammar --tokenizer DIRECTORY        masks and compilation with another model's vocabulary
    python -m bench.grammar --quick                      a smoke run

Masks are timed along answers that the model gives under the grammar, so that a token costs what it costs in
service; with another tokenizer along random ones. Steps are compared within one engine: the same prompts and numbers of
tokens without grammars, with one for each request, and with one for every other. A ratio is the median over the repeats
of the median step with, over the median step without, in the same repeat; the first repeat is not counted.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import numpy as np
from tqdm import tqdm

from bench.measure import prompts
from bench.report import Environment, options, publish, table
from engine.core import EngineCore, EngineFeatures, SchedulerConfig
from engine.execution.precision import Precision
from engine.execution.runner import ModelRunner
from engine.grammar.compiler import CompiledGrammar, GrammarCompiler
from engine.grammar.constraints import Constraints
from engine.wire import Generate, Grammar, ModelInfo, SamplingParams
from gateway.config.settings import DEMO

_BLOCKS = 4096
_PROMPT_TOKENS = 32
_TIMEOUT = 120.0
_WAYS = {"none": 0, "half": 2, "all": 1}
"""Which requests have a grammar, by name of the mix: every n-th; 0: none."""

_PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 40},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "email": {"type": "string", "format": "email"},
        "tags": {"type": "array", "items": {"enum": ["new", "paying", "late"]}, "maxItems": 3},
    },
    "required": ["name", "age", "email", "tags"],
    "additionalProperties": False,
}
_ARITHMETIC = """
start: sum
sum: product (("+" | "-") product)*
product: atom (("*" | "/") atom)*
atom: /[0-9]+/ | "(" sum ")"
"""


def _schema(schema: object) -> Grammar:
    return Grammar("json_schema", json.dumps(schema))


GRAMMARS: dict[str, Callable[[int], Grammar]] = {
    "schema, 4 properties": lambda salt: _schema({**_PERSON, "title": str(salt)}),
    "list of that": lambda salt: _schema({"type": "array", "items": _PERSON, "title": str(salt)}),
    "schema, 200 properties": lambda salt: _schema(
        {
            "type": "object",
            "properties": {f"property {i}": {"type": ["string", "null"]} for i in range(200)},
            "title": str(salt),
        }
    ),
    "any object": lambda salt: _schema({"type": "object", "title": str(salt)}),
    "regex, a date": lambda salt: Grammar("regex", f"[0-9]{{4}}-[01][0-9]-[0-3][0-9]|{salt}"),
    "choice of 1,000": lambda salt: Grammar("choice", json.dumps([f"item {salt + index}" for index in range(1000)])),
    "arithmetic": lambda salt: Grammar("lark", f"{_ARITHMETIC}// {salt}"),
}
"""Grammars by name; the number makes each of them a different one."""
_ENDLESS = _schema({"type": "array", "items": _PERSON, "minItems": 10_000})
"""A grammar of which no answer ends before its tokens are used up."""


class GrammarRow(msgspec.Struct, frozen=True):
    """Results of one grammar; times in seconds."""

    name: str
    compile_p50: float
    compile_max: float
    tokens: int
    """Number of tokens whose masks were timed."""
    mask_p50: float
    mask_p99: float
    consume_p50: float


class StepRow(msgspec.Struct, frozen=True):
    """Decode steps with so many requests; times in seconds."""

    concurrency: int
    way: str
    step_p50: float
    ratio: float
    """Time of a step over that of a step without grammars."""


class GrammarRecord(msgspec.Struct, frozen=True):
    """All that was measured."""

    environment: Environment
    vocabulary: int
    first_seconds: float
    grammars: list[GrammarRow]
    steps: list[StepRow]


def main(argv: Sequence[str] | None = None) -> None:
    arguments = _parser().parse_args(argv)
    if arguments.quick:
        arguments.repeats, arguments.concurrency, arguments.new_tokens = 2, [1, 2], 12
    model = arguments.model
    runner = ModelRunner(model, blocks=_BLOCKS, precision=Precision("float32"))
    if arguments.tokenizer is None:
        bench = _Masks(model, runner.info, runner)
    else:
        info = msgspec.structs.replace(runner.info, vocabulary=arguments.vocabulary, eos_token_ids=tuple(arguments.eos))
        bench = _Masks(arguments.tokenizer, info, None)
    record = GrammarRecord(
        environment=Environment.here(),
        vocabulary=bench.info.vocabulary,
        first_seconds=bench.first_seconds,
        grammars=[bench.measure(name, arguments) for name in tqdm(GRAMMARS, "grammars", leave=False)],
        steps=_steps(model, runner, arguments),
    )
    bench.close()
    publish(arguments.output / "grammar", markdown(record, arguments), record)


class _Masks:
    """Compiles and follows grammars with one vocabulary, along answers of `runner`, or random ones without it."""

    def __init__(self, directory: Path, info: ModelInfo, runner: ModelRunner | None) -> None:
        self.info = info
        self._compiler = GrammarCompiler(directory, info, threads=1)
        self._constraints = Constraints(self._compiler, info.vocabulary)
        self._core = None if runner is None else _core(runner, self._constraints)
        self.first_seconds, _ = self._compile(Grammar("regex", "first"))
        """Seconds of the first compilation, which includes reading the tokenizer and starting a process."""

    def measure(self, name: str, arguments: argparse.Namespace) -> GrammarRow:
        compiled = [self._compile(GRAMMARS[name](salt)) for salt in range(1 + arguments.repeats)]
        masks: list[float] = []
        consumed: list[float] = []
        for seed in range(arguments.repeats):
            self._follow(name, compiled[0][1], seed, arguments.new_tokens, masks, consumed)
        seconds = [elapsed for elapsed, _ in compiled]
        return GrammarRow(
            name=name,
            compile_p50=statistics.median(seconds),
            compile_max=max(seconds),
            tokens=len(masks),
            mask_p50=statistics.median(masks),
            mask_p99=sorted(masks)[len(masks) * 99 // 100],
            consume_p50=statistics.median(consumed),
        )

    def close(self) -> None:
        self._constraints.close()

    def _compile(self, grammar: Grammar) -> tuple[float, CompiledGrammar]:
        begun = time.perf_counter()
        compiled = self._compiler.compile(grammar, lambda: None).result(_TIMEOUT)
        seconds = time.perf_counter() - begun
        self._compiler.release(grammar)
        return seconds, compiled

    def _follow(
        self,
        name: str,
        compiled: CompiledGrammar,
        seed: int,
        new_tokens: int,
        masks: list[float],
        consumed: list[float],
    ) -> None:
        """Time masks and consumption along one answer."""
        sampling = SamplingParams(max_tokens=new_tokens, seed=seed)
        answer: list[int] = []
        if self._core is not None:
            (prompt,) = prompts(1, _PROMPT_TOKENS, self.info.vocabulary, seed)
            request = Generate("0", prompt, sampling, grammar=GRAMMARS[name](0))
            answer = [token for step in _run(self._core, [request]) for token in step.tokens]
        matcher = compiled.matcher(sampling)
        bits = np.zeros((1, compiled.tokens.words), np.int32)
        generator = random.Random(seed)
        for index in range(len(answer) or new_tokens):
            begun = time.perf_counter()
            matcher.fill(bits)
            filled = time.perf_counter()
            legal = np.unpackbits(bits.view(np.uint8), bitorder="little").nonzero()[0]
            token = answer[index] if answer else int(generator.choice(legal))
            chosen = time.perf_counter()
            matcher.consume(token)
            consumed.append(time.perf_counter() - chosen)
            masks.append(filled - begun)
            if matcher.finished:
                return


class _Step(msgspec.Struct):
    seconds: float
    tokens: list[int]


def _core(runner: ModelRunner, constraints: Constraints) -> EngineCore:
    return EngineCore(runner, runner.info, SchedulerConfig(blocks=_BLOCKS), EngineFeatures(constraints=constraints))


def _run(core: EngineCore, requests: Sequence[Generate]) -> list[_Step]:
    """Serve requests side by side; returns the steps in which tokens came."""
    for request in requests:
        core.add(request)
    steps = []
    woken = threading.Event()
    core.wake = woken.set
    while len(core):
        if core.idle:  # a grammar is being compiled
            woken.wait(_TIMEOUT)
            woken.clear()
        begun = time.perf_counter()
        tokens = [token for output in core.step() for token in output.tokens]
        if tokens:
            steps.append(_Step(time.perf_counter() - begun, tokens))
    return steps


def _steps(model: Path, runner: ModelRunner, arguments: argparse.Namespace) -> list[StepRow]:
    """Measure decode steps with and without grammars."""
    constraints = Constraints(GrammarCompiler(model, runner.info), runner.info.vocabulary)
    core = _core(runner, constraints)
    sampling = SamplingParams(max_tokens=arguments.new_tokens, temperature=0.0, ignore_eos=True)
    rows = []
    for concurrency in arguments.concurrency:
        medians: dict[str, list[float]] = {way: [] for way in _WAYS}
        for repeat in tqdm(range(1 + arguments.repeats), f"steps of {concurrency}", leave=False):
            asked = prompts(concurrency, _PROMPT_TOKENS, runner.info.vocabulary, repeat)
            order = list(_WAYS)
            for way in order[repeat % len(order) :] + order[: repeat % len(order)]:
                every = _WAYS[way]
                requests = [
                    Generate(
                        str(index),
                        prompt,
                        sampling,
                        salt=f"{repeat} {way}".encode(),
                        grammar=_ENDLESS if every and index % every == 0 else None,
                    )
                    for index, prompt in enumerate(asked)
                ]
                steps = [step.seconds for step in _run(core, requests) if len(step.tokens) == concurrency]
                medians[way].append(statistics.median(steps))
        for way in _WAYS:
            ratios = [one / plain for one, plain in zip(medians[way][1:], medians["none"][1:], strict=True)]
            rows.append(StepRow(concurrency, way, statistics.median(medians[way][1:]), statistics.median(ratios)))
    constraints.close()
    return rows


def markdown(record: GrammarRecord, arguments: argparse.Namespace) -> str:
    """Return the tables, and the conditions."""
    environment = record.environment
    lines = [
        f"# Grammars, {environment.date}",
        "",
        f"`python -m bench.grammar`: {environment}. A vocabulary of {record.vocabulary:,}; the first grammar of an "
        f"engine takes {record.first_seconds:.2f} s.",
        "",
        *table(
            "grammar | compiled in | at most | tokens | mask p50 | mask p99 | consumed in",
            (
                f"{row.name} | {row.compile_p50 * 1e3:.1f} ms | {row.compile_max * 1e3:.1f} ms | {row.tokens} | "
                f"{row.mask_p50 * 1e6:.0f} µs | {row.mask_p99 * 1e6:.0f} µs | {row.consume_p50 * 1e6:.0f} µs"
                for row in record.grammars
            ),
        ),
        "",
        "Decode steps, a long list of objects as the grammar, one thread:",
        "",
        *table(
            "requests | with a grammar | step p50 | over none",
            (
                f"{step.concurrency} | {step.way} | {step.step_p50 * 1e3:.2f} ms | {step.ratio:.2f}"
                for step in record.steps
            ),
            words=2,
        ),
        "",
    ]
    return "\n".join(lines)


def _parser() -> argparse.ArgumentParser:
    parser = options(__doc__)
    parser.add_argument("--model", type=Path, default=DEMO / "model", help="directory of a checkpoint that answers")
    parser.add_argument("--tokenizer", type=Path, help="folder of another tokenizer.json, for masks and compilation")
    parser.add_argument("--vocabulary", type=int, default=128_256, help="size of the vocabulary of --tokenizer's model")
    parser.add_argument("--eos", type=int, nargs="+", default=[128_001], help="end-of-sequence tokens of --tokenizer")
    parser.add_argument("--concurrency", type=int, nargs="+", default=[1, 8, 32], help="requests at once")
    parser.add_argument("--new-tokens", type=int, default=96, help="most tokens of an answer")
    parser.add_argument("--repeats", type=int, default=8, help="answers per grammar; runs of steps beside the first")
    parser.add_argument("--quick", action="store_true", help="a short run that shows that all works")
    return parser


if __name__ == "__main__":
    import torch

    torch.set_num_threads(1)
    main()
