"""What a gateway has to know of a kind of server in order to have it answer conversations. Data, no I/O."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Protocol

from msgspec import Meta, Struct

from engine.client.conversation import ChatPromptMessage, ChatTool, TextLogprob
from engine.wire import FinishReason, Grammar, GrammarKind
from gateway.upstreams.dialect import Parameter, ServerDialect, UpstreamError

TokenCount = Annotated[int, Meta(ge=0, le=2**31)]
"""A number of tokens that a server may tell."""


class CallFragment(Struct, frozen=True):
    """A part of a call. One that has a name begins a call, unless it repeats that of the call with its number."""

    index: int
    """Number of the call in the answer."""
    name: str | None = None
    arguments: str = ""


class ServerUsage(Struct, frozen=True):
    """What a server has counted so far; None: it has not said."""

    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens: int | None = None


class MessageChunk(Struct, frozen=True):
    """What one event of a server's stream says of an answer."""

    text: str = ""
    reasoning: str = ""
    """What the model thinks before it answers, where the server keeps that apart."""
    calls: Sequence[CallFragment] = ()
    logprobs: Sequence[TextLogprob] = ()
    """Log-probabilities of the chunk's tokens, whether or not they were asked for."""
    finish: FinishReason | None = None
    filtered: bool = False
    """Whether the server has ended the answer because of what it says."""
    usage: ServerUsage | None = None
    error: UpstreamError | None = None


class MessageEvent(Protocol):
    """A typed event of a server's stream."""

    def chunk(self) -> MessageChunk:
        """Return what it says."""


class WriteChoice(Protocol):
    """Writes what becomes of functions."""

    def __call__(self, tools: Sequence[ChatTool], *, must_call: bool, parallel: bool) -> Mapping[str, Any]:
        """Return the fields."""


class ToolDialect(Struct, frozen=True, kw_only=True):
    """How a kind of server is told of functions."""

    tools: Callable[[Sequence[ChatTool]], Mapping[str, Any]]
    """Fields that offer functions."""
    choice: WriteChoice
    """Fields that say whether one of them has to be called, and whether there may be several calls."""
    must_call: bool = True
    """Whether a call can be required."""
    one_call: bool = True
    """Whether several calls can be ruled out."""
    strict: bool = False
    """Whether arguments can be held to their schema."""
    with_format: bool = True
    """Whether an answer may have functions and a format."""


class MessageDialect(ServerDialect, frozen=True, kw_only=True):
    """The protocol of a kind of server that answers conversations."""

    served: Callable[..., Mapping[str, str]]
    """Reads the bodies at `about`: the models that the server has by name, each with a text that changes with it, as
    far as the server tells. Raises `msgspec.MsgspecError` or `ValueError` if they make no sense."""
    is_listed: Callable[[str, str], bool] = str.__eq__
    """Whether the model of a name is the one that the server lists under another name."""
    messages: Callable[[Sequence[ChatPromptMessage]], Mapping[str, Any]]
    """Fields that hold the messages."""
    constants: Mapping[str, Any]
    """Fields of every request."""
    max_tokens: str
    """Name of the field with the most output tokens."""
    sampling: Mapping[str, Parameter]
    """Parameters of `engine.wire.SamplingParams` that the server has."""
    neutral: Mapping[str, Any] = {}
    """Values of parameters that are left out, beside those that change nothing."""
    ignored: frozenset[str] = frozenset()
    """Parameters that the server lacks, and that are left out whatever their value."""
    logprobs: Callable[[int], Mapping[str, Any]] | None
    """Fields that ask for the log-probabilities of so many tokens beside the chosen one; None: there are none."""
    most_logprobs: int = 20
    """Most of those tokens."""
    formats: Mapping[GrammarKind, Callable[[Grammar], Mapping[str, Any]]]
    """Fields that ask for an answer in a format; kinds that are not here are refused."""
    tools: ToolDialect
    event: type[MessageEvent]
