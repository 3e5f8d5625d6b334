"""Our engine, stepped in-process and through its socket."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import math
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from bench.subjects.interface import Clock, Precision, RequestBatch, Subject, SubjectSetup, Trace
from engine.cache.blocks import BLOCK_SIZE
from engine.client.engine_client import EngineClient
from engine.client.generation import Generation
from engine.wire import Generate, SamplingParams

_DTYPES: dict[Precision, Literal["float32", "bfloat16", "auto"]] = {
    "fp32": "float32",
    "bf16": "bfloat16",
    "int8": "bfloat16",
    "int4": "bfloat16",
    "stored": "auto",
}
"""Type of activations and KV, by precision."""


@contextlib.contextmanager
def in_process(setup: SubjectSetup) -> Iterator[Subject]:
    """Load `EngineCore` and `ModelRunner` in this process."""
    import torch

    from bench.random_adapters import StoredAdapters
    from engine.adapters.residency import ResidencyConfig
    from engine.core import EngineCore, EngineFeatures, SchedulerConfig
    from engine.execution.graphs.policy import CapturePolicy
    from engine.execution.precision import Precision
    from engine.execution.runner import ModelRunner

    torch.set_num_threads(setup.threads)
    blocks = _blocks(setup)
    source = StoredAdapters(Path(setup.model), [Path(folder) for folder in setup.adapters]) if setup.adapters else None
    if source is not None:
        # Weights of a GGUF file are multiplied in fp32, beside keys and values in bf16.
        kv_dtype = torch.bfloat16 if setup.precision == "stored" else getattr(torch, _DTYPES[setup.precision])
        dtype = torch.float32 if setup.precision == "stored" else kv_dtype
        blocks += len(setup.adapters) * source.sectors(dtype, kv_dtype)
    runner = ModelRunner(
        Path(setup.model),
        blocks=blocks,
        device=setup.device,
        precision=Precision(_DTYPES[setup.precision], **_compression(setup)),
        adapters=source,
        random_weights=setup.random_weights,
    )
    if setup.device != "cpu":
        runner.record_decodes(CapturePolicy(setup.requests, runner.info.context))
    core = EngineCore(
        runner,
        runner.info,
        SchedulerConfig(blocks=blocks),
        EngineFeatures(bank=runner.bank, residency=None if source is None else ResidencyConfig(share=0.9)),
    )
    # As the server does: a collection of all objects takes as long as forty tokens of a small model.
    gc.collect()
    gc.freeze()

    def run(batch: RequestBatch) -> list[Trace]:
        clock = Clock(len(batch.prompts))
        for index, prompt in enumerate(batch.prompts):
            adapter = source.versions[index % batch.adapters] if source is not None and batch.adapters else None
            core.add(Generate(str(index), prompt, _greedy(batch.new_tokens), adapter=adapter))
        while not core.idle:
            outputs = core.step()
            now = clock.now()
            for output in outputs:
                if output.finish == "error":
                    raise RuntimeError(f"our engine failed: {output.error}")
                clock.add(int(output.id), output.tokens, now)
        core.check_integrity()
        return clock.traces

    yield Subject.here(run)


@contextlib.contextmanager
def served(setup: SubjectSetup) -> Iterator[Subject]:
    """Start the engine as it is deployed: `python -m engine.server`, with a client over a unix socket."""
    with tempfile.TemporaryDirectory(prefix="rh-bench-") as folder:
        command = [sys.executable, "-m", "engine.server", "--model", setup.model]
        command += ["--dtype", _DTYPES[setup.precision], "--threads", str(setup.threads)]
        command += ["--listen", f"unix://{folder}/socket", "--kv-tokens", str(_blocks(setup) * BLOCK_SIZE)]
        for name, value in _compression(setup).items():
            command += [f"--{name.replace('_', '-')}", value]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            try:
                assert process.stdout is not None
                ready = process.stdout.readline()
                if not ready:
                    raise RuntimeError(f"the served engine ended with status {process.wait()}")
                address = json.loads(ready)["address"]
                yield Subject(lambda batch: asyncio.run(_ask(address, batch)), (process.pid,))
            finally:
                process.terminate()


async def _ask(address: str, batch: RequestBatch) -> list[Trace]:
    """Submit all prompts over one connection; times are those at which the client has the tokens."""

    async def collect(clock: Clock, index: int, generation: Generation) -> None:
        async for delta in generation:
            clock.add(index, delta.token_ids)

    async with EngineClient(address) as client:
        await client.wait_connected()
        clock = Clock(len(batch.prompts))
        generations = [client.generate(prompt, _greedy(batch.new_tokens)) for prompt in batch.prompts]
        await asyncio.gather(*(collect(clock, index, each) for index, each in enumerate(generations)))
    return clock.traces


def _blocks(setup: SubjectSetup) -> int:
    """Return the KV blocks for all requests at once, and the one more per request that admission asks for."""
    return setup.requests * (math.ceil(setup.tokens / BLOCK_SIZE) + 1)


def _compression(setup: SubjectSetup) -> dict[str, Any]:
    """Return the formats of fewer bits: arguments of `Precision`, and options of `engine.server` of the same names."""
    arguments = {"quantize": setup.precision} if setup.precision in ("int8", "int4") else {}
    return arguments if setup.kv_dtype == "auto" else {**arguments, "kv_dtype": setup.kv_dtype}


def _greedy(new_tokens: int) -> SamplingParams:
    return SamplingParams(max_tokens=new_tokens, temperature=0.0, ignore_eos=True)
