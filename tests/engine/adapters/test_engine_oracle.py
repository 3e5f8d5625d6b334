"""A whole engine with real adapters that come and go: every answer is peft's with that adapter alone."""

from __future__ import annotations

import contextlib
import random
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from engine.adapters.manifest import Manifest
from engine.adapters.residency import ResidencyConfig
from engine.core import EngineCore, EngineFeatures, SchedulerConfig
from engine.execution.runner import ModelRunner
from engine.plan import Handle, StepPlan, TokenMasks
from engine.request import Request
from engine.wire import Generate, SamplingParams
from tests.engine.adapters.collection import Collection, bank_of
from tests.engine.adapters.conftest import Collections
from tests.engine.checkpoints import random_prompt
from tests.engine.composition import Transcript

TIMEOUT = 60
LONGEST = 40
"""Most new tokens: more than the KV cache can hold for all requests that run."""
SHARED = random_prompt(32, seed=99)
PROMPTS = [SHARED + random_prompt(7, seed=1), SHARED + random_prompt(13, seed=2), random_prompt(3), random_prompt(20)]


@dataclass
class Versions:
    """A collection's adapters by the digest of their content, as a registry has them."""

    collection: Collection
    kinds: list[str]

    def __post_init__(self) -> None:
        self.kind_of = {self.collection.manifest(kind).version: kind for kind in self.kinds}

    def manifest(self, version: str) -> Manifest:
        return self.collection.manifest(self.kind_of[version])

    def path(self, version: str) -> Path:
        return self.collection.path(self.kind_of[version])


class Watched:
    """A runner that notes what its steps were made of."""

    def __init__(self, runner: ModelRunner) -> None:
        self._runner = runner
        self.distinct: set[int] = set()
        self.chunks = 0

    def launch(self, plan: StepPlan, masks: TokenMasks | None = None) -> Handle:
        self.distinct.add(len({row.request.adapter for row in plan.rows}))
        self.chunks += sum(row.count > 1 and not row.sample for row in plan.rows)
        return self._runner.launch(plan, masks)

    def release(self, request: Request) -> None:
        self._runner.release(request)


KINDS = {
    "llama": ["rank 1", "rank 8", "rank 16", "dora", "patterns", "only down_proj", "embeddings and head"],
    "mixtral": ["mixtral attention", "experts", "experts patterns", "router", "listed outputs"],
}


def assert_equal_peft_s(
    collection: Collection,
    asked: Mapping[str, tuple[str | None, list[int], int]],
    heard: Mapping[str, Transcript],
    cancelled: set[str],
) -> None:
    """Args: asked: kind of adapter, prompt and number of tokens of each request."""
    said: dict[tuple[str | None, tuple[int, ...]], list[int]] = {}
    for id, (kind, prompt, _) in asked.items():
        said[kind, tuple(prompt)] = max(said.get((kind, tuple(prompt)), []), heard[id].tokens, key=len)
    right = {(kind, prompt): collection.most_likely(kind, [*prompt], tokens) for (kind, prompt), tokens in said.items()}
    for id, (kind, prompt, count) in asked.items():
        expected, told = right[kind, tuple(prompt)], heard[id]
        assert told.finish == "length" or (told.finish == "cancelled" and id in cancelled)
        assert told.tokens == expected[: len(told.tokens)], f"{id}: {kind}"
        assert len(told.tokens) == count or id in cancelled


@pytest.mark.parametrize(
    ("architecture", "seed"), [("llama", 0), pytest.param("llama", 1, marks=pytest.mark.deep), ("mixtral", 2)]
)
def test_every_answer_equals_peft_s_whatever_happens_around_it(
    collections: Collections, device: str, architecture: str, seed: int
) -> None:
    """Mixed batches with prefix hits, chunks, preemption and cancellation, while names move to other versions."""
    versions = Versions(collections(architecture), KINDS[architecture])
    runner = ModelRunner(versions.collection.base, blocks=44, device=device, adapters=versions)
    watched = Watched(runner)
    core = EngineCore(
        watched,
        runner.info,
        SchedulerConfig(44, step_tokens=24, max_running=8),
        EngineFeatures(
            bank=bank_of(runner),
            residency=ResidencyConfig(share=0.6, wait=0.05, host_bytes=40 * bank_of(runner).sector_bytes),
        ),
    )
    woken = threading.Semaphore(0)
    core.wake = woken.release
    generator = random.Random(seed)
    names = dict.fromkeys("abc", "")
    asked: dict[str, tuple[str | None, list[int], int]] = {}
    heard: dict[str, Transcript] = {}
    cancelled: set[str] = set()
    with contextlib.closing(core):
        step, asking = 0, True
        while asking or not core.idle:
            step += 1
            # How many steps it takes until adapters have made room for others, the time of their loads decides.
            asking = step < 120 or (step < 1200 and core.load().adapter_evictions < 3)
            if step % 10 == 1:
                names[generator.choice("abc")] = generator.choice(list(versions.kind_of))
            if asking and generator.random() < 0.6:
                version = generator.choice([*names.values(), None]) or None
                prompt = generator.choice(PROMPTS)
                count = generator.choice([4, 8, LONGEST])
                sampling = SamplingParams(max_tokens=count, temperature=0.0, ignore_eos=True)
                core.add(Generate(str(step), prompt, sampling, adapter=version, tenant=str(step % 3)))
                asked[str(step)] = None if version is None else versions.kind_of[version], prompt, count
                heard[str(step)] = Transcript()
            if generator.random() < 0.05 and asked:
                cancelled.add(generator.choice(list(asked)))
                core.cancel(max(cancelled, key=int))
            if core.stalled or (core.resident_adapters == () and step > 10):
                woken.acquire(timeout=TIMEOUT if core.stalled else 0.1)
            for output in core.step():
                heard[output.id].add(output)
        core.check_integrity()
        load = core.load()
    assert_equal_peft_s(versions.collection, asked, heard, cancelled)
    assert max(watched.distinct) >= 3
    assert watched.chunks > 0
    assert load.adapter_evictions >= 3
    assert load.prefix_hit_tokens > 0
    assert load.preemptions > 0
    assert cancelled
