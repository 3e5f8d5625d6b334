"""The interface of every subject's module: `load`, and `convert` where the subject reads a format of its own.

Each runs in a process and a Python environment of its own. Importing this file must need nothing but msgspec.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from typing import Literal

import msgspec

Precision = Literal["fp32", "bf16", "int8", "int4", "stored"]
"""Precision of weights. Below fp32, the subject chooses what it computes in and its KV cache's type. "stored" is what a
GGUF file has."""

PRECISIONS: tuple[Precision, ...] = ("fp32", "bf16", "int8", "int4")
"""Precisions of checkpoints in Hugging Face format."""


class SubjectSetup(msgspec.Struct, frozen=True):
    """What a subject must be able to run."""

    model: str
    """Directory of the checkpoint, or of what the subject has converted it to; a GGUF file if the precision is
    "stored"."""
    precision: Precision
    threads: int
    requests: int
    """Most requests at once."""
    tokens: int
    """Most tokens of one request, prompt and answer together."""
    kv_dtype: str = "auto"
    """Type of our engine's KV cache: a choice of its `--kv-dtype`."""
    adapters: list[str] = []
    """Folders in peft's format, for subjects that serve several of them in one batch."""
    device: str = "cpu"
    random_weights: bool = False
    """Whether the checkpoint is a config.json alone, so that weights are made up on the device."""


class RequestBatch(msgspec.Struct, frozen=True):
    """Requests that arrive together; each gets exactly `new_tokens` greedy tokens."""

    prompts: list[list[int]]
    new_tokens: int
    shared_tokens: int = 0
    """Number of first tokens that are the same in all prompts."""
    adapters: int = 0
    """Number of the setup's adapters in use: request i has adapter i modulo this; 0: none has one."""


class Trace(msgspec.Struct, frozen=True):
    """One request: its tokens and when each arrived, in seconds since all requests were submitted."""

    tokens: list[int]
    times: list[float]


class Subject(msgspec.Struct, frozen=True):
    """A loaded model."""

    run: Callable[[RequestBatch], list[Trace]]
    pids: tuple[int, ...]
    """Ids of the processes whose memory counts."""

    @classmethod
    def here(cls, run: Callable[[RequestBatch], list[Trace]]) -> Subject:
        """Return a model in this process."""
        return cls(run, (os.getpid(),))


class Clock:
    """Collects traces of a batch whose requests are numbered from 0; starts when it is made."""

    def __init__(self, requests: int) -> None:
        self.traces = [Trace([], []) for _ in range(requests)]
        self._begun = time.perf_counter()

    def now(self) -> float:
        return time.perf_counter() - self._begun

    def add(self, request: int, tokens: Sequence[int], at: float | None = None) -> None:
        """Note tokens that a request has gained, by default now."""
        moment = self.now() if at is None else at
        trace = self.traces[request]
        trace.tokens.extend(tokens)
        trace.times.extend(moment for _ in tokens)
