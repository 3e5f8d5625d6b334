"""What a client asked for, in one shape for every endpoint: a `TurnRequest`.

The request bodies of `/v1/responses` (HTTP and WebSocket), `/v1/chat/completions` and `/v1/completions` all become this
one struct, which is all that limits, caches, router and engines ever see. `SamplingFields` holds the fields those
bodies share, with their ranges, so that a value refused by one endpoint is refused by all of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from engine.wire import SamplingParams
from gateway.errors import ApiError, InvalidRequest

MAX_STOP_STRINGS = 16
MAX_TOP_LOGPROBS = 20

Role = Literal["system", "user", "assistant"]
CacheMode = Literal["default", "no-store"]


class Message(Struct, frozen=True):
    """One message of a conversation, text only. OpenAI's `developer` role has become `system`."""

    role: Role
    content: str


class TurnRequest(Struct, frozen=True, kw_only=True):
    """One turn: what to answer and how. Values are in range; everything that needs an engine is checked later."""

    model: str
    """`auto`, a tier (`small`, `medium`, `large`) or a model's public name."""
    messages: tuple[Message, ...] = ()
    """The new messages of this turn, without `instructions` and without what `previous_response_id` stands for."""
    instructions: str | None = None
    """System message of this turn only: it is not inherited by turns that continue this one."""
    prompt: str | tuple[int, ...] | None = None
    """A raw prompt (text or token ids) instead of messages: no chat template is applied."""
    sampling: SamplingParams = SamplingParams()
    """`max_tokens` and `seed` in it are placeholders: the pipeline fills them from the two fields below."""
    max_output_tokens: int | None = None
    """None: the configured default, never beyond the context."""
    seed: int | None = None
    """None: the gateway draws one."""
    stop: tuple[str, ...] = ()
    generate: bool = True
    """False: only warm the prefix cache with the prompt; the answer is empty."""
    cache: CacheMode = "default"
    """`no-store`: neither look an answer up nor store it."""
    previous_response_id: str | None = None
    store: bool = True
    metadata: dict[str, str] = {}

    @property
    def deterministic(self) -> bool:
        """Whether the same request must give the same answer, which is what makes it cacheable."""
        return self.sampling.temperature == 0 or self.seed is not None


class RoundhouseOptions(Struct, frozen=True, forbid_unknown_fields=True):
    """The `roundhouse` object of a request body: what OpenAI's parameters cannot say."""

    cache: CacheMode = "default"


Seed = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
Penalty = Annotated[float, Meta(ge=-2, le=2)]


class SamplingFields(Struct, kw_only=True, forbid_unknown_fields=True):
    """Request-body fields that all endpoints share. Base class of their body structs."""

    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=0)] | None = None
    min_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[float, Meta(gt=0, le=10)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    logit_bias: Annotated[dict[str, Annotated[float, Meta(ge=-100, le=100)]], Meta(max_length=1024)] | None = None
    seed: Seed | None = None
    stop: (
        Annotated[str, Meta(min_length=1, max_length=256)]
        | Annotated[list[Annotated[str, Meta(min_length=1, max_length=256)]], Meta(max_length=MAX_STOP_STRINGS)]
        | None
    ) = None
    ignore_eos: bool | None = None
    min_tokens: Annotated[int, Meta(ge=0)] | None = None
    roundhouse: RoundhouseOptions | None = None

    def sampling(self, *, logprobs: int | None = None, prompt_logprobs: int | None = None) -> SamplingParams:
        """The engine's parameters; `max_tokens` and `seed` are left for the pipeline to fill.

        Raises:
            InvalidRequest: a key of `logit_bias` is not a token id.
        """
        given = {
            name: value
            for name in (
                "temperature",
                "top_p",
                "top_k",
                "min_p",
                "repetition_penalty",
                "presence_penalty",
                "frequency_penalty",
                "ignore_eos",
                "min_tokens",
            )
            if (value := getattr(self, name)) is not None
        }
        return SamplingParams(
            **given, logit_bias=self._token_biases(), logprobs=logprobs, prompt_logprobs=prompt_logprobs
        )

    def stop_strings(self) -> tuple[str, ...]:
        if self.stop is None:
            return ()
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)

    def cache_mode(self, cache_control: str | None = None) -> CacheMode:
        """`no-store` if the body or the `Cache-Control` header (a WebSocket has none per turn) says so."""
        directives = {part.strip().lower() for part in (cache_control or "").split(",")}
        if directives & {"no-store", "no-cache"}:
            return "no-store"
        return self.roundhouse.cache if self.roundhouse else "default"

    def _token_biases(self) -> dict[int, float]:
        try:
            return {_token_id(key): bias for key, bias in (self.logit_bias or {}).items()}
        except ValueError as error:
            raise InvalidRequest(
                f"logit_bias: {error} is not a token id; keys are token ids as decimal strings", param="logit_bias"
            ) from None


def refuse_unsupported(body: Struct, neutral: dict[str, tuple[Any, ...]]) -> None:
    """Refuse by name what is part of OpenAI's API but not served here, instead of quietly ignoring it.

    Args:
        neutral: field -> values that ask for nothing (besides leaving it out or null), for example `{"tools": ([],)}`.

    Raises:
        InvalidRequest: code `unsupported_parameter`.
    """
    for name, harmless in neutral.items():
        value = getattr(body, name)
        if value is UNSET or value is None or value in harmless:
            continue
        allowed = f"; it may be {' or '.join(map(repr, harmless))}" if harmless else ""
        raise InvalidRequest(
            f"{name}: not supported by this server{allowed}. Leave it out.", param=name, code="unsupported_parameter"
        )


_AT_PATH = re.compile(r" - at `(?P<key>key in )?\$(?P<path>[^`]*)`$")
_UNKNOWN_FIELD = re.compile(r"^Object contains unknown field `(?P<name>[^`]*)`")


def invalid_body(error: msgspec.ValidationError) -> ApiError:
    """The API error for what msgspec found wrong in a body: names the field, says what it may hold."""
    text = str(error)
    where = _AT_PATH.search(text)
    path = where["path"].lstrip(".") if where else ""
    reason = text[: where.start()] if where else text
    unknown = _UNKNOWN_FIELD.match(reason)
    if unknown:
        name = f"{path}.{unknown['name']}" if path else unknown["name"]
        return InvalidRequest(f"Unknown parameter: '{name}'.", param=name, code="unknown_parameter")
    missing = re.match(r"^Object missing required field `([^`]*)`", reason)
    if missing:
        name = f"{path}.{missing[1]}" if path else missing[1]
        return InvalidRequest(f"Missing required parameter: '{name}'.", param=name, code="missing_required_parameter")
    return InvalidRequest(f"{path or 'body'}: {reason}", param=path or None, code="invalid_value")


def total_characters(messages: Iterable[Message]) -> int:
    """Length of a conversation's text, for bounds that must hold before anything is tokenised."""
    return sum(len(message.content) for message in messages)


def _token_id(key: str) -> int:
    if not re.fullmatch(r"[0-9]{1,9}", key):
        raise ValueError(repr(key))
    return int(key)


Unsupported = Any | UnsetType
"""Type of a body field that is known and refused: see `refuse_unsupported`."""
