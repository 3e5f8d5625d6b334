"""What KV in host memory brings: conversations that come back after the KV cache has given them up.

    python -m bench.host_kv                   a model of 18 M parameters
    python -m bench.host_kv --quick           a smoke run

Two measurements, in this process, on one runner:

- **A prefix alone.** The time to the first token of a prompt of so many known blocks that are computed again, loaded
  from host memory, or still in the KV cache; medians. Where the first two cross it begins to pay.
- **Conversations.** Many take turns, more than the KV cache holds, a few at once; the next turn belongs to a
  conversation drawn at random and comes when another one has ended. The same turns run with the KV cache alone, with
  host memory below it, and, as the limit, with a KV cache that holds all: one after the other, in an order that rotates
  from repeat to repeat. Every run starts with empty caches and one turn of each conversation, which are not counted.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import threading
import time
from collections import deque
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from tqdm import tqdm

from bench.checkpoints import directory_of
from bench.host_kv_report import Copies, HostKvComparison, HostKvLine, Known, markdown, plot
from bench.report import Environment, options, publish
from engine.cache.blocks import BLOCK_SIZE
from engine.wire import Generate, Output, SamplingParams

if TYPE_CHECKING:
    from engine.core import EngineCore
    from engine.execution.runner import ModelRunner

_TIMEOUT = 60
"""Seconds after which a load is lost."""


class QuestionTurn(msgspec.Struct, frozen=True):
    """One question of one conversation."""

    conversation: int
    question: list[int]


class HostKvRun(msgspec.Struct, frozen=True):
    """Results of one setup in one repeat."""

    seconds: float
    prompt_tokens: int
    cached_tokens: int
    host_tokens: int
    """Cached tokens that came from host memory."""
    again_tokens: int
    """Prompt tokens that were computed although an earlier turn had computed their KV."""
    new_tokens: int
    saved_bytes: int
    loaded_bytes: int
    ttfts: list[float]
    answers: list[list[int]]


def main(argv: Sequence[str] | None = None) -> None:
    arguments = _parser().parse_args(argv)
    if arguments.quick:
        arguments.known, arguments.conversations, arguments.turns = [1, 4], 6, 12
        arguments.opening, arguments.kv_tokens, arguments.repeats = [60, 100], 400, 1
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    environment = Environment.here()
    comparison = _measure(arguments)
    record = {"environment": environment, "comparison": comparison}
    publish(arguments.output / "host-kv", markdown(comparison, environment), record)
    plot(comparison, arguments.output / "host-kv.png")


def _measure(arguments: argparse.Namespace) -> HostKvComparison:
    import torch

    from engine.execution.precision import Precision
    from engine.execution.runner import ModelRunner

    torch.set_num_threads(1)
    turns = _turns(arguments)
    most = sum(len(turn.question) + arguments.new_tokens for turn in turns)
    small, large = arguments.kv_tokens // BLOCK_SIZE, most // BLOCK_SIZE + 2 * arguments.conversations
    # All setups use the same memory; a smaller KV cache leaves the rest of it unused.
    blocks = max(large, 2 + max(arguments.known))
    runner = ModelRunner(
        directory_of(arguments.model), blocks=blocks, device=arguments.device, precision=Precision(arguments.dtype)
    )
    copies = _copies(runner, blocks=min(small, large))
    known = [_known(runner, blocks, arguments) for blocks in tqdm(arguments.known, "prefixes", disable=None)]
    setups = {
        "KV cache alone": (small, 0),
        "with host memory": (small, large * _block_bytes(runner)),
        "KV cache that holds all": (large, 0),
    }
    runs: dict[str, list[HostKvRun]] = {name: [] for name in setups}
    with tqdm(total=arguments.repeats * len(setups), unit="run", disable=None) as progress:
        for repeat in range(arguments.repeats):
            names = list(setups)
            for name in names[repeat % len(names) :] + names[: repeat % len(names)]:
                progress.set_postfix_str(name)
                runs[name].append(_serve(runner, turns, *setups[name], arguments))
                progress.update()
    *_, full = runs.values()
    return HostKvComparison(
        model=Path(arguments.model).name,
        dtype=runner.info.dtype,
        conversations=arguments.conversations,
        turns=len(turns) - arguments.conversations,
        at_once=arguments.at_once,
        kv_tokens=small * BLOCK_SIZE,
        repeats=arguments.repeats,
        copies=copies,
        known=known,
        lines=[_line(name, setups[name], each, full) for name, each in runs.items()],
    )


def _block_bytes(runner: ModelRunner) -> int:
    """Return the bytes of a block's keys and values in all layers."""
    config = runner.config
    element = {"float32": 4, "bfloat16": 2}[runner.info.dtype]
    return 2 * config.layers * config.kv_heads * config.head_dim * BLOCK_SIZE * element


def _turns(arguments: argparse.Namespace) -> list[QuestionTurn]:
    """Return one turn that opens each conversation, then those that are counted."""
    chance = random.Random(1)

    def tokens(least: int, most: int) -> list[int]:
        return [chance.randrange(100, 1000) for _ in range(chance.randint(least, most))]

    turns = [QuestionTurn(index, tokens(*arguments.opening)) for index in range(arguments.conversations)]
    recent: deque[int] = deque(maxlen=arguments.at_once)  # who has just asked is not the next to ask
    for _ in range(arguments.turns):
        index = chance.choice([index for index in range(arguments.conversations) if index not in recent])
        recent.append(index)
        turns.append(QuestionTurn(index, tokens(16, 48)))
    return turns


def _core(runner: ModelRunner, blocks: int, host_bytes: int, least: int | None = None) -> EngineCore:
    """Make an engine with empty caches. `least`: fewest tokens to load; the engine's own default unless given."""
    from engine.core import EngineCore, EngineFeatures, SchedulerConfig

    host = runner.host_memory(host_bytes) if host_bytes else None
    config = SchedulerConfig(blocks=blocks)
    if least is not None:
        config = replace(config, host_load_tokens=least)
    return EngineCore(runner, runner.info, config, EngineFeatures(host=host))


class _Driver:
    """Steps a core, and sleeps while all its requests wait for loads."""

    def __init__(self, core: EngineCore) -> None:
        self.core = core
        self._woken = threading.Semaphore(0)
        core.wake = self._woken.release

    def step(self) -> list[Output]:
        while self.core.stalled:
            if not self._woken.acquire(timeout=_TIMEOUT):
                raise RuntimeError("a load has not ended")
        return self.core.step()

    def first_token(self, prompt: list[int]) -> float:
        """Return the seconds to the only token of an answer, with nothing else to do."""
        self.core.add(Generate("alone", prompt, SamplingParams(max_tokens=1, temperature=0.0, ignore_eos=True)))
        begun = time.perf_counter()
        while not any(output.finish for output in self.step()):
            pass
        return time.perf_counter() - begun


def _known(runner: ModelRunner, blocks: int, arguments: argparse.Namespace) -> Known:
    """Time a prefix of so many blocks when it is computed, loaded after eviction, and found in the KV cache."""
    chance = random.Random(blocks)
    computed, loaded, found = [], [], []
    core = _core(runner, blocks + 2, 4 * blocks * _block_bytes(runner), least=1)
    with closing(core):
        driver = _Driver(core)
        for _ in range(2 if arguments.quick else 1 + arguments.prefix_repeats):
            prompt, other = ([chance.randrange(100, 1000) for _ in range(blocks * BLOCK_SIZE + 8)] for _ in range(2))
            computed.append(driver.first_token(prompt))
            driver.first_token(other + other[:BLOCK_SIZE])
            before = core.load().host_hit_tokens
            loaded.append(driver.first_token(prompt))
            if core.load().host_hit_tokens - before != blocks * BLOCK_SIZE:
                raise RuntimeError("the prefix was not in host memory")
            found.append(driver.first_token(prompt))
    medians = [statistics.median(times[1:]) for times in (computed, loaded, found)]
    return Known(blocks, *medians)


def _copies(runner: ModelRunner, blocks: int) -> Copies:
    """Measure copies out and back, of blocks that lie anywhere in a KV cache, in bytes per second."""
    import torch

    from engine.cache.host_tier import Save

    memory = runner.host_memory(blocks * _block_bytes(runner))
    order = random.Random(0).sample(range(blocks), blocks)
    saves = [Save(block, slot) for slot, block in enumerate(order)]
    out, back = [], []
    for _ in range(6):
        begun = time.perf_counter()
        memory.save(saves)
        if runner.info.device == "cuda":
            torch.cuda.synchronize()
        out.append(time.perf_counter() - begun)
        begun = time.perf_counter()
        memory.begin_load(range(blocks), order)()
        back.append(time.perf_counter() - begun)
    # The first one takes the memory from the operating system.
    size = blocks * memory.block_bytes
    return Copies(memory.block_bytes, size / statistics.median(out[1:]), size / statistics.median(back[1:]))


def _serve(
    runner: ModelRunner, turns: Sequence[QuestionTurn], blocks: int, host_bytes: int, arguments: argparse.Namespace
) -> HostKvRun:
    """Serve all turns, so many at a time."""
    core = _core(runner, blocks, host_bytes)
    histories: list[list[int]] = [[] for _ in range(arguments.conversations)]
    sampling = SamplingParams(max_tokens=arguments.new_tokens, temperature=0.0, ignore_eos=True)
    answers: dict[str, list[int]] = {}
    asked: dict[str, float] = {}
    ttfts: list[float] = []
    prompt_tokens = cached_tokens = again_tokens = 0
    with closing(core):
        driver = _Driver(core)
        before, begun = core.load(), 0.0
        for counted, part in ((False, turns[: len(histories)]), (True, turns[len(histories) :])):
            waiting = deque(enumerate(part))
            before, begun = core.load(), time.perf_counter()
            live: dict[str, int] = {}
            while waiting or live:
                while waiting and len(live) < arguments.at_once:
                    number, turn = waiting[0]
                    if turn.conversation in live.values():  # nobody asks before he has been answered
                        break
                    waiting.popleft()
                    id = f"{counted}-{number}"
                    known = len(histories[turn.conversation])
                    histories[turn.conversation] += turn.question
                    live[id], answers[id] = turn.conversation, []
                    core.add(Generate(id, list(histories[turn.conversation]), sampling))
                    asked[id] = time.perf_counter()
                    again_tokens += counted * max(0, known - 1)  # the last token of an answer has no KV yet
                for output in driver.step():
                    if output.tokens and not answers[output.id] and counted:
                        ttfts.append(time.perf_counter() - asked[output.id])
                    answers[output.id] += output.tokens
                    if output.finish is not None:
                        if output.usage is None or output.finish != "length":
                            raise RuntimeError(f"a turn ended by {output.finish}: {output.error}")
                        histories[live.pop(output.id)] += answers[output.id]
                        if counted:
                            prompt_tokens += output.usage.prompt_tokens
                            cached_tokens += output.usage.cached_tokens
        seconds = time.perf_counter() - begun
        after = core.load()
    said = [answers[f"True-{number}"] for number in range(len(turns) - len(histories))]
    return HostKvRun(
        seconds=seconds,
        prompt_tokens=prompt_tokens,
        cached_tokens=cached_tokens,
        host_tokens=after.host_hit_tokens - before.host_hit_tokens,
        again_tokens=again_tokens - cached_tokens,
        new_tokens=sum(map(len, said)),
        saved_bytes=after.host_saved_bytes - before.host_saved_bytes,
        loaded_bytes=after.host_loaded_bytes - before.host_loaded_bytes,
        ttfts=ttfts,
        answers=said,
    )


def _line(name: str, setup: tuple[int, int], runs: Sequence[HostKvRun], full: Sequence[HostKvRun]) -> HostKvLine:
    def total(field: str) -> int:
        return sum(getattr(run, field) for run in runs)

    pairs = [
        one == other
        for run, reference in zip(runs, full, strict=True)
        for one, other in zip(run.answers, reference.answers, strict=True)
    ]
    return HostKvLine(
        setup=name,
        kv_tokens=setup[0] * BLOCK_SIZE,
        host_bytes=setup[1],
        hit_share=total("cached_tokens") / total("prompt_tokens"),
        host_share=total("host_tokens") / total("prompt_tokens"),
        prompt_tokens=total("prompt_tokens") // len(runs),
        again_tokens=total("again_tokens") // len(runs),
        ttfts=sorted(ttft for run in runs for ttft in run.ttfts),
        tokens_per_second=statistics.median(run.new_tokens / run.seconds for run in runs),
        saved_bytes=total("saved_bytes") // len(runs),
        loaded_bytes=total("loaded_bytes") // len(runs),
        same=statistics.fmean(pairs),
    )


def _parser() -> argparse.ArgumentParser:
    parser = options(__doc__)
    parser.add_argument("--model", default="18M", help="shape of a random checkpoint, or directory of one")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--known", type=int, nargs="+", default=[1, 2, 4, 8, 16, 32, 64], help="blocks of prefixes")
    parser.add_argument("--prefix-repeats", type=int, default=7, help="repeats of each of these prefixes")
    parser.add_argument("--conversations", type=int, default=32)
    parser.add_argument("--turns", type=int, default=64, help="turns of all conversations that are counted")
    parser.add_argument("--opening", type=int, nargs=2, default=[300, 700], help="tokens of first turns")
    parser.add_argument("--new-tokens", type=int, default=16, help="tokens of an answer")
    parser.add_argument("--at-once", type=int, default=4, help="turns that run at the same time")
    parser.add_argument("--kv-tokens", type=int, default=6144, help="size of the small KV cache")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="a short run that shows that all works")
    return parser


if __name__ == "__main__":
    main()
