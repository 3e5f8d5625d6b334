"""One request inside an engine: its parameters, its progress, and the states that it passes through."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from engine.cache.blocks import PrefixMatch
from engine.wire import ErrorKind, FinishReason, Grammar, SamplingParams, ServiceClass


class RequestError(Exception):
    """A request that the engine refuses; the message names the field and the remedy."""

    def __init__(
        self,
        reason: str,
        kind: ErrorKind = "invalid",
        retry_after: float | None = None,
        *,
        field: str | None = None,
    ) -> None:
        """Args: field: what is wrong; the message begins with it."""
        super().__init__(reason if field is None else f"{field}: {reason}")
        self.kind = kind
        self.field = field
        self.retry_after = retry_after
        """Seconds after which an overloaded engine expects to take the request."""


class GrammarError(RequestError):
    """A request whose grammar the engine cannot follow, whether it is wrong, too costly or cannot be compiled now."""

    def __init__(self, reason: str, kind: ErrorKind = "invalid") -> None:
        super().__init__(reason, kind, field="grammar")


class TokenMatcher(Protocol):
    """A request's position in its grammar; `engine.grammar.matcher.Matcher` documents the methods."""

    @property
    def finished(self) -> bool: ...

    @property
    def complete(self) -> bool: ...

    @property
    def error(self) -> str | None: ...

    def consume(self, token: int) -> None: ...

    def truncate_draft(self, draft: Sequence[int]) -> list[int]: ...


class State(enum.Enum):
    """States of a request: WAITING -> RUNNING -> FINISHED, RUNNING -> WAITING when preempted; anything else raises."""

    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


_ALLOWED = {
    (State.WAITING, State.RUNNING),
    (State.WAITING, State.FINISHED),
    (State.RUNNING, State.WAITING),
    (State.RUNNING, State.FINISHED),
}


@dataclass(eq=False, slots=True)
class Request:
    """A request and its progress.

    Tokens `[0, computed)` have their KV in the blocks of `block_table`; tokens `[computed, length)` still have to be
    run. When `computed == length - 1` and the last token was sampled, the request decodes.
    """

    id: str
    prompt: list[int]
    sampling: SamplingParams
    arrival: float
    """Time of arrival on the engine's monotonic clock, in seconds."""
    adapter: str | None = None
    tenant: str = ""
    weight: float = 1.0
    service: ServiceClass = "standard"
    grammar: Grammar | None = None
    queue_timeout: float | None = None
    timeout: float | None = None
    speculate: bool = True
    matcher: TokenMatcher | None = None
    """Position of the output in the request's grammar, if it has one; it survives preemptions."""

    state: State = State.WAITING
    output: list[int] = field(default_factory=list)
    resumed: int = 0
    """Number of the output's first tokens that another engine said: they came with the request."""
    computed: int = 0
    cached: int = 0
    """Prompt tokens whose KV came from the prefix cache at first admission."""
    block_table: list[int] = field(default_factory=list)
    chain_root: bytes = b""
    """Root of this request's block hashes: names all that its KV depends on beside its tokens."""
    block_hashes: list[bytes] = field(default_factory=list)
    """Chain hashes of this request's full blocks, computed as far as they were needed."""
    prefix_match: PrefixMatch | None = None
    """Cached part of these blocks at the last look-up, while the request waits."""
    rank: tuple[float, int] = (0.0, 0)
    """Position in the waiting line, smallest first; set by the scheduler and kept through preemptions."""
    prompt_logprobs_sent: int = 0
    """Number of prompt log-probabilities that the client has, so that a preemption does not repeat them."""
    preemptions: int = 0
    load: object | None = None
    """Load that brings the request's prefix back from host memory; until it has ended the request gets no row."""
    reserved_blocks: int = 0
    """KV blocks kept from admission to end for a request that may not be preempted any more."""
    work: int = 0
    """Tokens, prompt and output, that the request is expected to need from its last (re)arrival in the queue on."""
    first_scheduled: float | None = None
    finish: FinishReason | None = None
    plain: bool = field(init=False)
    """Whether the request takes the likeliest tokens and asks nothing else of the sampler."""

    def __post_init__(self) -> None:
        sampling = self.sampling
        penalties = (sampling.repetition_penalty, sampling.presence_penalty, sampling.frequency_penalty)
        wanted = (sampling.logprobs, sampling.prompt_logprobs)
        self.plain = (
            sampling.temperature == 0
            and sampling.min_tokens == 0
            and not sampling.logit_bias
            and penalties == (1, 0, 0)
            and wanted == (None, None)
            and self.grammar is None
        )

    @property
    def holder(self) -> int:
        """Number by which the pool of KV blocks knows the request."""
        return self.rank[1]

    @property
    def length(self) -> int:
        """Number of tokens known so far: prompt and output."""
        return len(self.prompt) + len(self.output)

    @property
    def uncomputed(self) -> int:
        return len(self.prompt) + len(self.output) - self.computed

    def tokens(self, start: int, end: int) -> list[int]:
        """Token ids of positions `[start, end)` over prompt and output."""
        prompt = len(self.prompt)
        if end <= prompt:
            return self.prompt[start:end]
        if start >= prompt:
            return self.output[start - prompt : end - prompt]
        return self.prompt[start:] + self.output[: end - prompt]

    def move_to(self, state: State) -> None:
        if (self.state, state) not in _ALLOWED:
            raise RuntimeError(f"request {self.id}: illegal transition {self.state.value} -> {state.value}")
        self.state = state
