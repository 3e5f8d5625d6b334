"""A runner without a model whose KV cache is a ledger: every cell records which token was written at which position.

Before it samples it reads the request's whole history back through its block table, so that any fault of the block
bookkeeping (a block freed too early, shared wrongly, written twice, a stale prefix hit) is caught in the step in which
it would have changed an answer. The next token is a digest of that history: a wrong history cannot go unnoticed.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from dataclasses import dataclass

from engine.cache.blocks import BLOCK_SIZE
from engine.plan import Handle, Row, Sampled, StepPlan, TokenMasks
from engine.request import Request
from engine.speculation.verification import confirmed
from engine.wire import ModelInfo, TokenIdLogprob

VOCABULARY = 50
EOS = 49


def model_info(context: int = 256, eos: tuple[int, ...] = (EOS,), **overrides: object) -> ModelInfo:
    fields = {
        "name": "ledger",
        "revision": "r1",
        "context": context,
        "vocabulary": VOCABULARY,
        "eos_token_ids": eos,
        "block_size": BLOCK_SIZE,
        "device": "cpu",
        "dtype": "float32",
    }
    return ModelInfo(**(fields | overrides))  # type: ignore[arg-type]


def next_token(tokens: Sequence[int], adapter: str | None = None) -> int:
    """Return the ledger's "model" output: a token that depends on all tokens before it, and on the adapter."""
    packed = struct.pack(f"<{len(tokens)}I", *tokens) + (adapter or "").encode()
    digest = hashlib.blake2b(packed, digest_size=4).digest()
    return int.from_bytes(digest, "little") % VOCABULARY


def expected_output(prompt: Sequence[int], count: int, adapter: str | None = None) -> list[int]:
    """`count` tokens after `prompt`, end-of-sequence tokens ignored."""
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(next_token(tokens, adapter))
    return tokens[len(prompt) :]


@dataclass(frozen=True)
class Done:
    """The handle of a step that has already run when it is launched."""

    results: list[Sampled]

    def result(self) -> list[Sampled]:
        return self.results


class LedgerRunner:
    def __init__(self, blocks: int) -> None:
        self.cells: list[tuple[object, ...] | None] = [None] * (blocks * BLOCK_SIZE)
        """Contents of each cell: token, position and adapter."""
        self.step_tokens: list[int] = []
        """Number of tokens of every step that ran."""
        self.released: list[str] = []

    def launch(self, plan: StepPlan, masks: TokenMasks | None = None) -> Handle:
        assert masks is None
        return Done(self.execute(plan))

    def execute(self, plan: StepPlan) -> list[Sampled]:
        """Run a step at once."""
        self.step_tokens.append(plan.tokens)
        written: set[int] = set()
        for row in plan.rows:
            for position in range(row.start, row.start + row.tokens):
                cell = self._cell(row.request, position)
                assert cell not in written, "two rows write the same cell"
                written.add(cell)
                self.cells[cell] = (self._tokens(row)[position], position, row.request.adapter)
        return [self._sample(row) for row in plan.rows]

    def release(self, request: Request) -> None:
        self.released.append(request.id)

    def _sample(self, row: Row) -> Sampled:
        request, start, end = row.request, row.start, row.start + row.count
        history = self._tokens(row)
        read = [self.cells[self._cell(request, position)] for position in range(len(history))]
        expected = [(token, position, request.adapter) for position, token in enumerate(history)]
        assert read == expected, "the KV cache was corrupted"
        prompt_logprobs = None
        if request.sampling.prompt_logprobs is not None:
            successors = request.prompt[start + 1 : end + 1]
            prompt_logprobs = [TokenIdLogprob(token, -float(start + 1 + i)) for i, token in enumerate(successors)]
        if not row.sample:
            return Sampled(prompt_logprobs=prompt_logprobs)
        drawn = [next_token(history[: end + ahead], request.adapter) for ahead in range(1 + len(row.draft))]
        tokens = drawn[: 1 + confirmed(row.draft, drawn)]
        logprobs = [TokenIdLogprob(token, -1.0) for token in tokens] if request.sampling.logprobs is not None else None
        return Sampled(tokens, logprobs, prompt_logprobs)

    @staticmethod
    def _tokens(row: Row) -> list[int]:
        """All tokens up to the row's last one."""
        return [*row.request.tokens(0, row.start + row.count), *row.draft]

    @staticmethod
    def _cell(request: Request, position: int) -> int:
        return request.block_table[position // BLOCK_SIZE] * BLOCK_SIZE + position % BLOCK_SIZE
