"""Many registered adapters of which few fit: zipf traffic over the wire, every answer peft's."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from engine.adapters.registry import AdapterRegistry
from engine.adapters.residency import ResidencyConfig
from engine.client.engine_client import EngineClient
from engine.core import EngineCore, EngineFeatures, SchedulerConfig
from engine.execution.runner import ModelRunner
from engine.server.host import EngineServer
from engine.wire import SamplingParams
from tests.engine.adapters.zoo import peft_greedy, write_adapter
from tests.engine.checkpoints import oracle_greedy, random_prompt
from tests.engine.peers import TIMEOUT

pytestmark = pytest.mark.anyio

ADAPTERS, FIT, IN_HOST, BLOCKS, REQUESTS, NEW_TOKENS = 24, 4, 9, 28, 90, 5


@pytest.fixture(scope="module")
def folders(base: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("many")
    return [write_adapter(folder / str(seed), base, "only q_proj", seed=seed) for seed in range(ADAPTERS)]


@pytest.fixture(scope="module")
def registry(
    folders: list[Path], base: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[AdapterRegistry, list[str]]:
    registry = AdapterRegistry(str(tmp_path_factory.mktemp("registry")))
    return registry, [registry.add(folder, base).version for folder in folders]


@pytest.fixture
async def engine(
    base: Path, registry: tuple[AdapterRegistry, list[str]], tmp_path: Path
) -> AsyncIterator[EngineClient]:
    runner = ModelRunner(base, blocks=BLOCKS, adapters=registry[0])
    assert runner.bank is not None
    core = EngineCore(
        runner,
        runner.info,
        SchedulerConfig(BLOCKS, step_tokens=32, max_running=12),
        EngineFeatures(
            bank=runner.bank,
            residency=ResidencyConfig(
                share=FIT / BLOCKS,
                host_bytes=IN_HOST * runner.bank.sector_bytes,
                step_bytes=3 * runner.bank.sector_bytes,
            ),
        ),
    )
    async with EngineServer(core).listening(f"unix://{tmp_path}/socket") as address, EngineClient(address) as client:
        await client.wait_connected()
        yield client
    core.check_integrity()
    core.close()
    assert core._scheduler.adapters.residency.host_bytes <= IN_HOST * runner.bank.sector_bytes


async def test_every_adapter_is_served_although_few_fit(
    engine: EngineClient, registry: tuple[AdapterRegistry, list[str]], folders: list[Path], base: Path
) -> None:
    versions = registry[1]
    generator = random.Random(1)
    weights = [1 / (1 + index) for index in range(ADAPTERS)]
    numbers = generator.choices(range(ADAPTERS), weights, k=REQUESTS - ADAPTERS) + list(range(ADAPTERS))
    generator.shuffle(numbers)
    asked = iter([*numbers, None, None])
    answers: dict[int | None, set[tuple[int, ...]]] = {}
    sampling = SamplingParams(max_tokens=NEW_TOKENS, temperature=0.0, ignore_eos=True)

    async def ask() -> None:
        for number in asked:
            adapter = None if number is None else versions[number]
            tokens: list[int] = []
            async for delta in engine.generate(prompt_of(number), sampling, adapter=adapter):
                tokens += delta.token_ids
            answers.setdefault(number, set()).add(tuple(tokens))

    async with asyncio.timeout(4 * TIMEOUT):
        await asyncio.gather(*(ask() for _ in range(16)))
    expected = {
        number: {tuple(peft_greedy(base, folder, prompt_of(number), NEW_TOKENS))}
        for number, folder in enumerate(folders)
    }
    assert answers == expected | {None: {tuple(oracle_greedy(base, prompt_of(None), NEW_TOKENS))}}
    load = engine.load
    assert load is not None
    assert load.adapter_loads >= ADAPTERS
    assert load.adapter_evictions >= ADAPTERS - FIT
    assert load.lent_blocks <= FIT


def prompt_of(number: int | None) -> list[int]:
    return random_prompt(5 + (number or 0) % 30, seed=number or 0)
