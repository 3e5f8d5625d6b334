"""The neutral events of one turn, from which every endpoint makes its own format.

A turn's stream is: `Routed` (again if another engine takes over), then the answer, then `LimitState`, then exactly one
`Finished`.
The answer is text and calls in any order: `TextDelta`s, and for each call `CallBegun`, `ArgumentsDelta`s and, unless it
was cut off, `CallEnded`. `PromptScored` comes before all of it if the request asked for the prompt's log-probabilities.
What goes wrong before `Routed` is no event but an `ApiError` raised by `Turns.start`, because nothing was streamed yet
and the client can still be given a proper HTTP status.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from msgspec import Struct

from engine.text.processor import SamplingDefaults
from gateway.errors import ApiError
from router.options import Options
from router.replica import Score

CacheOutcome = Literal["hit", "miss", "bypass"]
EndReason = Literal["stop", "length", "content_filter", "cancelled", "error"]
"""Why an answer ended. `content_filter`: a safety rule has ended it."""


class TokenLogprob(Struct, frozen=True):
    """Log-probability of one token and of the most likely alternatives at its position, best first."""

    token: str
    """The token's text; a token that is part of a character shows as U+FFFD, `bytes` is exact."""
    bytes: tuple[int, ...]
    logprob: float
    top: tuple[TokenLogprob, ...] = ()


class TokenUsage(Struct, frozen=True):
    """Token counts of one turn."""

    input_tokens: int = 0
    cached_tokens: int = 0
    """Part of `input_tokens` that came from the prefix cache (all of them on a response-cache hit)."""
    output_tokens: int = 0

    @property
    def total_tokens(self) -> int:
        return self.input_tokens + self.output_tokens


class Routed(Struct, frozen=True, kw_only=True, tag=True):
    """The route of a turn: where it runs and why."""

    tier: str
    model: str
    """Public name of the model or adapter that answers."""
    replica: str
    reason: str
    """Reason in one word, for metrics: `requested`, `complexity`, `fallback` and so on."""
    complexity: float | None
    reasons: tuple[str, ...] = ()
    """Grounds of the decision, for people."""
    probabilities: tuple[float, float, float] | None = None
    """Probability that the small, medium and large tier answer well, where it is known."""
    options: Options = ()
    """What the tiers came to, where one was chosen; of an answer from the cache, when it was written."""
    cache: CacheOutcome = "miss"
    cache_reason: str = ""
    """Reason of the cache's outcome in one word; see docs/caching.md."""
    input_tokens: int = 0
    """Length of the prompt in this model's tokens."""
    service_tier: str = "default"
    """How soon the turn is served, in OpenAI's words."""
    scores: Mapping[str, Score] = {}
    """Scores of the replicas among which this one was chosen, if there were several; of many, the first few."""
    scores_left_out: int = 0
    """Number of the others."""
    base_model: str | None = None
    """Public name of the model that `model` is an adapter of; None if it is no adapter."""
    defaults: SamplingDefaults = SamplingDefaults()
    """Sampling parameters of the model where the request names none."""


class Replayed(Struct, frozen=True):
    """The text of an answer that was given before, with the borders of its deltas; before or between deltas."""

    text: str
    lengths: tuple[int, ...]
    """Number of characters of each delta."""
    token_ids: tuple[int, ...] = ()
    token_counts: tuple[int, ...] = ()
    """Number of token ids of each delta."""


class PromptScored(Struct, frozen=True, tag=True):
    """Log-probabilities of the prompt's tokens; None for the first one, which nothing precedes."""

    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprob | None, ...]


class TextDelta(Struct, frozen=True):
    """Text gained. All deltas of a message together are its text; those that wait for a slow viewer arrive merged."""

    text: str
    token_ids: tuple[int, ...] = ()
    """Tokens behind the text. They may be ahead of it: characters and stop strings are held back until they are
    whole."""
    logprobs: tuple[TokenLogprob, ...] = ()


class CallBegun(Struct, frozen=True):
    """The model calls a function of the client's. A message that was under way has ended."""

    id: str
    """Id of the call, to which the client answers."""
    name: str


class ArgumentsDelta(Struct, frozen=True):
    """A part of a call's arguments, which are JSON."""

    text: str
    token_ids: tuple[int, ...] = ()
    """Tokens that came with the delta, those of the call's surroundings included."""


class CallEnded(Struct, frozen=True):
    """All arguments of the call have come."""

    complete: bool
    """Whether the arguments are a JSON object."""


class LimitReading(Struct, frozen=True):
    """One limit of one subject."""

    name: str
    """Name of the limit, a field of `gateway.records.quota.Quota`."""
    subject: str
    """Subject of the limit: `tenant`, or such as `key:ci` or `model:llama-7b`."""
    limit: int
    """The limit: requests or tokens that may be used at once, turns, or micro-dollars."""
    remaining: int
    reset_seconds: float
    """Seconds until nothing is used any more, if nothing is running; 0 where only the end of turns helps."""
    warning: bool = False
    """Whether the soft limit is crossed."""


class LimitState(Struct, frozen=True, tag=True):
    """The limits after a turn was settled: the limit of each kind of which least is left."""

    readings: tuple[LimitReading, ...] = ()

    @property
    def tokens(self) -> LimitReading | None:
        """The limit of input or output tokens, whichever has less left."""
        found = [reading for reading in self.readings if reading.name.endswith("_tokens_per_minute")]
        return min(found, key=lambda reading: reading.remaining, default=None)


class Finished(Struct, frozen=True, tag=True):
    """The end of the turn; always the last event."""

    reason: EndReason
    usage: TokenUsage
    """Usage of everything that was computed."""
    error: ApiError | None = None
    """Error, with the reason "error"."""
    cost: int | None = None
    """Cost in micro-dollars, rounded up; None if the model has no price."""
    stop: str | None = None
    """The stop string that ended the answer, if one did."""


AnswerEvent = TextDelta | Replayed | CallBegun | ArgumentsDelta | CallEnded
TurnEvent = Routed | PromptScored | AnswerEvent | LimitState | Finished
