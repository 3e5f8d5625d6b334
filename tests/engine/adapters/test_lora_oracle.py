"""Every kind of adapter in a mixed batch gives what peft gives with that adapter alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch

from engine.adapters.bank import AdapterBank
from engine.adapters.format import check_adapter
from engine.adapters.manifest import Manifest
from engine.plan import Sampled
from engine.request import Request
from engine.runner import Dtype, ModelRunner
from tests.engine.adapters.zoo import ZOO, peft_greedy, peft_logits, write_adapter
from tests.engine.checkpoints import VOCABULARY, oracle_greedy, oracle_logits, random_prompt
from tests.engine.conftest import Checkpoint
from tests.engine.driver import drive, request, tokens_of
from tests.engine.test_model import distribution

ARCHITECTURES = sorted({kind.architecture for kind in ZOO.values()})
NEW_TOKENS = 8
LENGTHS = (30, 1, 17, 45, 16, 9)
BLOCKS, LENT = 400, 2000
"""For KV, and behind them for adapters."""


@dataclass
class House:
    """A checkpoint and adapters of every kind for its architecture."""

    directory: Path
    folders: dict[str, Path]
    """By kind, as versions are here."""
    manifests: dict[str, Manifest] = field(default_factory=dict)

    def manifest(self, version: str) -> Manifest:
        if version not in self.manifests:
            self.manifests[version] = check_adapter(self.folders[version], self.directory)
        return self.manifests[version]

    def path(self, version: str) -> Path:
        return self.folders[version]

    def runner(self, device: str = "cpu", dtype: Dtype = "auto") -> ModelRunner:
        """With all adapters installed, in the last blocks."""
        runner = ModelRunner(self.directory, blocks=BLOCKS + LENT, device=device, dtype=dtype, adapters=self)
        free = iter(range(BLOCKS + LENT - 1, BLOCKS - 1, -1))
        for version in self.folders:
            bank = bank_of(runner)
            bank.install(version, [next(free) for _ in range(bank.prepare(version))])
        return runner

    def logits(self, kind: str | None, tokens: list[int]) -> torch.Tensor:
        if kind is None:
            return oracle_logits(self.directory, tokens)
        return peft_logits(self.directory, self.folders[kind], tokens)

    def greedy(self, kind: str | None, prompt: list[int]) -> list[int]:
        if kind is None:
            return oracle_greedy(self.directory, prompt, NEW_TOKENS)
        return peft_greedy(self.directory, self.folders[kind], prompt, NEW_TOKENS)

    def mixture(self) -> list[str | None]:
        """All kinds, every third with company of its own, and base rows between."""
        kinds: list[str | None] = []
        for index, kind in enumerate(self.folders):
            kinds += [kind, *([kind, None] if index % 3 == 0 else [])]
        return kinds


def bank_of(runner: ModelRunner) -> AdapterBank:
    assert runner.bank is not None
    return runner.bank


def ask(kind: str | None, prompt: list[int], **sampling: object) -> Request:
    one = request(prompt, str(kind), **sampling)
    one.adapter = kind
    return one


def logprobs(given: list[Sampled]) -> torch.Tensor:
    """Of every position, [tokens, VOCABULARY]."""
    entries = [entry for sampled in given for entry in sampled.prompt_logprobs or []]
    (last,) = given[-1].logprobs or ()
    return torch.stack([distribution(entry) for entry in [*entries, last]])


Houses = Callable[[str], House]


@pytest.fixture(scope="module")
def houses(checkpoint: Checkpoint, tmp_path_factory: pytest.TempPathFactory) -> Houses:
    built: dict[str, House] = {}

    def get(architecture: str) -> House:
        if architecture not in built:
            directory = checkpoint(architecture)
            folder = tmp_path_factory.mktemp("adapters")
            kinds = [name for name, kind in ZOO.items() if kind.architecture == architecture]
            folders = {
                name: write_adapter(folder / str(seed), directory, name, seed=seed) for seed, name in enumerate(kinds)
            }
            built[architecture] = House(directory, folders)
        return built[architecture]

    return get


@pytest.fixture(params=ARCHITECTURES)
def house(request: pytest.FixtureRequest, houses: Houses) -> House:
    return houses(request.param)


@pytest.mark.parametrize("chunk", [None, 0], ids=["whole", "random chunks"])
def test_logprobs_of_a_mixed_batch_equal_peft(house: House, device: str, chunk: int | None) -> None:
    kinds = house.mixture()
    prompts = [random_prompt(LENGTHS[index % len(LENGTHS)], index) for index in range(len(kinds))]
    requests = [
        ask(kind, prompt, max_tokens=1, prompt_logprobs=VOCABULARY, logprobs=VOCABULARY)
        for kind, prompt in zip(kinds, prompts, strict=True)
    ]
    given = drive(house.runner(device), requests, chunk=chunk, blocks=BLOCKS)
    for kind, prompt, rows in zip(kinds, prompts, given, strict=True):
        theirs = house.logits(kind, prompt).log_softmax(-1)
        torch.testing.assert_close(
            logprobs(rows), theirs, rtol=0, atol=1e-4, msg=lambda text, kind=kind: f"{kind}: {text}"
        )


def test_greedy_tokens_of_a_mixed_batch_equal_peft(house: House, device: str) -> None:
    kinds = house.mixture()
    prompts = [random_prompt(LENGTHS[index % len(LENGTHS)], index) for index in range(len(kinds))]
    requests = [ask(kind, prompt, max_tokens=NEW_TOKENS) for kind, prompt in zip(kinds, prompts, strict=True)]
    given = dict(enumerate(tokens_of(house.runner(device), requests, chunk=0, blocks=BLOCKS)))
    assert given == {index: house.greedy(kind, prompts[index]) for index, kind in enumerate(kinds)}
