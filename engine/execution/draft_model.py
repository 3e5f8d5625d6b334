"""A small model that drafts tokens for a large one.

Its KV cache has a block for every block of the target's and is read through the same block tables, so that prefixes,
preemption and cancellation need no bookkeeping of their own: a request's blocks are its drafts' blocks as well. What
they need is to know how far a request's blocks hold the draft model's KV too. If that were ever wrong a draft would be
worse, and still no token of the answer would change.

Guesses are drawn as the target draws, with the request's own parameters and the same uniform at each position
(`engine.execution.sampling`), so that two models that agree on a distribution also agree on the draw.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from engine.cache.blocks import BLOCK_SIZE
from engine.checkpoint.errors import CheckpointError
from engine.checkpoint.opening import open_checkpoint
from engine.execution.runner import ModelRunner
from engine.plan import Row
from engine.request import Request
from engine.speculation.costs import StepCosts

_CATCH_UP_TOKENS = 512
"""Most tokens of unread texts that the draft model runs per step: further texts wait."""


@dataclass(slots=True)
class _Progress:
    """How much of one request the draft model has run."""

    valid: int
    """Number of tokens, from the first, whose KV the draft model has."""
    guessed: tuple[int, ...] = ()
    """Drafted tokens that were run behind those, and may have been confirmed."""
    named: int = 0
    """Number of blocks whose content is known to be that of their hash."""


class DraftModel:
    """Drafts tokens with a model of its own, whose cost is measured in `costs`."""

    def __init__(self, runner: ModelRunner, clock: Callable[[], float] = time.monotonic) -> None:
        self.costs = StepCosts()
        self.runner = runner
        self._clock = clock
        self._progress: dict[str, _Progress] = {}
        self._content: list[bytes | None] = [None] * runner.blocks
        """Hash of the prefix whose draft-model KV each block holds in full."""

    @classmethod
    def from_directory(cls, directory: Path, target: ModelRunner, target_directory: Path) -> DraftModel:
        """Load the checkpoint of a draft model for a runner and the checkpoint that it runs, with as many bits as that.

        Raises:
            CheckpointError: it cannot be served, or its tokens are not those of the target.
        """
        info = target.info
        runner = ModelRunner(directory, blocks=target.blocks, device=info.device, precision=target.precision)
        mine, other = runner.info.vocabulary, info.vocabulary
        if mine != other:
            raise CheckpointError(f"the draft model has {mine} tokens and the model {other}; choose one of its family")
        if _tokens(directory) != _tokens(target_directory):
            raise CheckpointError("the draft model's tokenizer is not the model's; choose one of its family")
        return cls(runner)

    def limit(self, request: Request) -> int:
        """Return the most tokens that this model can draft for a request."""
        return self.runner.info.context - request.length

    def lag(self, request: Request) -> int:
        """Count known tokens, without the last, that this model has not run yet."""
        return request.length - 1 - self._settle(request).valid

    def propose(self, depths: Mapping[Request, int]) -> dict[str, tuple[int, ...]]:
        """Draft up to so many tokens for each request; requests whose text must be read first get none yet.

        The requests' block tables must cover all drafted tokens but the last.
        """
        guesses: dict[str, tuple[int, ...]] = {}
        rows = []
        budget = _CATCH_UP_TOKENS
        for request in depths:
            progress = self._settle(request)
            count = min(request.length - progress.valid, max(budget, 1))
            budget -= count
            rows.append(Row(request, progress.valid, count, sample=progress.valid + count == request.length))
            progress.valid += count
            self._overwrite(rows[-1])
        while rows:
            begun = self._clock()
            drawing = [row for row in rows if row.sample]
            drafted = [guesses.get(row.request.id, ()) for row in drawing]
            drawn = self.runner.guess(rows, drafted)
            self.costs.observe(sum(row.tokens for row in rows), self._clock() - begun)
            rows = []
            for row, before, token in zip(drawing, drafted, drawn, strict=True):
                request, guess = row.request, (*before, token)
                guesses[request.id] = guess
                if len(guess) < depths[request]:
                    rows.append(Row(request, request.length + len(guess) - 1, 0, sample=True, draft=(token,)))
                    self._overwrite(rows[-1])
        for request in depths:
            self._progress[request.id].guessed = guesses.get(request.id, ())[:-1]
        return guesses

    def release(self, request: Request) -> None:
        """Forget a request that has finished or lost its blocks."""
        self._progress.pop(request.id, None)
        self.runner.release(request)

    def _settle(self, request: Request) -> _Progress:
        """Update a request's progress from the results of its drafts and from the blocks that it was given."""
        progress = self._progress.get(request.id)
        hashes, table = request.block_hashes, request.block_table
        if progress is None:
            shared = 0
            for block, digest in zip(table, hashes, strict=False):
                if self._content[block] != digest:
                    break
                shared += 1
            progress = self._progress[request.id] = _Progress(valid=shared * BLOCK_SIZE, named=shared)
        for token in progress.guessed:
            if request.tokens(progress.valid, progress.valid + 1) != [token]:
                break
            progress.valid += 1
        progress.guessed = ()
        # The last known token always runs: what follows it is wanted.
        progress.valid = min(progress.valid, request.length - 1)
        for index in range(progress.named, min(progress.valid // BLOCK_SIZE, len(hashes))):
            self._content[table[index]] = hashes[index]
            progress.named += 1
        return progress

    def _overwrite(self, row: Row) -> None:
        """Mark the blocks that a row writes to as holding no known prefix, until they are named again."""
        for index in range(row.start // BLOCK_SIZE, -(-(row.start + row.tokens) // BLOCK_SIZE)):
            self._content[row.request.block_table[index]] = None


def _tokens(path: Path) -> dict[str, int] | None:
    """The ids of all tokens; None for a checkpoint without a tokenizer."""
    if path.is_dir() and not (path / "tokenizer.json").is_file():
        return None
    vocabulary: dict[str, int] = open_checkpoint(path).tokenizer().get_vocab(with_added_tokens=True)
    return vocabulary
