"""Compiles a grammar on trial, in a process that may die of it.

llguidance's own limits do not bound how long a compilation takes: a multiple of eight digits takes minutes.
"""

from __future__ import annotations

import msgspec

from engine.limited_process import LimitedProcess, LimitExceeded, ProcessLimits


class TrialSetup(msgspec.Struct, frozen=True, array_like=True):
    """What a worker needs to know of a checkpoint."""

    path: str
    vocabulary: int
    eos_token_ids: tuple[int, ...]


class GrammarVerdict(msgspec.Struct, frozen=True, array_like=True):
    """Errors of a grammar, and the parts of it that would not be enforced."""

    error: str | None = None
    warnings: tuple[str, ...] = ()


class TrialFailed(Exception):
    """A grammar cost more than it may; the message says what."""


class TrialWorker(LimitedProcess):
    """A process that runs `worker.py`."""

    def __init__(self, setup: TrialSetup, limits: ProcessLimits) -> None:
        super().__init__("engine.grammar.worker", msgspec.msgpack.encode(setup), limits)

    def judge(self, source: str) -> GrammarVerdict:
        """Compile `source`, in llguidance's notation.

        Raises:
            TrialFailed: the process did not survive it.
            OSError: the process cannot be started, or was ended by something else.
        """
        try:
            return msgspec.msgpack.decode(self.ask(source.encode()), type=GrammarVerdict)
        except LimitExceeded as error:
            raise TrialFailed(f"takes {error} to compile") from error
