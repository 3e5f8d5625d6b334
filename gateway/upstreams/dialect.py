"""What a gateway has to know of a kind of server in order to have it continue token ids. Data, no I/O."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Annotated, Any, Protocol

from msgspec import Meta, Struct

from engine.wire import FinishReason, GrammarKind, TokenIdLogprob

TokenId = Annotated[int, Meta(ge=0, lt=2**31)]
"""Token id in a server's event: what tokenizers can look up."""
Encode = Callable[[Any], Any]
"""Turns the value of one of our parameters into the server's."""


def as_it_is(value: Any) -> Any:
    """Return the value: the server means the same by it."""
    return value


class Parameter(Struct, frozen=True):
    """A sampling parameter, as the server knows it."""

    name: str
    encode: Encode = as_it_is


class UpstreamError(Struct, frozen=True):
    """What a server says of a failure; the status is that of HTTP, 0 if it is not known."""

    message: str = "it does not say why"
    code: int | str | None = None

    @property
    def status(self) -> int:
        return self.code if isinstance(self.code, int) else 0


class AnswerChunk(Struct, frozen=True):
    """What one event of a server's stream says of an answer."""

    tokens: Sequence[int] = ()
    """Token ids: those that are new, the last of them, or all so far; `count` tells."""
    count: int | None = None
    """Number of tokens of the answer so far; None: `tokens` are those that are new."""
    text: str = ""
    """Text of all new tokens, where `tokens` may lack some of them."""
    logprobs: Sequence[TokenIdLogprob] = ()
    """Log-probabilities of `tokens`, if they were asked for."""
    finish: FinishReason | None = None
    cached: int | None = None
    """Tokens of the prompt that came from the server's prefix cache, if it has said so."""
    error: UpstreamError | None = None


class AnswerEvent(Protocol):
    """A typed event of a server's stream."""

    def chunk(self) -> AnswerChunk:
        """Return what it says."""


class ServerDescription(Struct, frozen=True):
    """What a server says of itself."""

    model: str
    """Name under which it serves its model."""
    context: int
    """Most tokens of prompt and output together; 0 if it does not say."""
    identity: str
    """Text that changes with the model, as far as the server tells."""
    cache_tokens: int = 0
    """Tokens that its KV cache holds; 0 if it does not say."""


class AdapterDialect(Struct, frozen=True, kw_only=True):
    """How a kind of server is asked for adapters."""

    page: str
    """Path of the page that lists those it has."""
    listed: Callable[[bytes], Mapping[str, Any]]
    """Reads that page: what a request calls each adapter, by its name."""
    select: Callable[[Any], Mapping[str, Any]]
    """Fields of a request with an adapter, given what that is called."""
    base: Callable[[Collection[Any]], Mapping[str, Any]] = lambda others: {}
    """Fields of a request without one, given what those are called that the server has."""
    load: str | None = None
    """Path that loads an adapter, given `lora_name` and `lora_path`; None: it has those that it was started with."""
    unload: str | None = None
    """Path that unloads one, given `lora_name`."""
    remedy: str = ""
    """How a server is started that loads adapters, as the end of a question."""


def bearer(key: str) -> dict[str, str]:
    """Return the headers that present a key as most servers want it."""
    return {"authorization": f"Bearer {key}"}


class ServerDialect(Struct, frozen=True, kw_only=True):
    """The protocol of a kind of server, as far as it does not matter what prompts are made of."""

    name: str
    generate: str
    """Path that answers a prompt."""
    health: str
    """Path that answers 200 while the server takes requests."""
    look: float = 1.0
    """Seconds between two looks at whether the server is healthy."""
    about: tuple[str, ...]
    """Paths at which the server describes itself."""
    metrics: Mapping[str, str] = {}
    """Names at `/metrics` of what `gateway.upstreams.load` counts; empty: there is no such page."""
    authorization: Callable[[str], Mapping[str, str]] = bearer
    """Returns the headers that present a key."""
    headers: Mapping[str, str] = {}
    """Headers of every request."""
    adapters: AdapterDialect | None = None
    """None: it has none."""
    slots: str | None = None
    """Path of the page that tells of each request that runs; None: only the `metrics` tell how many do."""
    seeds: Callable[[bytes], list[int]] = lambda page: []
    """Reads from that page the seeds of the requests, by which this gateway knows its own."""


class TokenDialect(ServerDialect, frozen=True, kw_only=True):
    """The protocol of a kind of server that continues token ids."""

    describe: Callable[..., ServerDescription]
    """Reads the bodies at `about`; raises `msgspec.MsgspecError` or `ValueError` if they make no sense."""
    prompt: str
    """Name of the field with the prompt's token ids."""
    model: str | None
    """Name of the field with the model's name, if there is one."""
    constants: Mapping[str, Any]
    """Fields of every request."""
    sampling: Mapping[str, Parameter]
    """Parameters of `engine.wire.SamplingParams` that the server has."""
    ignored: frozenset[str] = frozenset()
    """Parameters that the server lacks, and that are left out whatever their value."""
    within: str | None = None
    """Name of the object that holds sampling parameters and grammars; None: the request itself."""
    logprobs: Callable[[int], Mapping[str, Any]]
    """Fields that ask for the log-probabilities of so many tokens beside the chosen one."""
    most_logprobs: int | None = None
    """Most of those tokens; None: as many as a request may ask for."""
    grammars: Mapping[GrammarKind, Callable[[str], Mapping[str, Any]]]
    """Fields that ask for an answer in a grammar, given its source; kinds that are not here are refused."""
    salt: str | None = None
    """Name of the field whose value keeps prefixes apart; None: all tenants share the server's prefix cache."""
    event: type[AnswerEvent]
    context: int | None = None
    """Most tokens of prompt and output together, as a pool's configuration has it whose servers do not tell."""


def any_of(choices: str) -> list[str]:
    """Return the texts of a grammar of choices."""
    found: list[str] = json.loads(choices)
    return found


def expression_of(choices: str) -> str:
    """Return a regular expression that matches the texts of a grammar of choices."""
    # Not Python's escape, which also escapes what some regular expressions do not know escaped.
    escaped = (re.sub(r"[\\.+*?()|\[\]{}^$]", r"\\\g<0>", choice) for choice in any_of(choices))
    return "|".join(f"({each})" for each in escaped)
