"""Times an engine's steps: `python -m engine.server.timing` takes the options of an engine and prints JSON.

Requests of random tokens make steps of all sizes: prompts of each length, long prompts in chunks, decodes of few and
many rows over short and long contexts, and both in one step. In turns with them, requests of random lengths are
served, as under load (`random_load.py`). `scale/planning/step_cost.py` makes a model of the times.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from typing import Any

import click
import msgspec

from engine.cache.blocks import BLOCK_SIZE
from engine.core import EngineCore
from engine.server.command import fail, set_up_process
from engine.server.options import EngineOptions, parameters
from engine.server.random_load import random_load
from engine.step_times import StepWork, TimedEngine, TimedStep
from engine.wire import Generate, SamplingParams

_SHORT, _LONG = 16, 512
"""Tokens of the prompts before decodes that are timed."""
_DECODES = 6
"""Steps that are timed with each number of rows."""
_UNTIMED = 3
"""Steps with a number of rows that run first: the engine records such a step before it replays it."""
_BESIDE = ((1, 16), (1, 64), (1, 256), (4, 16), (4, 64), (16, 16))
"""Prompts that come while others decode: how many at a time, and tokens of each."""
_TIMES = 3
"""Steps that are timed with each of them."""
_PROMPT_SHARE = 0.2
"""Most of the time that the prompts of one case may take."""
_LOAD = 2.0
"""Seconds of one random load."""


class StepTimer:
    """Runs requests through a core and times each step. The core must be idle and warm."""

    def __init__(self, core: EngineCore, clock: Callable[[], float] = time.perf_counter, seed: int = 1) -> None:
        self._core = core
        self._clock = clock
        self._chance = random.Random(seed)
        self._asked = 0
        self._decoded: set[int] = set()
        """Numbers of rows that have run `_UNTIMED` steps of decodes."""
        self._token = 0.0
        """Seconds of a token of the last prompt that ran alone."""

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

    def run(self, seconds: float) -> Generator[TimedStep]:
        """Time steps of all sizes in rounds, in turns with random loads, until so much time has passed; one round
        and one load at least. Closed, it leaves the core idle."""
        asked, end, ahead, loaded = self._asked, self._clock() + seconds, 0.0, False
        try:
            for _ in self._prompt(min(self._core.config.step_tokens, self._longest)):
                pass  # so that no step that counts meets cold memory
            while self._clock() < end or not loaded:
                for case in self._round(seconds):
                    for step in case:
                        ahead += step.seconds
                        yield step
                    while ahead >= _LOAD:
                        yield from self._random_load()
                        ahead, loaded = ahead - _LOAD, True
                if not loaded:
                    yield from self._random_load()
                    ahead, loaded = ahead - _LOAD, True
        finally:
            self._end(map(str, range(asked + 1, self._asked + 1)))

    @property
    def _longest(self) -> int:
        """Tokens of the longest prompt that has an answer."""
        return min(self._core.model.context, self._core.config.blocks * BLOCK_SIZE) - 1

    def _round(self, seconds: float) -> Iterator[Iterator[TimedStep]]:
        """Return the cases of a round, each of which leaves the core idle. Args: seconds: of all rounds."""
        config, longest = self._core.config, self._longest
        for count in _powers(min(config.step_tokens, longest))[1:]:
            yield self._prompt(count)
        affordable = int(_PROMPT_SHARE * seconds / self._token)
        chunks = min(4 * config.step_tokens, affordable, longest) // config.step_tokens
        if chunks > 1:
            yield self._prompt(chunks * config.step_tokens)
        for rows in _powers(config.max_running):
            yield self._decodes(rows, _SHORT)
            if rows * (_LONG + BLOCK_SIZE) <= min(affordable, config.blocks * BLOCK_SIZE) and longest > 2 * _LONG:
                yield self._decodes(rows, _LONG)
        for rows in _powers(config.max_running)[-2:-5:-1] if longest > 4 * _SHORT else ():
            yield self._mixed(rows)

    def _prompt(self, tokens: int) -> Iterator[TimedStep]:
        """Time the steps of one prompt and, with the first, its arrival. Chunks run if it is longer than a step."""
        asked = self._asks(1, tokens)
        done = 0
        while not self._core.idle:
            count = min(self._core.config.step_tokens, tokens - done)
            pairs = count * done + count * (count + 1) // 2
            work = StepWork(count, sampled=int(done + count == tokens), pairs=pairs, prompts=1)
            seconds = self._step()[0]
            self._token = seconds / count
            yield TimedStep(work, asked + seconds)
            done, asked = done + count, 0.0

    def _decodes(self, rows: int, prompt: int) -> Iterator[TimedStep]:
        """Time steps in which so many requests decode behind prompts of this length."""
        untimed = 0 if rows in self._decoded else _UNTIMED
        self._decoded.add(rows)
        answered = self._begin(rows, prompt, untimed + _DECODES)
        for _ in range(untimed):
            self._go_on(answered)
        for _ in range(_DECODES):
            yield self._decode(answered, prompt)
        self._end(answered)

    def _mixed(self, rows: int) -> Iterator[TimedStep]:
        """Time steps in which prompts come while so many requests decode, each with the step of decodes before it.

        A step after one of another kind finds other memory in the processor's caches.
        """
        config = self._core.config
        cases = [
            (count, tokens)
            for count, tokens in _BESIDE
            if rows + count <= config.max_running
            and rows + count * tokens <= config.step_tokens
            and 4 * rows * _SHORT + count * (tokens + BLOCK_SIZE) <= config.blocks * BLOCK_SIZE
            and tokens < self._core.model.context
        ]
        answered = self._begin(rows, _SHORT, 2 * _TIMES * len(cases))
        for count, tokens in cases * _TIMES:
            yield self._decode(answered, _SHORT)
            decodes = self._decodes_of(answered, _SHORT)
            work = StepWork(
                rows + count * tokens,
                sampled=rows + count,
                read=decodes.read,
                pairs=count * tokens * (tokens + 1) // 2,
                prompts=count,
            )
            yield TimedStep(work, self._asks(count, tokens) + self._go_on(answered))
        self._end(answered)

    def _random_load(self) -> Iterator[TimedStep]:
        return random_load(self._core, self._clock, self._generate, self._chance, _LOAD)

    def _begin(self, rows: int, prompt: int, steps: int) -> dict[str, int]:
        """Begin requests and run their prompts; return their answers' tokens by id. They go on for so many steps."""
        waits = 1 + -(-rows * prompt // self._core.config.step_tokens)
        answered = {self._ask(prompt, waits + steps + 1): 0 for _ in range(rows)}
        while not all(answered.values()):
            self._go_on(answered)
        return answered

    def _go_on(self, answered: dict[str, int]) -> float:
        """Run a step and count the tokens of these requests; return its seconds."""
        seconds, gained = self._step()
        for id in answered:
            answered[id] += gained.get(id, 0)
        return seconds

    def _decode(self, answered: dict[str, int], prompt: int) -> TimedStep:
        work = self._decodes_of(answered, prompt)
        return TimedStep(work, self._go_on(answered))

    @staticmethod
    def _decodes_of(answered: dict[str, int], prompt: int) -> StepWork:
        rows = len(answered)
        return StepWork(rows, sampled=rows, read=sum(prompt + tokens for tokens in answered.values()))

    def _end(self, ids: Iterable[str]) -> None:
        for id in ids:
            self._core.cancel(id)
        self._step()

    def _asks(self, count: int, tokens: int) -> float:
        """Add prompts that get one token; return the seconds that the engine took to accept them."""
        generates = [self._generate(tokens, 1) for _ in range(count)]
        began = self._clock()
        for generate in generates:
            self._core.add(generate)
        return self._clock() - began

    def _ask(self, tokens: int, answer: int) -> str:
        generate = self._generate(tokens, answer)
        self._core.add(generate)
        return generate.id

    def _generate(self, tokens: int, answer: int) -> Generate:
        self._asked += 1
        prompt = [self._chance.randrange(self._core.model.vocabulary) for _ in range(tokens)]
        sampling = SamplingParams(max_tokens=answer, ignore_eos=True, seed=self._asked)
        return Generate(str(self._asked), prompt, sampling)

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
