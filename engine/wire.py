"""The frames between a gateway and an engine: MessagePack over WebSocket, one binary message per frame.

A client sends `Generate` and `Cancel`, and hints about adapters (`Announce`, `Pin`); the engine answers with one
`Ready` when the connection opens, then with at most one `Step` per engine step, carrying what every request of that
connection gained in it. Who asks for it (`Follow`) is also told which prefixes are cached (`Blocks`). Token ids only:
text never crosses this wire. Unknown fields are ignored on decoding, so that either side can be upgraded first.
"""

from __future__ import annotations

from typing import Annotated, Literal, TypeVar

import msgspec

PROTOCOL_VERSION = 1
MAX_FRAME_BYTES = 8 * 1024 * 1024
"""Largest frame that an engine accepts; it closes a connection that sends a larger one."""
MAX_STEP_BYTES = 64 * 1024 * 1024
"""Largest frame that a client accepts."""
MAX_ID_LENGTH = 128
MAX_PINNED = 10_000
MAX_RESIDENT_NAMED = 256

FinishReason = Literal["stop", "length", "timeout", "cancelled", "error"]
"""length: max_tokens or the context is reached; timeout: the request's own time limit."""
ServiceClass = Literal["premium", "standard", "batch"]
"""premium is served first and batch last; waiting outweighs the difference in time, so that nothing starves."""
PolicyName = Literal["fcfs", "priority", "fair"]
"""Who goes first: by arrival; by class and arrival; or so that tenants get equal shares."""
GrammarKind = Literal["json_schema", "json_object", "regex", "choice", "lark"]
ErrorKind = Literal["invalid", "overloaded", "internal"]
"""invalid: the request can never be served as it is; overloaded: try again later; internal: the engine failed."""


class SamplingParams(msgspec.Struct, frozen=True, omit_defaults=True):
    """How one request's tokens are chosen. Names and meanings follow OpenAI's and transformers' parameters."""

    max_tokens: int = 16
    """Most output tokens; the engine refuses a prompt that leaves room for none of them."""
    temperature: float = 1.0
    """0 is greedy."""
    top_k: int = 0
    """0 keeps the whole vocabulary."""
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    """Over prompt and output, as transformers applies it."""
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    """Presence and frequency count output tokens only, as OpenAI documents them."""
    logit_bias: dict[int, float] = {}
    seed: int = 0
    """Randomness is keyed by (seed, position): the same request gives the same tokens in any batch."""
    logprobs: int | None = None
    """None: no log-probabilities; N: the chosen token's and those of the N most likely tokens."""
    prompt_logprobs: int | None = None
    """The same for the prompt's tokens (first position excluded); such a request skips the prefix cache."""
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    min_tokens: int = 0


class Grammar(msgspec.Struct, frozen=True, omit_defaults=True):
    """What an answer must match, from its first character to its last."""

    kind: GrammarKind
    source: str
    """json_schema: the schema as JSON; json_object: empty; regex: the expression; choice: a JSON list of strings; lark:
    the grammar in Lark's notation."""
    lenient: bool = False
    """json_schema: ignore keywords that cannot be enforced instead of refusing the request. (In lark, each schema says
    so for itself, as `"x-guidance": {"lenient": true}`.)"""


class Generate(msgspec.Struct, frozen=True, tag="generate", omit_defaults=True):
    """Start a request. `id` is chosen by the client and unique among its live requests."""

    id: Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_ID_LENGTH)]
    prompt: list[int]
    sampling: SamplingParams
    adapter: str | None = None
    """Version of a LoRA adapter (`engine/adapters/`); None is the base model."""
    salt: bytes = b""
    """Roots the prefix-cache key: requests with different salts never share KV blocks."""
    grammar: Grammar | None = None
    tenant: str = ""
    """Whose share of the engine this request uses."""
    weight: float = 1.0
    """The tenant's share relative to others of the same service class."""
    service: ServiceClass = "standard"
    queue_timeout: float | None = None
    """Seconds that the request may wait for its first step; then it ends as overloaded."""
    timeout: float | None = None
    """Seconds that the request may take in all; then it ends with what it has."""
    speculate: bool = True
    """False: never draft tokens for this request. They change its speed, never its tokens."""
    request_id: Annotated[str, msgspec.Meta(max_length=MAX_ID_LENGTH)] = ""
    """What the request is called elsewhere, for logs."""
    traceparent: Annotated[str, msgspec.Meta(max_length=MAX_ID_LENGTH)] = ""
    """The span that caused it, as in W3C's header of that name, for logs."""


class Cancel(msgspec.Struct, frozen=True, tag="cancel"):
    """End a request; its KV is free within one step. Unknown ids are ignored (the request may just have finished)."""

    id: str


class Announce(msgspec.Struct, frozen=True, tag="announce"):
    """A request for this adapter is about to come: the engine may begin to load it. Nothing depends on it."""

    adapter: Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_ID_LENGTH)]
    """Its version."""


class Pin(msgspec.Struct, frozen=True, tag="pin"):
    """The adapters to keep loaded as long as this connection lasts, as far as there is room; replaces the last list."""

    adapters: Annotated[
        list[Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_ID_LENGTH)]], msgspec.Meta(max_length=MAX_PINNED)
    ]
    """Their versions, the most important first."""


class Follow(msgspec.Struct, frozen=True, tag="follow"):
    """Whether to tell this connection which prefix blocks there are. Only for an engine whose `Ready` says so."""

    blocks: bool


ClientFrame = Generate | Cancel | Announce | Pin | Follow


class TokenIdLogprob(msgspec.Struct, frozen=True, array_like=True):
    """Log-probability of one emitted (or prompt) token and of the most likely alternatives, best first."""

    token: int
    logprob: float
    top: list[tuple[int, float]] = []


class Usage(msgspec.Struct, frozen=True):
    """Token counts and times of a request so far; times in seconds."""

    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    queue_seconds: float
    preemptions: int = 0


class Output(msgspec.Struct, frozen=True, omit_defaults=True):
    """What one request gained in one step. Those with its first token and its end carry `usage`, the end also `finish`.

    One that carries nothing tells that the request's grammar is compiled, and that it waits to be run.

    With finish == "stop" the last token is the one that stopped the answer, an end-of-sequence or stop token, unless
    `grammar_complete`: then the answer's grammar allowed nothing more, and the last token belongs to the answer.
    """

    id: str
    tokens: list[int] = []
    logprobs: list[TokenIdLogprob] | None = None
    prompt_logprobs: list[TokenIdLogprob | None] | None = None
    """Follows the prompt in order, over as many outputs as it took steps; the first position's entry is None."""
    finish: FinishReason | None = None
    usage: Usage | None = None
    error: str | None = None
    """With finish == "error": what was wrong with the request and what to do about it."""
    error_kind: ErrorKind | None = None
    error_field: str | None = None
    """With finish == "error": the field of `Generate` or its `sampling` that is to blame, if one is."""
    retry_after: float | None = None
    """With error_kind == "overloaded": seconds after which the engine expects to take such a request, if it knows."""
    grammar_complete: bool = False


class Load(msgspec.Struct, frozen=True, omit_defaults=True):
    """A snapshot of the engine for routers and metrics."""

    running: int
    waiting: int
    waiting_tokens: int
    """Prompt tokens not yet computed, over all requests."""
    total_blocks: int
    free_blocks: int
    cached_blocks: int
    prefix_hit_tokens: int
    """Since start."""
    prompt_tokens: int
    output_tokens: int
    preemptions: int
    step_seconds: float
    """Moving average of one step's duration."""
    predicted_queue_seconds: float = 0.0
    """Time until a request behind all those that wait would start."""
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    """Tokens that were guessed since the start, and those of them that were right."""
    lent_blocks: int = 0
    """KV blocks that hold adapters."""
    adapter_loads: int = 0
    """Adapters copied to the device since the start, and those whose place there was taken."""
    adapter_evictions: int = 0
    host_blocks: int = 0
    host_free_blocks: int = 0
    host_cached_blocks: int = 0
    """KV blocks in host memory; those neither free nor cached are being loaded."""
    host_hit_tokens: int = 0
    """Those of `prefix_hit_tokens` that came from host memory."""
    host_saved_bytes: int = 0
    host_loaded_bytes: int = 0
    """Copied from the device to host memory since the start, and back."""
    adapters: tuple[str, ...] | None = None
    """Versions on the device, at most `MAX_RESIDENT_NAMED`. Only the first frame and heartbeats say it."""


class RopeRegimes(msgspec.Struct, frozen=True):
    """For models whose rotary frequencies depend on the prompt's length: prompts that may share KV."""

    above: int
    """Tokens up to which all prompts are of one regime."""
    each_length: bool = False
    """Longer prompts share with those of their own length only; else with each other."""

    def of(self, prompt_tokens: int) -> int:
        """The regime of a prompt, a number."""
        if prompt_tokens <= self.above:
            return 0
        return prompt_tokens if self.each_length else 1


class ModelInfo(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a client must know of the model behind an engine."""

    name: str
    revision: str
    """Digest of config and weights' index; part of every cache key."""
    context: int
    """Most tokens of prompt and output together."""
    vocabulary: int
    eos_token_ids: tuple[int, ...]
    block_size: int
    device: str
    dtype: str
    rope_regimes: RopeRegimes | None = None
    kv_dtype: str = ""
    """Of keys and values; empty is `dtype`."""


class Ready(msgspec.Struct, frozen=True, tag="ready", omit_defaults=True):
    """First frame of a connection."""

    protocol: int
    model: ModelInfo
    load: Load
    tells_blocks: bool = False
    """It understands `Follow`."""


class Step(msgspec.Struct, frozen=True, tag="step"):
    """Outputs of one engine step for this connection; also sent without outputs as a heartbeat, every second."""

    outputs: list[Output]
    load: Load


class Blocks(msgspec.Struct, frozen=True, tag="blocks", omit_defaults=True):
    """Which prefix blocks the engine has and has no more since the last such frame; before the `Step` that made it so.

    The first one after `Follow` names all that it has. Blocks go by numbers (`engine/cache/prefix_keys.py`).
    """

    stored: bytes = b""
    removed: bytes = b""
    cleared: bool = False
    """What was told before does not count any more."""


ServerFrame = Ready | Step | Blocks

encode = msgspec.msgpack.Encoder().encode
_client_decoder: msgspec.msgpack.Decoder[ClientFrame] = msgspec.msgpack.Decoder(ClientFrame)
_server_decoder: msgspec.msgpack.Decoder[ServerFrame] = msgspec.msgpack.Decoder(ServerFrame)
_Frame = TypeVar("_Frame")


def decode_client_frame(message: bytes) -> ClientFrame:
    """What a client has sent.

    Raises:
        msgspec.DecodeError: it is no frame, and why.
    """
    return _decode(_client_decoder, message)


def decode_server_frame(message: bytes) -> ServerFrame:
    """What an engine has sent.

    Raises:
        msgspec.DecodeError: it is no frame, and why.
    """
    return _decode(_server_decoder, message)


def _decode(decoder: msgspec.msgpack.Decoder[_Frame], message: bytes) -> _Frame:
    try:
        return decoder.decode(message)
    except RecursionError:  # of a field that nobody knows: all others have their depth
        raise msgspec.DecodeError("it is nested too deeply; frames are a few levels deep") from None
    except UnicodeDecodeError as error:
        raise msgspec.DecodeError(f"a text is not UTF-8: {error.reason}") from None
