"""What is measured: our engine, in-process and through its socket, and its peers, all behind one small interface.

Every subject gets the same prompts at once and tells when each token of each request existed. Peers are set up as
their own documentation advises for this workload; where a setting was found to help them, they have it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import msgspec

from bench.measure import Trace
from engine.client import EngineClient, Generation
from engine.kv import BLOCK_SIZE
from engine.wire import Generate, SamplingParams


class Setup(msgspec.Struct, frozen=True):
    """What a subject must be able to run. `requests`: most at once."""

    checkpoint: str
    dtype: Literal["bfloat16", "float32"]
    requests: int
    prompt_tokens: int
    new_tokens: int


@dataclass(frozen=True, slots=True)
class Subject:
    """A loaded model. `run(prompts, new_tokens)` generates exactly that many tokens greedily for each prompt."""

    run: Callable[[Sequence[list[int]], int], list[Trace]]
    pid: int
    """The process whose memory counts."""


@contextlib.contextmanager
def generate(setup: Setup) -> Iterator[Subject]:
    """transformers' `generate`: one static batch."""
    import torch
    from transformers import GenerationConfig
    from transformers.generation.streamers import BaseStreamer

    class Clock(BaseStreamer):
        """`generate` puts the prompts first, then one token of every row per step."""

        def __init__(self) -> None:
            self.times: list[float] = []

        def put(self, value: torch.Tensor) -> None:
            self.times.append(time.perf_counter())

        def end(self) -> None: ...

    model = _transformers_model(setup)

    def run(prompts: Sequence[list[int]], new_tokens: int) -> list[Trace]:
        begun = time.perf_counter()
        ids = torch.tensor(prompts)
        clock = Clock()
        config = GenerationConfig(do_sample=False, max_new_tokens=new_tokens, eos_token_id=-1, pad_token_id=0)
        with torch.inference_mode():
            output = model.generate(ids, attention_mask=torch.ones_like(ids), generation_config=config, streamer=clock)
        times = [moment - begun for moment in clock.times[1:]]
        return [Trace(row, times) for row in output[:, ids.shape[1] :].tolist()]

    yield Subject(run, os.getpid())


@contextlib.contextmanager
def continuous_batching(setup: Setup) -> Iterator[Subject]:
    """transformers' continuous batching, as `generate_batch` sets it up, but timed only once it is ready.

    Its cache is sized for the workload: by default it takes 60 % of all memory.
    """
    from transformers import ContinuousBatchingConfig, GenerationConfig
    from transformers.generation.continuous_batching.utils import WorkloadHints

    model = _transformers_model(setup)
    page = 256

    def run(prompts: Sequence[list[int]], new_tokens: int) -> list[Trace]:
        length = max(len(prompt) for prompt in prompts)
        sizes = ContinuousBatchingConfig(
            page_size=page,
            num_blocks=len(prompts) * math.ceil((length + new_tokens) / page) + 4,
            max_batch_tokens=len(prompts) * length,
        )
        opened = model.continuous_batching_context_manager(
            generation_config=GenerationConfig(do_sample=False, eos_token_id=-1, pad_token_id=0),
            continuous_batching_config=sizes,
            workload_hints=WorkloadHints(length, new_tokens, len(prompts)),
        )
        with opened as manager:
            begun = time.perf_counter()
            ids = manager.add_requests(list(prompts), max_new_tokens=new_tokens, record_timestamps=True)
            found: dict[str, Trace] = {}
            while len(found) < len(ids):
                result = manager.get_result(timeout=1)
                if result is None and not manager.is_running():
                    raise RuntimeError("transformers' generation thread has died")
                if result is not None and result.is_finished():
                    if result.error is not None:
                        raise RuntimeError(f"transformers' continuous batching failed: {result.error}")
                    times = [moment - begun for moment in result.timestamps]
                    found[result.request_id] = Trace(result.generated_tokens, times)
        return [found[id] for id in ids]

    yield Subject(run, os.getpid())


@contextlib.contextmanager
def engine(setup: Setup) -> Iterator[Subject]:
    """Our `EngineCore`, stepped in-process."""
    from engine.core import EngineCore, SchedulerConfig
    from engine.runner import ModelRunner

    blocks = _blocks(setup)
    runner = ModelRunner(Path(setup.checkpoint), blocks=blocks, dtype=setup.dtype)
    core = EngineCore(runner, runner.info, SchedulerConfig(blocks=blocks))

    def run(prompts: Sequence[list[int]], new_tokens: int) -> list[Trace]:
        begun = time.perf_counter()
        for index, prompt in enumerate(prompts):
            core.add(Generate(str(index), list(prompt), _greedy(new_tokens)))
        traces = [Trace([], []) for _ in prompts]
        while not core.idle:
            outputs = core.step()
            now = time.perf_counter() - begun
            for output in outputs:
                if output.finish == "error":
                    raise RuntimeError(f"our engine failed: {output.error}")
                trace = traces[int(output.id)]
                trace.tokens.extend(output.tokens)
                trace.times.extend(now for _ in output.tokens)
        core.check_integrity()
        return traces

    yield Subject(run, os.getpid())


@contextlib.contextmanager
def served(setup: Setup) -> Iterator[Subject]:
    """Our engine as it is deployed: a process of its own, a client over a unix socket."""
    import torch

    with tempfile.TemporaryDirectory(prefix="rh-bench-") as folder:
        command = [sys.executable, "-m", "engine.server", "--model", setup.checkpoint, "--dtype", setup.dtype]
        command += ["--listen", f"unix://{folder}/socket", "--kv-tokens", str(_blocks(setup) * BLOCK_SIZE)]
        command += ["--threads", str(torch.get_num_threads())]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            try:
                assert process.stdout is not None
                ready = process.stdout.readline()
                if not ready:
                    raise RuntimeError(f"the served engine ended with status {process.wait()}")
                address = json.loads(ready)["address"]
                yield Subject(lambda prompts, new_tokens: asyncio.run(_ask(address, prompts, new_tokens)), process.pid)
            finally:
                process.terminate()


async def _ask(address: str, prompts: Sequence[list[int]], new_tokens: int) -> list[Trace]:
    """Submit all prompts over one connection; times are those at which the client has the tokens."""

    async def collect(generation: Generation) -> Trace:
        trace = Trace([], [])
        async for delta in generation:
            trace.tokens.extend(delta.token_ids)
            trace.times.extend(time.perf_counter() - begun for _ in delta.token_ids)
        return trace

    async with EngineClient(address) as client:
        await client.wait_connected()
        begun = time.perf_counter()
        generations = [client.generate(prompt, _greedy(new_tokens)) for prompt in prompts]
        return await asyncio.gather(*map(collect, generations))


def _blocks(setup: Setup) -> int:
    """KV blocks for all requests at once, and the one more per request that admission asks for."""
    return setup.requests * (math.ceil((setup.prompt_tokens + setup.new_tokens) / BLOCK_SIZE) + 1)


def _greedy(new_tokens: int) -> SamplingParams:
    return SamplingParams(max_tokens=new_tokens, temperature=0.0, ignore_eos=True)


def _transformers_model(setup: Setup) -> Any:
    import torch
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(setup.checkpoint, dtype=getattr(torch, setup.dtype)).eval()


class Kind(msgspec.Struct, frozen=True):
    """How to measure a subject."""

    load: Callable[[Setup], AbstractContextManager[Subject]]
    libraries: tuple[str, ...]
    """Imported before memory is counted: code is not what the column compares."""


SUBJECTS = {
    "transformers generate": Kind(generate, ("torch", "transformers.models.llama.modeling_llama")),
    "transformers continuous batching": Kind(
        continuous_batching,
        ("torch", "transformers.models.llama.modeling_llama", "transformers.generation.continuous_batching"),
    ),
    "Roundhouse": Kind(engine, ("torch", "engine.core", "engine.runner")),
    "Roundhouse, served": Kind(served, ("torch", "engine.core", "engine.runner", "engine.server")),
}
