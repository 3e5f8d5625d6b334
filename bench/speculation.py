"""What speculative decoding brings: acceptance and tokens/s with and without it.

    python -m bench.speculation                          the catalogue's large model, its medium one drafts
    python -m bench.speculation --target MODEL.gguf --draft SMALL.gguf --concurrency 1
    python -m bench.speculation --quick                  a smoke run

Questions are those of `texts/chats.toml`, asked through the chat template, greedy and sampled; the repetitive text is a
conversation in which the same question is asked again, so that the answer stands in the prompt. All ways to speculate
run in one process on the same runner, one after the other in an order that rotates from repeat to repeat; a speed-up is
the median over the repeats of tokens/s with, over tokens/s without, in the same repeat. The first repeat is not
counted: in it an engine learns what pays. "draft, always" drafts `--tokens` tokens in every step, to show what the
decision is worth.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import time
from collections.abc import Callable, Sequence
from typing import get_args

import msgspec
import torch
from tqdm import tqdm

from bench.quality_texts import conversations
from bench.real_files import real_file
from bench.report import Environment, options, publish, table
from engine.core import EngineCore, EngineFeatures, SchedulerConfig
from engine.execution.draft_model import DraftModel
from engine.execution.precision import Dtype, Precision
from engine.execution.runner import ModelRunner
from engine.speculation.speculator import Speculator
from engine.text.processor import Message, TextProcessor
from engine.wire import Generate, SamplingParams

_BLOCKS = 1024
_WORKLOADS = ("questions", "questions, sampled", "repetitive text")


class AskedQuestion(msgspec.Struct, frozen=True):
    """A question with what was said before, and an answer to it."""

    messages: Sequence[Message]
    answer: str


class SpeculationRow(msgspec.Struct, frozen=True):
    """One way to speculate, on one workload at one concurrency."""

    target: str
    draft: str
    workload: str
    concurrency: int
    way: str
    tokens_per_second: float
    speedup: float
    """tokens/s over those without speculation in the same repeat, median."""
    acceptance: float | None
    """Share of drafted tokens that were accepted."""
    drafted: float
    """Drafted tokens per token of the answers."""
    same: float
    """Share of requests with the same tokens as without speculation."""


class SpeculationRun(msgspec.Struct, frozen=True):
    """Results of some requests through one engine."""

    seconds: float
    tokens: list[list[int]]
    drafted: int
    accepted: int


def main(argv: Sequence[str] | None = None) -> None:
    arguments = _parser().parse_args(argv)
    torch.set_num_threads(arguments.threads)
    if arguments.quick:
        arguments.repeats = 1
        arguments.concurrency, arguments.requests, arguments.new_tokens = [1, 2], 2, 12
    rows = _compare(arguments.target, arguments.draft, arguments)
    environment = Environment.here()
    record = {"environment": environment, "rows": rows}
    publish(arguments.output / arguments.name, markdown(rows, arguments, environment), record)


def _compare(target: str, draft: str, arguments: argparse.Namespace) -> list[SpeculationRow]:
    """Measure all workloads and concurrencies of one pair of models."""
    dtype: Dtype = arguments.dtype
    path = real_file(target)
    runner = ModelRunner(path, blocks=_BLOCKS, precision=Precision(dtype))
    model = DraftModel.from_directory(real_file(draft), runner, path)

    def speculator(model: DraftModel | None, *, ngrams: bool, adaptive: bool = True) -> Speculator:
        return Speculator(ngrams=ngrams, model=model, tokens=arguments.tokens, adaptive=adaptive)

    def fresh() -> DraftModel:
        """Return a drafter with the same weights and KV, with nothing learnt."""
        return DraftModel(model.runner)

    ways: dict[str, Callable[[], Speculator | None]] = {
        "off": lambda: None,
        "ngram": lambda: speculator(None, ngrams=True),
        "draft": lambda: speculator(fresh(), ngrams=False),
        "auto": lambda: speculator(fresh(), ngrams=True),
        "draft, always": lambda: speculator(fresh(), ngrams=False, adaptive=False),
    }
    texts = TextProcessor.from_path(path)
    questions = _questions()
    rows = []
    for workload in arguments.workload or _WORKLOADS:
        for concurrency in arguments.concurrency:
            cores = {way: _core(runner, make()) for way, make in ways.items()}
            runs: dict[str, list[SpeculationRun]] = {way: [] for way in ways}
            order = list(ways)
            title = f"{target} with {draft}, {workload}, {concurrency} at once"
            for repeat in tqdm(range(1 + arguments.repeats), title, leave=False):
                count = max(arguments.requests, concurrency)
                chosen = random.Random(f"{workload} {repeat}").sample(questions, count)
                asked = _requests(workload, chosen, arguments.new_tokens, texts, repeat)
                for way in order[repeat % len(order) :] + order[: repeat % len(order)]:
                    runs[way].append(_serve(*cores[way], asked, concurrency, repeat))
            rows += [_row(target, draft, workload, concurrency, way, runs) for way in ways]
    return rows


def _core(runner: ModelRunner, speculator: Speculator | None) -> tuple[EngineCore, Speculator | None]:
    config = SchedulerConfig(blocks=_BLOCKS)
    return EngineCore(runner, runner.info, config, EngineFeatures(speculator=speculator)), speculator


def _questions() -> list[AskedQuestion]:
    """Return every question of texts/chats.toml with its answer and all that was said before."""
    return [
        AskedQuestion(chat[: turn + 1], chat[turn + 1]["content"])
        for chat in conversations()
        for turn in range(0, len(chat), 2)
    ]


def _requests(
    workload: str, questions: Sequence[AskedQuestion], new_tokens: int, texts: TextProcessor, repeat: int
) -> list[Generate]:
    sampling = SamplingParams(max_tokens=new_tokens, temperature=0.7 if workload.endswith("sampled") else 0.0)
    prompts = []
    for question in questions:
        messages = list(question.messages)
        if workload == "repetitive text":
            messages += [{"role": "assistant", "content": question.answer}, messages[-1]]
        prompts.append(texts.encode_chat(messages))
    return [
        Generate(f"{repeat}-{index}", prompt, msgspec.structs.replace(sampling, seed=index))
        for index, prompt in enumerate(prompts)
    ]


def _serve(
    core: EngineCore, speculator: Speculator | None, asked: Sequence[Generate], concurrency: int, repeat: int
) -> SpeculationRun:
    """Serve so many requests at a time. Nothing of an earlier repeat is in the prefix cache."""
    before = (speculator.drafted, speculator.accepted) if speculator else (0, 0)
    waiting = [msgspec.structs.replace(request, salt=bytes([repeat])) for request in reversed(asked)]
    tokens: dict[str, list[int]] = {request.id: [] for request in asked}
    begun = time.perf_counter()
    live = 0
    while waiting or live:
        while waiting and live < concurrency:
            core.add(waiting.pop())
            live += 1
        for output in core.step():
            tokens[output.id] += output.tokens
            live -= output.finish is not None
    seconds = time.perf_counter() - begun
    after = (speculator.drafted, speculator.accepted) if speculator else (0, 0)
    return SpeculationRun(seconds, list(tokens.values()), after[0] - before[0], after[1] - before[1])


def _row(
    target: str, draft: str, workload: str, concurrency: int, way: str, runs: dict[str, list[SpeculationRun]]
) -> SpeculationRow:
    counted, plain = runs[way][1:], runs["off"][1:]
    said = [sum(map(len, run.tokens)) for run in counted]
    rates = [count / run.seconds for count, run in zip(said, counted, strict=True)]
    plain_rates = [sum(map(len, run.tokens)) / run.seconds for run in plain]
    drafted = sum(run.drafted for run in counted)
    pairs = [
        one == other
        for run, off in zip(counted, plain, strict=True)
        for one, other in zip(run.tokens, off.tokens, strict=True)
    ]
    return SpeculationRow(
        target=target,
        draft="-" if way in ("off", "ngram") else draft,
        workload=workload,
        concurrency=concurrency,
        way=way,
        tokens_per_second=statistics.median(rates),
        speedup=statistics.median(rate / off for rate, off in zip(rates, plain_rates, strict=True)),
        acceptance=sum(run.accepted for run in counted) / drafted if drafted else None,
        drafted=drafted / sum(said),
        same=statistics.fmean(pairs),
    )


def markdown(rows: Sequence[SpeculationRow], arguments: argparse.Namespace, environment: Environment) -> str:
    """Return the table, and the conditions."""
    lines = [
        f"# Speculative decoding, {arguments.dtype}, {environment.date}",
        "",
        f"`python -m bench.speculation`: {arguments.requests} requests, at most {arguments.new_tokens} tokens each, "
        f"{arguments.repeats} repeats, up to {arguments.tokens} drafted tokens; {environment}, threads: "
        f"{arguments.threads}.",
        "",
        *table(
            "model | workload | speculation | draft model | at once | tokens/s | speed-up | accepted | "
            "drafted per token | same answers",
            map(_line, rows),
            words=4,
        ),
        "",
    ]
    return "\n".join(lines)


def _line(row: SpeculationRow) -> str:
    accepted = "-" if row.acceptance is None else f"{row.acceptance:.0%}"
    speedup = f"**{row.speedup:.2f}**" if row.speedup > 1.02 else f"{row.speedup:.2f}"
    return (
        f"{row.target} | {row.workload} | {row.way} | {row.draft} | {row.concurrency} | {row.tokens_per_second:,.0f} | "
        f"{speedup} | {accepted} | {row.drafted:.2f} | {row.same:.0%}"
    )


def _parser() -> argparse.ArgumentParser:
    parser = options(__doc__)
    parser.add_argument("--target", default="C", help="A, B, C or a GGUF file")
    parser.add_argument("--draft", default="B", help="the same, with the target's tokenizer")
    parser.add_argument("--workload", action="append", choices=_WORKLOADS, help="all unless given")
    parser.add_argument("--concurrency", type=int, nargs="+", default=[1, 4, 16], help="requests at once")
    parser.add_argument("--requests", type=int, default=48, help="requests of a run")
    parser.add_argument("--new-tokens", type=int, default=128, help="most tokens of an answer")
    parser.add_argument("--repeats", type=int, default=3, help="runs beside the first")
    parser.add_argument("--tokens", type=int, default=8, help="most drafted tokens per request and step")
    parser.add_argument("--dtype", choices=get_args(Dtype), default="auto")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), metavar="N")
    parser.add_argument("--name", default="speculation", help="name of the results' files")
    parser.add_argument("--quick", action="store_true", help="a short run that shows that all works")
    return parser


if __name__ == "__main__":
    main()
