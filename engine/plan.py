"""A step's contract: the scheduler writes a `StepPlan`, the runner runs it, its handle gives `Sampled` tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import msgspec
import numpy as np
import numpy.typing as npt

from engine.request import Request
from engine.step_times import StepWork
from engine.wire import TokenIdLogprob


class Row(msgspec.Struct, frozen=True, gc=False):
    """One request's share of a step: run its tokens `[start, start + count)`.

    `sample` is true when the row reaches the request's last known token, so that the logits of that position yield the
    next one. Such a row may go on into a `draft`: tokens that are guessed to come next and are run behind the known
    ones, so that one step can confirm several. `request.block_table` already covers all of them.
    """

    request: Request
    start: int
    count: int
    sample: bool
    draft: tuple[int, ...] = ()

    @property
    def tokens(self) -> int:
        """Number of positions that the row runs."""
        return self.count + len(self.draft)

    def with_draft(self, draft: tuple[int, ...]) -> Row:
        """Return the same row with another draft."""
        return Row(self.request, self.start, self.count, self.sample, draft)


@dataclass(frozen=True, slots=True)
class StepPlan:
    """Rows of one step, decodes (count == 1) first, and the requests that lost their blocks to make room for it."""

    rows: list[Row] = field(default_factory=list)
    preempted: list[Request] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.rows)

    @property
    def tokens(self) -> int:
        return sum(row.tokens for row in self.rows)

    @property
    def work(self) -> StepWork:
        """What the step computes; a draft's tokens count as tokens only."""
        prompts = [row for row in self.rows if row.count > 1]
        return StepWork(
            tokens=self.tokens,
            sampled=sum(row.sample for row in self.rows),
            read=sum(row.start + 1 for row in self.rows if row.count == 1),
            pairs=sum(row.count * row.start + row.count * (row.count + 1) // 2 for row in prompts),
            prompts=len(prompts),
        )


class Sampled(msgspec.Struct, frozen=True, gc=False):
    """The runner's result for one row, in the plan's order.

    `tokens` is empty for a row that did not sample; else the confirmed part of its draft and the token after it, with
    one of `logprobs` each if the request asked for them. `prompt_logprobs` holds one entry per prompt position that
    this row ran and whose successor is a prompt token, if the request asked for them: the log-probability of that
    successor.
    """

    tokens: Sequence[int] = ()
    logprobs: Sequence[TokenIdLogprob] | None = None
    prompt_logprobs: list[TokenIdLogprob] | None = None

    def first(self, count: int) -> Sampled:
        """Return the same result with only the first `count` tokens."""
        logprobs = None if self.logprobs is None else self.logprobs[:count]
        return Sampled(self.tokens[:count], logprobs, self.prompt_logprobs)


class TokenMasks(Protocol):
    """Masks of the tokens that rows with a grammar may sample, computed while the model runs the step.

    A row that samples chooses 1 + len(draft) tokens: one behind its known tokens, and one behind each token of its
    draft. Its masks are neighbours in this order. Rows without a grammar have none.
    """

    @property
    def offsets(self) -> Mapping[str, int]:
        """Index of the first mask of each request that has any."""
        ...

    def wait(self) -> npt.NDArray[np.int32]:
        """Return masks [positions, ceil(vocabulary / 32)]: token t is legal if bit t % 32 of word t // 32 is set."""
        ...


class Handle(Protocol):
    """A step that was launched and may still run on the device."""

    def result(self) -> list[Sampled]:
        """Wait for the step and choose its tokens: one `Sampled` per row, in the plan's order. Call it once."""
        ...


class Runner(Protocol):
    """Owns every tensor: weights, KV cache, sampling state. Knows nothing of queues."""

    def launch(self, plan: StepPlan, masks: TokenMasks | None = None) -> Handle:
        """Start one step; `masks` is None if no row has a grammar.

        On a device the step runs while the caller goes on, so that the next one can be prepared meanwhile. Blocks that
        it touches may be reused, and the next step launched, only when `result` has returned.
        """
        ...

    def release(self, request: Request) -> None:
        """Forget per-request state (penalty counts, generators) of a finished or preempted request."""
        ...
