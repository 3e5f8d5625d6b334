"""What a polite tenant notices of a greedy one, on a real engine process, under each policy.

    python -m bench.greedy                    a model of 6 M parameters; results in bench/results/greedy.*
    python -m bench.greedy --quick            a smoke run with few and short requests

A round: the polite tenant sends its requests at once and alone; then the greedy one sends 200, and when some of them
are answered, from round to round more, the polite one sends as many as before. Prompts are random, so that no round
finds another one's in the prefix cache. TTFT is what the client sees, over all rounds; the figure to look at is the p99
beside over the p99 alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from bench.checkpoints import directory_of
from bench.measure import quantile
from bench.report import Environment, options, publish, table
from bench.servers import engine_process
from engine.client.engine_client import EngineClient
from engine.scheduling.config import POLICIES
from engine.wire import SamplingParams


class GreedySizes(msgspec.Struct, frozen=True):
    """The load, in requests and tokens."""

    greedy: int = 200
    greedy_prompt: int = 128
    greedy_output: int = 64
    polite: int = 5
    polite_prompt: int = 128
    polite_output: int = 16
    rounds: int = 5
    max_running: int = 16
    step_tokens: int = 256


class GreedyRow(msgspec.Struct, frozen=True):
    """Results of one policy; seconds until the first token."""

    policy: str
    alone_p50: float
    alone_p99: float
    beside_p50: float
    beside_p99: float
    greedy_p50: float
    ratio: float
    """The polite tenant's p99 beside the greedy one, over its p99 alone."""


class GreedyLoad:
    """Sends the requests of both tenants to one engine."""

    def __init__(self, engine: EngineClient, sizes: GreedySizes, seed: int) -> None:
        self._engine = engine
        self._sizes = sizes
        self._random = random.Random(seed)

    async def round(self, answers: int) -> tuple[list[float], list[float], list[float]]:
        """Return TTFTs of the polite tenant alone, of it beside the greedy one, and of the greedy's answered requests.

        The polite one sends again when the greedy one has had its first token and so many whole answers.
        """
        sizes = self._sizes
        alone = await self._polite()
        answered: list[float] = []
        began, come = asyncio.Event(), asyncio.Event()

        async def one() -> None:
            answered.append(await self._ttft("greedy", sizes.greedy_prompt, sizes.greedy_output, began))
            if len(answered) >= answers:
                come.set()

        async with asyncio.TaskGroup() as tasks:
            greedy = [tasks.create_task(one()) for _ in range(sizes.greedy)]
            await (come if answers else began).wait()
            beside = await self._polite()
            for task in greedy:
                task.cancel()
        return alone, beside, answered

    async def _polite(self) -> list[float]:
        sizes = self._sizes
        requests = (self._ttft("polite", sizes.polite_prompt, sizes.polite_output) for _ in range(sizes.polite))
        return list(await asyncio.gather(*requests))

    async def _ttft(self, tenant: str, prompt: int, output: int, began: asyncio.Event | None = None) -> float:
        """Run one request to its end; sets `began` at its first token."""
        assert self._engine.info is not None
        tokens = [self._random.randrange(self._engine.info.vocabulary) for _ in range(prompt)]
        sampling = SamplingParams(max_tokens=output, temperature=0.0, ignore_eos=True)
        sent = time.monotonic()
        first: float | None = None
        async with self._engine.generate(tokens, sampling, tenant=tenant) as generation:
            async for _ in generation:
                first = first or time.monotonic() - sent
                if began is not None:
                    began.set()
        assert first is not None
        return first


async def measure(model: Path, policy: str, sizes: GreedySizes, threads: int) -> GreedyRow:
    """Run all rounds under one policy, in an engine process of its own."""
    alone: list[float] = []
    beside: list[float] = []
    greedy: list[float] = []
    async with contextlib.AsyncExitStack() as stack:
        address = f"unix://{stack.enter_context(tempfile.TemporaryDirectory())}/engine.sock"
        limits = {"max_running": sizes.max_running, "step_tokens": sizes.step_tokens}
        await stack.enter_async_context(engine_process(address, model, threads=threads, policy=policy, **limits))
        engine = await stack.enter_async_context(EngineClient(address))
        await engine.wait_connected()
        await GreedyLoad(engine, sizes, seed=-1)._polite()  # warms up
        for number in range(sizes.rounds):
            answers = number * sizes.greedy // (2 * sizes.rounds)
            results = await GreedyLoad(engine, sizes, seed=number).round(answers)
            for collected, new in zip((alone, beside, greedy), results, strict=True):
                collected += new
    return GreedyRow(
        policy=policy,
        alone_p50=statistics.median(alone),
        alone_p99=quantile(alone, 0.99),
        beside_p50=statistics.median(beside),
        beside_p99=quantile(beside, 0.99),
        greedy_p50=statistics.median(greedy),
        ratio=quantile(beside, 0.99) / quantile(alone, 0.99),
    )


def markdown(rows: Sequence[GreedyRow], sizes: GreedySizes, model: str, environment: Environment) -> str:
    lines = [
        "# A greedy tenant beside a polite one",
        "",
        f"The model {model} in an engine process, {environment}: {sizes.greedy} requests of "
        f"{sizes.greedy_prompt} + {sizes.greedy_output} tokens and {sizes.polite} of {sizes.polite_prompt} + "
        f"{sizes.polite_output}, {sizes.rounds} rounds; {sizes.max_running} rows, {sizes.step_tokens} tokens per step. "
        "Made by `python -m bench.greedy`.",
        "",
        "TTFT in milliseconds:",
        "",
        *table(
            "policy | polite, alone p50 / p99 | polite, beside p50 / p99 | p99 beside / alone | greedy p50",
            (
                f"{row.policy} | {1e3 * row.alone_p50:.0f} / {1e3 * row.alone_p99:.0f} | {1e3 * row.beside_p50:.0f} / "
                f"{1e3 * row.beside_p99:.0f} | {row.ratio:.2f} | {1e3 * row.greedy_p50:.0f}"
                for row in rows
            ),
        ),
    ]
    return "\n".join(lines) + "\n"


def main(argv: Sequence[str] | None = None) -> None:
    parser = options(__doc__)
    parser.add_argument("--model", default="6M", help="shape of a random checkpoint, or directory of one")
    parser.add_argument("--policy", choices=POLICIES, action="append", help="only this one; may be repeated")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--rounds", type=int, default=GreedySizes().rounds)
    parser.add_argument("--quick", action="store_true")
    arguments = parser.parse_args(argv)
    sizes = GreedySizes(rounds=arguments.rounds)
    if arguments.quick:
        sizes = GreedySizes(12, greedy_prompt=20, greedy_output=10, polite=2, polite_prompt=20, rounds=2, max_running=4)
    rows = [
        asyncio.run(measure(directory_of(arguments.model), policy, sizes, arguments.threads))
        for policy in arguments.policy or POLICIES
    ]
    environment = Environment.here()
    record = {"environment": environment, "sizes": sizes, "rows": rows}
    publish(arguments.output / "greedy", markdown(rows, sizes, Path(arguments.model).name, environment), record)


if __name__ == "__main__":
    main()
