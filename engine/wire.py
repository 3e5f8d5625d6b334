"""The frames between a gateway and an engine: MessagePack over WebSocket, one binary message per frame.

A client sends `Generate` and `Cancel`, and hints about adapters (`Announce`, `Pin`); the engine answers with one
`Ready` when the connection opens, then with at most one `Step` per engine step, carrying what every request of that
connection gained in it. A client that sends `Follow` is also told which prefixes are cached (`Blocks`). Token ids only:
text never crosses this wire. Unknown fields are ignored on decoding, so that either side can be upgraded first.
"""

from __future__ import annotations

from typing import Annotated, Literal, TypeVar

import msgspec

PROTOCOL_VERSION = 2
PROTOCOL_MIN = 1
"""Oldest version that this one gets on with. Gateways and engines whose ranges meet speak the highest version of both,
so that they can be updated one by one; clients of version 1 knew no range, so from there gateways go first. 2 adds
`Generate.resumed` and the end "moved"."""
MOVES_SINCE = 2
"""Version from which answers may move from one engine to another."""
MAX_FRAME_BYTES = 8 * 1024 * 1024
"""Largest frame that an engine accepts; it closes a connection that sends a larger one."""
MAX_STEP_BYTES = 64 * 1024 * 1024
"""Largest frame that a client accepts."""
MAX_ID_LENGTH = 128
MAX_PINNED = 10_000
MAX_RESIDENT_NAMED = 256
PROCESS_ID = r"\A[A-Za-z0-9_.-]{0,64}\Z"
"""Form of an engine process' id."""

FinishReason = Literal["stop", "length", "timeout", "cancelled", "error"]
"""Why a request ended. length: max_tokens or the context is reached; timeout: the request's own time limit."""
ServiceClass = Literal["premium", "standard", "batch"]
"""Classes of service: premium goes first, batch last; long waiting outweighs the class, so that nothing starves."""
PolicyName = Literal["fcfs", "priority", "fair"]
"""Order of service: by arrival; by class and arrival; or so that tenants get equal shares."""
GrammarKind = Literal["json_schema", "json_object", "regex", "choice", "lark"]
ErrorKind = Literal["invalid", "overloaded", "internal"]
"""Error kinds. invalid: the request can never be served; overloaded: try again later; internal: the engine failed."""


class SamplingParams(msgspec.Struct, frozen=True, omit_defaults=True):
    """Parameters by which a request's tokens are chosen, named and meant as OpenAI's and transformers' are."""

    max_tokens: int = 16
    """Most output tokens; the engine refuses a prompt that leaves room for none of them."""
    temperature: float = 1.0
    """Temperature of sampling; 0 is greedy."""
    top_k: int = 0
    """Number of likeliest tokens to choose from; 0 keeps the whole vocabulary."""
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    """Penalty on tokens of prompt and output, as transformers applies it."""
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    """Penalty per occurrence of a token; it and `presence_penalty` count output only, as OpenAI documents them."""
    logit_bias: dict[int, float] = {}
    seed: int = 0
    """Seed of the draws, keyed by (seed, position): the same request gives the same tokens in any batch."""
    logprobs: int | None = None
    """Log-probabilities wanted per output token: None for none, N for the chosen token and the N most likely ones."""
    prompt_logprobs: int | None = None
    """Log-probabilities wanted per prompt token, the first excluded; such a request skips the prefix cache."""
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    min_tokens: int = 0


class Grammar(msgspec.Struct, frozen=True, omit_defaults=True):
    """A grammar that an answer must match from its first character to its last."""

    kind: GrammarKind
    source: str
    """Text of the grammar. json_schema: the schema as JSON; json_object: empty; regex: the expression; choice: a list
    of strings as JSON; lark: the grammar in Lark's notation."""
    lenient: bool = False
    """Whether json_schema's keywords that cannot be enforced are ignored, not refused. (In lark, each schema says
    so for itself, as `"x-guidance": {"lenient": true}`.)"""


class Generate(msgspec.Struct, frozen=True, tag="generate", omit_defaults=True):
    """Start a request. `id` is chosen by the client and unique among its live requests."""

    id: Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_ID_LENGTH)]
    prompt: list[int]
    sampling: SamplingParams
    adapter: str | None = None
    """Version of the LoRA adapter to use (`engine/adapters/`); None is the base model."""
    salt: bytes = b""
    """Salt that roots the prefix-cache key: requests with different salts never share KV blocks."""
    grammar: Grammar | None = None
    tenant: str = ""
    """Tenant whose share of the engine this request uses."""
    weight: float = 1.0
    """Weight of the tenant's share relative to others of the same service class."""
    service: ServiceClass = "standard"
    queue_timeout: float | None = None
    """Seconds that the request may wait for its first step; then it ends as overloaded."""
    timeout: float | None = None
    """Seconds that the request may take in all; then it ends with what it has."""
    resumed: int = 0
    """How many of the prompt's last tokens are this request's own output, said by another engine: limits, penalties,
    draws, the grammar and usage go on from there. Only for engines of protocol 2."""
    speculate: bool = True
    """Whether tokens may be drafted for this request. Drafts change its speed, never its tokens."""
    request_id: Annotated[str, msgspec.Meta(max_length=MAX_ID_LENGTH)] = ""
    """Id of the request outside the engine, for logs."""
    traceparent: Annotated[str, msgspec.Meta(max_length=MAX_ID_LENGTH)] = ""
    """Span that caused the request, as in W3C's header of that name, for logs."""


class Cancel(msgspec.Struct, frozen=True, tag="cancel"):
    """End a request; its KV is free within one step. Unknown ids are ignored (the request may just have finished)."""

    id: str


class Announce(msgspec.Struct, frozen=True, tag="announce"):
    """Announces a request for this adapter: the engine may begin to load it. Nothing depends on it."""

    adapter: Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_ID_LENGTH)]
    """Version of the adapter."""


class Pin(msgspec.Struct, frozen=True, tag="pin"):
    """Names adapters to keep loaded while this connection lasts, as far as there is room; replaces the last list."""

    adapters: Annotated[
        list[Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_ID_LENGTH)]], msgspec.Meta(max_length=MAX_PINNED)
    ]
    """Versions of the adapters, the most important first."""


class Follow(msgspec.Struct, frozen=True, tag="follow"):
    """Starts or stops `Blocks` frames on this connection. Only for an engine whose `Ready` says so."""

    blocks: bool


class Hello(msgspec.Struct, frozen=True, tag="hello"):
    """Says which version of the protocol the client speaks; sent after `Ready`, to engines of version 2 or later.

    Without it an engine sends nothing that version 1 does not know.
    """

    protocol: int


class Drain(msgspec.Struct, frozen=True, tag="drain"):
    """Asks the engine to end: no new requests, running ones until `seconds` are over, then the rest as "moved"."""

    seconds: Annotated[float, msgspec.Meta(ge=0, le=86_400)]


ClientFrame = Generate | Cancel | Announce | Pin | Follow | Hello | Drain


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
    """A request's gains in one step. Those with its first token and its end carry `usage`, the end also `finish`.

    An empty one tells that the request's grammar is compiled, and that it waits to be run.

    With finish == "stop" the last token is the one that stopped the answer, an end-of-sequence or stop token, unless
    `grammar_complete`: then the answer's grammar allowed nothing more, and the last token belongs to the answer.
    """

    id: str
    tokens: list[int] = []
    logprobs: list[TokenIdLogprob] | None = None
    prompt_logprobs: list[TokenIdLogprob | None] | None = None
    """Log-probabilities of the prompt in order, over as many outputs as it took steps; None for the first position."""
    finish: FinishReason | Literal["moved"] | None = None
    """moved: the engine goes away, and another one may go on with the answer. Not for clients of protocol 1."""
    usage: Usage | None = None
    error: str | None = None
    """Message of finish == "error": what was wrong with the request and what to do about it."""
    error_kind: ErrorKind | None = None
    error_field: str | None = None
    """Field of `Generate` or its `sampling` that is to blame for finish == "error", if one is."""
    retry_after: float | None = None
    """Seconds after which an engine that is "overloaded" expects to take such a request, if it knows."""
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
    """Prompt tokens whose KV came from the prefix cache since the start."""
    prompt_tokens: int
    output_tokens: int
    preemptions: int
    step_seconds: float
    """Moving average of one step's duration."""
    predicted_queue_seconds: float = 0.0
    """Predicted time until a request behind all those that wait would start."""
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    """Drafted tokens that were right, since the start; `drafted_tokens` counts all of them."""
    lent_blocks: int = 0
    """KV blocks that hold adapters."""
    adapter_loads: int = 0
    """Adapters copied to the device since the start; `adapter_evictions` counts those removed from it for others."""
    adapter_evictions: int = 0
    host_blocks: int = 0
    host_free_blocks: int = 0
    host_cached_blocks: int = 0
    """KV blocks in host memory; those neither free nor cached are being loaded."""
    host_hit_tokens: int = 0
    """Tokens of `prefix_hit_tokens` that came from host memory."""
    host_saved_bytes: int = 0
    host_loaded_bytes: int = 0
    """Bytes of KV copied back from host memory since the start; `host_saved_bytes` counts those copied there."""
    draining: bool = False
    """Whether the engine is going away and refuses new requests."""
    adapters: tuple[str, ...] | None = None
    """Adapter versions on the device, at most `MAX_RESIDENT_NAMED`; only in the first frame and heartbeats."""


class RopeRegimes(msgspec.Struct, frozen=True):
    """Which prompts may share KV, for models whose rotary frequencies depend on the prompt's length."""

    above: int
    """Prompt tokens up to which all prompts are of one regime."""
    each_length: bool = False
    """Whether longer prompts share KV only with prompts of their own length; else with all longer ones."""

    def of(self, prompt_tokens: int) -> int:
        """Return the number of a prompt's regime."""
        if prompt_tokens <= self.above:
            return 0
        return prompt_tokens if self.each_length else 1


class ModelInfo(msgspec.Struct, frozen=True, omit_defaults=True):
    """Describes the model behind an engine to clients."""

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
    """Type of keys and values; empty means that of `dtype`."""


class Ready(msgspec.Struct, frozen=True, tag="ready", omit_defaults=True):
    """First frame of a connection."""

    protocol: int
    """Newest version of this protocol that the engine speaks."""
    model: ModelInfo
    load: Load
    tells_blocks: bool = False
    """Whether the engine understands `Follow`."""
    protocol_min: int | None = None
    """Oldest version that the engine gets on with; None: `protocol` alone."""
    id: Annotated[str, msgspec.Meta(pattern=PROCESS_ID)] = ""
    """Id of the engine's process: another one at the same address has another id. Older engines tell none."""


class Step(msgspec.Struct, frozen=True, tag="step"):
    """Outputs of one engine step for this connection; also sent without outputs as a heartbeat, every second."""

    outputs: list[Output]
    load: Load


class Blocks(msgspec.Struct, frozen=True, tag="blocks", omit_defaults=True):
    """Prefix blocks gained and lost since the last such frame; sent before the `Step` that changed them.

    The first one after `Follow` names all that there are. Blocks go by numbers (`engine/cache/prefix_keys.py`).
    """

    stored: bytes = b""
    removed: bytes = b""
    cleared: bool = False
    """Whether all blocks told before this frame are void."""


ServerFrame = Ready | Step | Blocks

encode = msgspec.msgpack.Encoder().encode
_client_decoder: msgspec.msgpack.Decoder[ClientFrame] = msgspec.msgpack.Decoder(ClientFrame)
_server_decoder: msgspec.msgpack.Decoder[ServerFrame] = msgspec.msgpack.Decoder(ServerFrame)
_Frame = TypeVar("_Frame")


def decode_client_frame(message: bytes) -> ClientFrame:
    """Decode a frame that a client has sent.

    Raises:
        msgspec.DecodeError: it is no frame, and why.
    """
    return _decode(_client_decoder, message)


def decode_server_frame(message: bytes) -> ServerFrame:
    """Decode a frame that an engine has sent.

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
