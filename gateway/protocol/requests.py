"""The request of a client in one shape for every endpoint: a `TurnRequest`.

The request bodies of `/v1/responses` (HTTP and WebSocket), `/v1/chat/completions` and `/v1/completions` all become this
one struct, which is all that limits, caches, router and engines ever see. `SamplingFields` holds the fields those
bodies share, with their ranges, so that a value refused by one endpoint is refused by all of them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, TypeVar, get_type_hints

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import asdict

from engine.text.processor import SamplingDefaults
from engine.wire import SamplingParams
from gateway.errors import (
    ApiError,
    InvalidRequest,
    invalid_value,
    missing_parameter,
    unknown_parameter,
    unsupported_parameter,
)
from gateway.protocol.caching import NOTHING, Caching, Directives, Tags, from_body, stricter
from gateway.protocol.output_format import OutputFormat
from gateway.protocol.tools import ToolUse

MAX_STOP_STRINGS = 16
MAX_STOP_TOKENS = 64
MAX_TOP_LOGPROBS = 20

ONLY_BEST = 1e-6
"""An engine's `top_p` that leaves the most likely token only, for the 0 that OpenAI allows."""

Role = Literal["system", "user", "assistant", "tool"]
ServiceTier = Literal["auto", "default", "flex", "scale", "priority", "fast", "ultrafast"]
"""OpenAI's names for how soon a request is served; `gateway/pipeline/service_tier.py` says what they mean here."""


TemplateVariable = bool | int | float | Annotated[str, Meta(pattern=r"^[\w .,:/+-]{0,64}$")] | None
"""A variable for a chat template. Texts hold no character of which control tokens are made."""
CONTINUED: dict[str, TemplateVariable] = {"add_generation_prompt": False, "continue_final_message": True}
"""The `TurnRequest.template` of a prompt that ends inside its last message."""
TEMPLATE_NAMES = frozenset({"messages", "tools", "documents", "mark", "self", *CONTINUED})
"""Variables of chat templates that are not the client's to set."""


class ToolCall(Struct, frozen=True):
    """A function call that the model made earlier in a conversation."""

    id: str
    name: str
    arguments: str
    """Arguments as the model wrote them: JSON, unless they were cut off."""


class Message(Struct, frozen=True):
    """One message of a conversation, text only. OpenAI's `developer` role has become `system`."""

    role: Role
    content: str
    calls: tuple[ToolCall, ...] = ()
    """Calls that the assistant made after saying this."""
    answers: str | None = None
    """For the role `tool`, the id of the call whose output this is."""
    reference: str | None = None
    """Id of an item of an earlier response, whose place this holds until the turn begins."""
    compacted: str | None = None
    """Sealed messages of a compaction item, whose place this holds until the turn begins."""

    @property
    def size(self) -> int:
        """Length in characters."""
        return len(self.content) + sum(len(call.name) + len(call.arguments) for call in self.calls)


class Sampling(Struct, frozen=True, kw_only=True):
    """Sampling parameters of a request; None stands for the model's default (its generation_config.json)."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: dict[int, float] = {}
    seed: int | None = None
    """Seed; None: the gateway draws one."""
    ignore_eos: bool = False
    stop_token_ids: tuple[int, ...] = ()
    """Tokens that end the answer, beside the model's own."""
    min_tokens: int = 0
    logprobs: int | None = None
    """Number of alternatives whose log-probabilities are wanted, beside the chosen token's; None: no
    log-probabilities."""
    prompt_logprobs: int | None = None

    def deterministic(self, defaults: SamplingDefaults) -> bool:
        """Whether the same prompt must give the same answer from a model with these defaults."""
        temperature = defaults.temperature if self.temperature is None else self.temperature
        return temperature == 0 or self.top_p == 0 or self.seed is not None

    def resolve(self, defaults: SamplingDefaults, *, max_tokens: int, seed: int) -> SamplingParams:
        """Return the engine's parameters for a model with these defaults; `seed` is used if the client named none."""
        given = {name: value for name, value in asdict(self).items() if value is not None}
        if self.top_p == 0:
            given["top_p"] = ONLY_BEST
        return SamplingParams(**{**asdict(defaults), "seed": seed, **given, "max_tokens": max_tokens})


class TurnRequest(Struct, frozen=True, kw_only=True):
    """One turn as the client asked for it. Values are in range; what needs an engine is checked later."""

    model: str
    """`auto`, a tier (`small`, `medium`, `large`) or a model's public name."""
    messages: tuple[Message, ...] = ()
    """New messages of this turn, without `instructions` and without those that `previous_response_id` or `conversation`
    stands for."""
    instructions: str | None = None
    """System message of this turn only: it is not inherited by turns that continue this one."""
    prompt: str | tuple[int, ...] | None = None
    """A raw prompt (text or token ids) instead of messages: no chat template is applied."""
    add_special_tokens: bool = True
    """Whether a raw prompt of text gets the tokens that the tokenizer puts around one, such as BOS."""
    sampling: Sampling = Sampling()
    max_output_tokens: int | None = None
    """Most output tokens; None: the configured default, never beyond the context."""
    format: OutputFormat | None = None
    """Format that the answer must match; None: free text."""
    tools: ToolUse | None = None
    """Functions that the model may call instead of answering; None: there are none."""
    template: dict[str, TemplateVariable] = {}
    """Variables for the model's chat template beside its own, and how the prompt ends."""
    stop: tuple[str, ...] = ()
    skip_special_tokens: bool = True
    """Whether control tokens in the answer are left out; those around calls always show where tools are given."""
    generate: bool = True
    """Whether to generate an answer; False only warms the prefix cache with the prompt."""
    caching: Caching = NOTHING
    quality: int | None = None
    """Position of the quality knob, 0 to 100, where the router picks the tier; None: as configured."""
    previous_response_id: str | None = None
    conversation: str | None = None
    """Id of the conversation whose items come first, and to which messages and answer are added."""
    background: bool = False
    """Whether the turn runs to its end without a viewer, too."""
    truncate: bool = False
    """Whether the oldest messages are left out if the conversation does not fit the context."""
    store: bool = True
    metadata: dict[str, str] = {}
    service_tier: ServiceTier = "auto"
    echo: dict[str, Any] = {}
    """Parameters without effect that a response repeats."""

    @property
    def extent(self) -> int:
        """Number of characters, approximately, that the request takes beside its messages."""
        format = len(self.format.grammar.source) if self.format else 0
        return len(self.instructions or "") + format + (self.tools.size if self.tools else 0)


class RoundhouseOptions(Struct, frozen=True, forbid_unknown_fields=True):
    """The `roundhouse` object of a request body: what OpenAI's parameters cannot say."""

    cache: Directives | None = None
    """Cache directives, as in HTTP's `Cache-Control`."""
    cache_tags: Tags | None = None
    quality: Annotated[int, Meta(ge=0, le=100)] | None = None
    """The router's knob for this request, where the server lets requests turn it."""


_T = TypeVar("_T")
Seed = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
TokenId = Annotated[int, Meta(ge=0, le=2**31 - 1)]
Penalty = Annotated[float, Meta(ge=-2, le=2)]


class SamplingFields(Struct, kw_only=True, forbid_unknown_fields=True):
    """Request-body fields that all endpoints share. Base class of their body structs."""

    model: Annotated[str, Meta(min_length=1, max_length=256)] | None = None
    stream: bool | None = None
    user: str | None = None
    """Accepted: it cannot change the answer."""
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=0, le=2**31 - 1)] | None = None
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
    stop_token_ids: Annotated[tuple[TokenId, ...], Meta(max_length=MAX_STOP_TOKENS)] | None = None
    repeat_penalty: Annotated[float, Meta(gt=0, le=10)] | None = None
    """Ollama's name of `repetition_penalty`."""
    skip_special_tokens: bool | None = None
    """vLLM's: whether control tokens in answers are left out; true by default."""
    spaces_between_special_tokens: Literal[True] | None = None
    """vLLM's: none of those that a tokenizer puts between control tokens is taken away."""
    ignore_eos: bool | None = None
    min_tokens: Annotated[int, Meta(ge=0)] | None = None
    roundhouse: RoundhouseOptions | None = None

    def sampling(self, *, logprobs: int | None = None, prompt_logprobs: int | None = None) -> Sampling:
        """Return these fields as a turn's `Sampling`.

        Raises:
            InvalidRequest: a key of `logit_bias` is not a token id.
        """
        same = {*Sampling.__struct_fields__} & {*SamplingFields.__struct_fields__}
        given = {name: value for name in same if (value := getattr(self, name)) is not None}
        if self.repetition_penalty is None and self.repeat_penalty is not None:
            given["repetition_penalty"] = self.repeat_penalty
        given |= {"logit_bias": self._token_biases(), "logprobs": logprobs, "prompt_logprobs": prompt_logprobs}
        return Sampling(**given)

    def turn(self, given: Caching, **own: Any) -> TurnRequest:
        """Return the turn that these fields and an endpoint's `own` ask for.

        Args:
            given: what the HTTP request's headers say about caches; a WebSocket has none per turn.

        Raises:
            InvalidRequest: see `gateway.protocol.caching`.
        """
        options = self.roundhouse or RoundhouseOptions()
        return TurnRequest(
            model=self.model or "auto",
            stop=tuple([self.stop] if isinstance(self.stop, str) else self.stop or ()),
            caching=stricter(given, from_body(options.cache, options.cache_tags)),
            quality=options.quality,
            skip_special_tokens=self.skip_special_tokens is not False,
            **own,
        )

    def _token_biases(self) -> dict[int, float]:
        try:
            return {_token_id(key): bias for key, bias in (self.logit_bias or {}).items()}
        except ValueError as error:
            raise InvalidRequest(
                f"logit_bias: {error} is not a token id; keys are token ids as decimal strings", param="logit_bias"
            ) from None


def continued(messages: Sequence[Message]) -> dict[str, TemplateVariable]:
    """Return the `template` of APIs in which an answer goes on with a last message of the assistant."""
    last = messages[-1]
    return CONTINUED if last.role == "assistant" and not last.calls else {}


def template_variables(given: Mapping[str, TemplateVariable] | None) -> dict[str, TemplateVariable]:
    """Return what `chat_template_kwargs` sets.

    Raises:
        InvalidRequest: a variable is not the client's to set.
    """
    for name in given or ():
        if name in TEMPLATE_NAMES or name.endswith("_token"):
            raise invalid_value(f"chat_template_kwargs.{name[:80]}", "is set by the server; leave it out")
    return dict(given or {})


TemplateVariables = Annotated[dict[Annotated[str, Meta(max_length=64)], TemplateVariable], Meta(max_length=16)]
"""The type of `chat_template_kwargs`."""


def refuse_unsupported(body: Struct, neutral: dict[str, tuple[Any, ...]]) -> None:
    """Refuse by name parameters of OpenAI's API that are not served here, instead of quietly ignoring them.

    Args:
        neutral: field -> values that ask for nothing (besides leaving it out or null), for example `{"tools": ([],)}`.

    Raises:
        InvalidRequest: code `unsupported_parameter`.
    """
    for name, harmless in neutral.items():
        value = getattr(body, name)
        if value is None or value in harmless:
            continue
        allowed = f"; it may be {' or '.join(map(repr, harmless))}" if harmless else ""
        raise unsupported_parameter(name, f"not supported by this server{allowed}. Leave it out.")


def check_together(format: OutputFormat | None, tools: ToolUse | None) -> None:
    """Refuse a grammar with tools.

    Raises:
        InvalidRequest: a grammar cannot be made a part of another.
    """
    if tools is not None and tools.active and format is not None and format.grammar.kind == "lark":
        raise InvalidRequest(
            f"{format.param}: cannot be combined with tools; leave out one of them or send tool_choice 'none'",
            param=format.param,
            code="unsupported_parameter",
        )


def only_known(body: Mapping[str, Any], type_: type[Struct]) -> dict[str, Any]:
    """Return a body without the parameters that a struct does not have."""
    return {name: value for name, value in body.items() if name in type_.__struct_encode_fields__}


_AT_PATH = re.compile(r" - at (?:`key` in )?`\$(?P<path>[^`]*)`$")
_UNKNOWN_FIELD = re.compile(r"^Object contains unknown field `(?P<name>[^`]*)`")


def converted(body: Mapping[str, Any], type_: type[_T], *, strict: bool = True) -> _T:
    """A body as a struct.

    Args:
        strict: False: texts may stand for numbers and booleans, as they do in a query.

    Raises:
        InvalidRequest: a field is missing, unknown or wrong; names it, says what it may hold.
    """
    try:
        return msgspec.convert(body, type_, strict=strict)
    except msgspec.ValidationError as error:
        raise _invalid_body(error, body, type_, strict) from None


def _invalid_body(error: msgspec.ValidationError, body: Mapping[str, Any], type_: type[Any], strict: bool) -> ApiError:
    text = str(error)
    where = _AT_PATH.search(text)
    path = where["path"].lstrip(".") if where else ""
    if path.endswith("[...]") and (field := path.removesuffix("[...]")) in body:
        path = _with_key(field, body[field], get_type_hints(type_, include_extras=True)[field], strict)
    reason = text[: where.start()] if where else text
    unknown = _UNKNOWN_FIELD.match(reason)
    if unknown:
        name = f"{path}.{unknown['name']}" if path else unknown["name"]
        return unknown_parameter(name)
    missing = re.match(r"^Object missing required field `([^`]*)`", reason)
    if missing:
        name = f"{path}.{missing[1]}" if path else missing[1]
        return missing_parameter(name)
    return InvalidRequest(f"{path or 'body'}: {reason}", param=path or None, code="invalid_value")


def _with_key(field: str, value: Any, hint: Any, strict: bool) -> str:
    """Return the path of the first wrong value in an object whose keys are the client's; msgspec does not name them."""
    for key, each in value.items() if isinstance(value, Mapping) else ():
        try:
            msgspec.convert({key: each}, hint, strict=strict)
        except msgspec.ValidationError:
            return f"{field}.{key[:80]}"
    return field


def _token_id(key: str) -> int:
    if not re.fullmatch(r"[0-9]{1,9}", key):
        raise ValueError(repr(key))
    return int(key)
