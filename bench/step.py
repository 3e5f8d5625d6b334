"""What a decode step costs beside its arithmetic: the Python of scheduling, batching, sampling and the model's layers.

    python -m bench.step                 the 15M model, 1, 8 and 32 rows
    python -m bench.step --model mini --steps 20

Three figures per number of rows, each the median over the steps: the whole step; the same without what is replayed of
it, which leaves the Python around the model; and its parts, each measured by itself. The last are a little more than
they add up to, as every clock costs something. Run it with one thread (OMP_NUM_THREADS=1) on a quiet machine.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import kernels
from bench.checkpoints import SHAPES, cache_folder, checkpoint
from engine.cache.blocks import BLOCK_SIZE
from engine.core import EngineCore, SchedulerConfig
from engine.execution.recorded import Decoded
from engine.execution.runner import ModelRunner
from engine.execution.sampling import Sampler
from engine.execution.step_buffers import StepBuffers
from engine.scheduling.scheduler import Scheduler
from engine.wire import Generate, SamplingParams

_PROMPT = 128
_WARM_UP = 5
_PARTS: dict[str, tuple[type, str]] = {
    "schedule": (Scheduler, "schedule"),
    "write": (StepBuffers, "write"),
    "likeliest": (Decoded, "likeliest"),
    "sample": (Sampler, "__call__"),
    "commit": (Scheduler, "commit"),
}
"""Parts of a step. `write` fills what the recording reads; greedy rows take the likeliest token."""


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m bench.step", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", choices=list(SHAPES), default="S")
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 8, 32], metavar="N")
    parser.add_argument("--steps", type=int, default=300, metavar="N", help="steps measured for each figure")
    parser.add_argument("--temperature", type=float, default=0.0, help="0 is greedy")
    parser.add_argument("--cache", type=Path, default=cache_folder(), help="where random checkpoints are kept")
    arguments = parser.parse_args(argv)
    steps: int = arguments.steps
    blocks = max(arguments.rows) * -(-(_PROMPT + _WARM_UP + steps + 2) // BLOCK_SIZE)
    runner = ModelRunner(checkpoint(arguments.model, arguments.cache), blocks=blocks)

    def measure(rows: int) -> list[float]:
        return _step_seconds(runner, rows, steps, arguments.temperature)

    print(f"{'rows':>5}{'step':>9}{'Python':>9}" + "".join(f"{part:>10}" for part in _PARTS) + "   (median, µs)")
    for rows in arguments.rows:
        whole = statistics.median(measure(rows))
        with patch.object(kernels.Recording, "replay"):
            around = statistics.median(measure(rows))
            with _clocks() as parts:
                measure(rows)
        shown = [statistics.median(parts[part][-steps:]) if len(parts[part]) >= steps else 0.0 for part in _PARTS]
        cells = f"{whole * 1e6:9.0f}{around * 1e6:9.0f}" + "".join(f"{seconds * 1e6:10.1f}" for seconds in shown)
        print(f"{rows:5}{cells}", flush=True)


def _step_seconds(runner: ModelRunner, rows: int, steps: int, temperature: float) -> list[float]:
    """Time `steps` steps in which `rows` requests decode."""
    core = EngineCore(runner, runner.info, SchedulerConfig(blocks=runner.blocks))
    sampling = SamplingParams(max_tokens=_WARM_UP + steps + 1, temperature=temperature, ignore_eos=True)
    for row in range(rows):
        prompt = [(row * 7 + place * 3) % runner.info.vocabulary for place in range(_PROMPT)]
        core.add(Generate(str(row), prompt, sampling))
    while core.load().waiting_tokens or core.load().output_tokens < rows * _WARM_UP:
        core.step()
    gc.collect()
    seconds = []
    for _ in range(steps):
        begun = time.perf_counter()
        core.step()
        seconds.append(time.perf_counter() - begun)
    for row in range(rows):
        core.cancel(str(row))
    core.step()
    return seconds


@contextmanager
def _clocks() -> Iterator[dict[str, list[float]]]:
    """Time every call of the parts; seconds by part."""
    seconds: defaultdict[str, list[float]] = defaultdict(list)

    def timed(part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            begun = time.perf_counter()
            result = function(*args, **kwargs)
            seconds[part].append(time.perf_counter() - begun)
            return result

        return call

    with ExitStack() as stack:
        for part, (owner, name) in _PARTS.items():
            stack.enter_context(patch.object(owner, name, timed(part, getattr(owner, name))))
        yield seconds


if __name__ == "__main__":
    main()
