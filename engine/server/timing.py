"""Times an engine's steps: `python -m engine.server.timing` takes the options of an engine and prints JSON.

Requests of random tokens make steps of all sizes: prompts of each length, long prompts in chunks, and decodes of few
and many rows over short and long contexts. What such a step computes is known beforehand, so that nothing in the engine
has to be observed. `scale/planning/step_cost.py` makes a model of the times.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from typing import Any

import click
import msgspec

from engine.cache.blocks import BLOCK_SIZE
from engine.core import EngineCore
from engine.server.command import fail, set_up_process
from engine.server.options import EngineOptions, parameters
from engine.step_times import StepWork, TimedEngine, TimedStep
from engine.wire import Generate, SamplingParams

_SHORT, _LONG = 16, 512
"""Tokens of the prompts before decodes that are timed."""
_DECODES = 6
"""Steps that are timed with each number of rows."""
_PROMPT_SHARE = 0.2
"""Most of the time that the prompts of one case may take."""


class StepTimer:
    """Runs requests through a core and times each step. The core must be idle and warm."""

    def __init__(self, core: EngineCore, clock: Callable[[], float] = time.perf_counter, seed: int = 1) -> None:
        self._core = core
        self._clock = clock
        self._chance = random.Random(seed)
        self._asked = 0

    def engine(self, seconds: float, threads: int) -> TimedEngine:
        """Return the engine's description with the times of its steps."""
        config, model = self._core.config, self._core.model
        return TimedEngine(
            model=model.name,
            device=model.device,
            dtype=model.dtype,
            kv_dtype=model.kv_dtype or model.dtype,
            threads=threads,
            step_tokens=config.step_tokens,
            max_running=config.max_running,
            kv_tokens=config.blocks * BLOCK_SIZE,
            context=model.context,
            steps=list(self.run(seconds)),
        )

    def run(self, seconds: float) -> Iterator[TimedStep]:
        """Time steps of all sizes, in rounds, until so much time has passed; one round at least."""
        config, model = self._core.config, self._core.model
        longest, end = min(model.context, config.blocks * BLOCK_SIZE) - 1, self._clock() + seconds
        for _ in self._prompt(min(config.step_tokens, longest)):
            pass  # so that no step that counts meets cold memory
        while True:
            token = 0.0
            for count in _powers(min(config.step_tokens, longest))[1:]:
                for step in self._prompt(count):
                    token = step.seconds / count
                    yield step
            affordable = int(_PROMPT_SHARE * seconds / token)
            chunks = min(4 * config.step_tokens, affordable, longest) // config.step_tokens
            if chunks > 1:
                yield from self._prompt(chunks * config.step_tokens)
            for rows in _powers(config.max_running):
                yield from self._decodes(rows, _SHORT)
                if rows * (_LONG + BLOCK_SIZE) <= min(affordable, config.blocks * BLOCK_SIZE) and longest > 2 * _LONG:
                    yield from self._decodes(rows, _LONG)
            if self._clock() >= end:
                return

    def _prompt(self, tokens: int) -> Iterator[TimedStep]:
        """Time the steps of one prompt, which runs in chunks if it is longer than a step."""
        self._ask(tokens, 1)
        done = 0
        while not self._core.idle:
            count = min(self._core.config.step_tokens, tokens - done)
            pairs = count * done + count * (count + 1) // 2
            work = StepWork(count, sampled=int(done + count == tokens), pairs=pairs, prompts=1)
            yield TimedStep(work, self._step()[0])
            done += count

    def _decodes(self, rows: int, prompt: int) -> Iterator[TimedStep]:
        """Time steps in which so many requests decode behind prompts of this length."""
        waits = 1 + -(-rows * prompt // self._core.config.step_tokens)
        """Steps until all decode."""
        answered = {self._ask(prompt, waits + _DECODES + 1): 0 for _ in range(rows)}

        def step() -> float:
            seconds, gained = self._step()
            for id, tokens in gained.items():
                answered[id] += tokens
            return seconds

        while not all(answered.values()):
            step()
        for _ in range(_DECODES):
            read = sum(prompt + tokens for tokens in answered.values())
            yield TimedStep(StepWork(rows, sampled=rows, read=read), step())
        for id in answered:
            self._core.cancel(id)
        self._step()

    def _ask(self, tokens: int, answer: int) -> str:
        self._asked += 1
        prompt = [self._chance.randrange(self._core.model.vocabulary) for _ in range(tokens)]
        sampling = SamplingParams(max_tokens=answer, ignore_eos=True, seed=self._asked)
        self._core.add(Generate(str(self._asked), prompt, sampling))
        return str(self._asked)

    def _step(self) -> tuple[float, dict[str, int]]:
        began = self._clock()
        outputs = self._core.step()
        return self._clock() - began, {output.id: len(output.tokens) for output in outputs}


def _powers(most: int) -> list[int]:
    """Return the powers of two below a number, and the number."""
    return [1 << exponent for exponent in range((most - 1).bit_length())] + [most]


@click.command(
    params=[
        *parameters(EngineOptions),
        click.Option(["--seconds"], type=click.FloatRange(min=1), default=45.0, help="Time to take, beside loading."),
    ]
)
def main(seconds: float, **values: Any) -> None:
    """Time the steps of an engine with these options, and print them as JSON."""
    try:
        options = EngineOptions(**values)
    except ValueError as error:
        fail(str(error))
    set_up_process(options)
    from engine.execution.warm_up import NotEnoughMemory
    from engine.server.loaded_engine import LoadedEngine

    try:
        engine = LoadedEngine(options)
        engine.warm_up()
    except (ValueError, NotEnoughMemory) as error:
        fail(str(error))
    try:
        click.echo(msgspec.json.encode(StepTimer(engine.core).engine(seconds, options.cpu_threads)))
    finally:
        engine.close()


if __name__ == "__main__":
    main()
