"""A checkpoint with adapters of every kind for its architecture, and peft's answers with them as an oracle."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch

from engine.adapters.bank import AdapterBank
from engine.adapters.format import check_adapter
from engine.adapters.manifest import Manifest
from engine.execution.precision import Dtype, Precision
from engine.execution.runner import ModelRunner
from engine.request import Request
from tests.engine.adapters.zoo import ZOO, peft_greedy, peft_logits, write_adapter
from tests.engine.checkpoints import oracle_greedy, oracle_logits
from tests.engine.driver import request

BLOCKS, LENT = 400, 2000
"""Blocks for KV, and blocks behind them for adapters."""


class Folders(Mapping[str, Path]):
    """Adapters of every kind for an architecture, each written when it is first asked for."""

    def __init__(self, base: Path, architecture: str, folder: Path) -> None:
        self._base, self._folder = base, folder
        self._kinds = [name for name, kind in ZOO.items() if kind.architecture == architecture]
        self._written: dict[str, Path] = {}

    def __getitem__(self, kind: str) -> Path:
        if kind not in self._written:
            seed = self._kinds.index(kind)
            self._written[kind] = write_adapter(self._folder / str(seed), self._base, kind, seed=seed)
        return self._written[kind]

    def __iter__(self) -> Iterator[str]:
        return iter(self._kinds)

    def __len__(self) -> int:
        return len(self._kinds)


@dataclass
class Collection:
    """Adapters by kind, which is their version here; an `engine.adapters.bank.AdapterSource`."""

    base: Path
    folders: Mapping[str, Path]
    manifests: dict[str, Manifest] = field(default_factory=dict)

    @classmethod
    def of_everything(cls, base: Path, architecture: str, folder: Path) -> Collection:
        return cls(base, Folders(base, architecture, folder))

    def manifest(self, version: str) -> Manifest:
        if version not in self.manifests:
            self.manifests[version] = check_adapter(self.folders[version], self.base)
        return self.manifests[version]

    def path(self, version: str) -> Path:
        return self.folders[version]

    def runner(self, *kinds: str, device: str = "cpu", dtype: Dtype = "auto") -> ModelRunner:
        """Return a runner with these adapters installed in the last blocks, the last one first."""
        runner = ModelRunner(self.base, blocks=BLOCKS + LENT, device=device, precision=Precision(dtype), adapters=self)
        free = iter(range(BLOCKS + LENT - 1, BLOCKS - 1, -1))
        for kind in kinds:
            bank = bank_of(runner)
            bank.install(kind, [next(free) for _ in range(bank.prepare(kind))])
        return runner

    def logits(self, kind: str | None, tokens: list[int]) -> torch.Tensor:
        """Return the oracle's logits of every position."""
        if kind is None:
            return oracle_logits(self.base, tokens)
        return peft_logits(self.base, self.folders[kind], tokens)

    def most_likely(self, kind: str | None, prompt: list[int], said: list[int]) -> list[int]:
        """Return the oracle's token after the prompt and each beginning of `said`: the same, if that is greedy."""
        return self.logits(kind, [*prompt, *said])[len(prompt) - 1 : -1].argmax(-1).tolist()

    def greedy(self, kind: str | None, prompt: list[int], new_tokens: int) -> list[int]:
        """Return the oracle's answer."""
        if kind is None:
            return oracle_greedy(self.base, prompt, new_tokens)
        return peft_greedy(self.base, self.folders[kind], prompt, new_tokens)

    def mixture(self) -> list[str | None]:
        """Return all kinds, every third one twice, and base rows between them."""
        kinds: list[str | None] = []
        for index, kind in enumerate(self.folders):
            kinds += [kind, *([kind, None] if index % 3 == 0 else [])]
        return kinds


def bank_of(runner: ModelRunner) -> AdapterBank:
    assert runner.bank is not None
    return runner.bank


def ask(kind: str | None, prompt: list[int], **sampling: object) -> Request:
    """Return a greedy request with an adapter."""
    one = request(prompt, str(kind), **sampling)
    one.adapter = kind
    return one
