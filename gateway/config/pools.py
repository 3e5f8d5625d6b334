"""The `[[pools]]` section: tiers, and the models and engines that serve them."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from msgspec import Meta

from engine.wire import PolicyName
from gateway.config.secret_file import read_secret
from gateway.config.windows import PoolWindow
from gateway.models.catalogue import Sha256
from gateway.records.section import Positive, Seconds, Section, SettingsError
from scale.schedule import bounds_at
from scale.signals import PoolBounds

Tier = Literal["small", "medium", "large"]
DialectName = Literal[
    "roundhouse",
    "llama.cpp",
    "llama.cpp-llguidance",
    "vllm",
    "sglang",
    "tensorrt-llm",
    "onnxruntime",
    "openai",
    "ollama",
    "tgi",
    "anthropic",
]
MESSAGE_DIALECTS: frozenset[DialectName] = frozenset({"openai", "ollama", "tgi", "anthropic"})
"""Dialects of servers that answer conversations; the others continue token ids."""
LOADING_DIALECTS: frozenset[DialectName] = frozenset({"vllm", "sglang"})
"""Dialects of servers that load adapters while they run."""
UNTOLD_CONTEXT: frozenset[DialectName] = MESSAGE_DIALECTS | {"tensorrt-llm"}
"""Dialects of servers that do not tell how many tokens a request may have."""
Quantization = Literal["off", "int8", "w8a16", "int4"]
TIERS: tuple[Tier, ...] = ("small", "medium", "large")


class PoolSettings(Section, frozen=True):
    """A model and the engines that serve it, for one tier."""

    tier: Annotated[
        Tier,
        Meta(
            description="Tier that this pool answers for. Of a tier's pools the first one that is able to stands in "
            "for another that is not."
        ),
    ]
    name: Annotated[str, Meta(description="Public name of the model; each pool has another one.")]
    model: Annotated[
        str,
        Meta(
            description="Checkpoint: a folder in Hugging Face format, or a GGUF file. Of servers that "
            "[take messages](upstreams.md#servers-that-take-messages): the name of the model there."
        ),
    ]
    sha256: Annotated[
        Sha256 | None,
        Meta(
            description="Digest that the checkpoint must have, see [models.md](models.md#digests); a model of the "
            "store has the one that it was pulled with.",
        ),
    ] = None
    verify: Annotated[
        Literal["strict", "background", "off"],
        Meta(
            description="When an engine that `serve` starts compares the checkpoint with its manifest, if it has one: "
            "before the first request, beside requests, or never. See [models.md](models.md#manifests)."
        ),
    ] = "strict"
    engines: Annotated[
        list[str],
        Meta(
            description="ws://, wss:// or unix:// addresses of running engines, or http(s):// addresses of servers of "
            "another `dialect`; empty: `serve` starts an engine."
        ),
    ] = []
    dialect: Annotated[
        DialectName,
        Meta(
            description="What its `engines` are: ours, or [servers of another project](upstreams.md). `model` is then "
            "only read for its tokenizer and chat template, if at all."
        ),
    ] = "roundhouse"
    context: Annotated[
        Positive | None,
        Meta(
            description="Most tokens of a conversation and its answer, for servers that do not tell: those that take "
            "messages, and TensorRT-LLM's."
        ),
    ] = None
    api_key_file: Annotated[
        str | None, Meta(description="File with the key that servers of another `dialect` want; empty: they want none.")
    ] = None
    adapter_folder: Annotated[
        str | None,
        Meta(
            description="Folder of the registry of adapters as servers of another `dialect` see it, which load "
            "[adapters](upstreams.md#adapters) from there; empty: they have those that they were started with."
        ),
    ] = None
    max_adapters: Annotated[
        int, Meta(ge=1, le=1000, description="Most adapters that each of these servers holds at the same time.")
    ] = 4
    registered: Annotated[
        bool,
        Meta(
            description="Whether engines that [announce themselves](operating.md#engines-that-announce-themselves) "
            "join; then `serve` starts none."
        ),
    ] = False
    min_replicas: Annotated[
        int,
        Meta(
            ge=0,
            le=1000,
            description="Fewest engines. 0: the pool [may sleep](operating.md#pools-that-sleep), that is have no "
            "engine while nobody wants it; from 1 on a gateway without an engine of it is degraded.",
        ),
    ] = 1
    max_replicas: Annotated[
        Annotated[int, Meta(ge=1, le=1000)] | None,
        Meta(
            description="Most engines, between which and `min_replicas` their number "
            "[follows the load](operating.md#how-many-engines); empty: `serve` starts one, or who registers engines "
            "decides."
        ),
    ] = None
    on_demand_replicas: Annotated[
        int,
        Meta(
            ge=0,
            le=1000,
            description="Fewest engines on machines that are not spot machines, unless the pool sleeps. They are "
            "started first, and end last.",
        ),
    ] = 0
    spare_replicas: Annotated[
        int,
        Meta(ge=0, le=1000, description="Engines beyond what the load needs: 1 bears the loss of an engine."),
    ] = 0
    start_seconds: Annotated[Seconds, Meta(description="Seconds from the start of an engine until it answers.")] = 60.0
    ttft_target: Annotated[
        Seconds,
        Meta(
            description="Aim for the time to the first token in its engines (p95), in seconds; more engines while it "
            "is missed."
        ),
    ] = 2.0
    replica_price: Annotated[float, Meta(ge=0, description="Price of one engine for an hour, for `budget`.")] = 0.0
    spot_price: Annotated[
        Annotated[float, Meta(gt=0)] | None,
        Meta(description="The same for an engine on a spot machine; empty: `replica_price`."),
    ] = None
    budget: Annotated[
        Annotated[float, Meta(gt=0)] | None,
        Meta(description="Most that its engines may cost in an hour; empty: no limit."),
    ] = None
    windows: Annotated[
        list[PoolWindow],
        Meta(
            description="Other bounds at certain times of the week, for a pool with `max_replicas`: "
            "[`windows` of a pool](#windows-of-a-pool)."
        ),
    ] = []
    when_asleep: Annotated[
        Literal["wait", "other_tier"],
        Meta(
            description="What becomes of turns that `auto` would give to it while it sleeps: they wait for an engine, "
            "or go to another tier. Turns that name it wait, for `turns.queue_timeout` at most."
        ),
    ] = "wait"
    device: Annotated[Literal["cpu", "cuda"], Meta(description="Device of an engine that `serve` starts.")] = "cpu"
    dtype: Annotated[
        Literal["float32", "bfloat16"],
        Meta(description="Data type of its activations, and of weights that are not quantised."),
    ] = "float32"
    quantize: Annotated[
        Quantization,
        Meta(
            description="Format to which an engine that `serve` starts rounds weights while loading, for half or a "
            "quarter of the memory; needs `bfloat16`. See [engine.md](engine.md#quantised-weights)."
        ),
    ] = "off"
    kv_dtype: Annotated[
        Literal["auto", "fp32", "fp16", "bf16", "fp8", "int8"],
        Meta(
            description="Data type of its keys and values, see [engine.md](engine.md#eight-bits); auto is `dtype`, and "
            "if the checkpoint's weights are quantised `fp16`, or `bf16` with bfloat16 activations."
        ),
    ] = "auto"
    yarn_factor: Annotated[
        Annotated[float, Meta(gt=1)] | None,
        Meta(
            description="Factor by which an engine that `serve` starts stretches the model's context, see "
            "[engine.md](engine.md#longer-contexts).",
        ),
    ] = None
    threads: Annotated[Positive, Meta(description="CPU threads of its engine.")] = 1
    kv_tokens: Annotated[
        Positive,
        Meta(
            description="Tokens that the KV cache of its engine holds. A request may have what `adapter_share` leaves "
            "of it: half, unless that is changed."
        ),
    ] = 32_768
    adapter_share: Annotated[
        float,
        Meta(
            gt=0,
            lt=1,
            description="Largest part of the KV cache that adapters may hold; no request may be longer than the rest. "
            "Lower it for a model with few adapters, or none.",
        ),
    ] = 0.5
    kv_host_bytes: Annotated[
        int,
        Meta(
            ge=0,
            description="Bytes of host memory for prefixes that its KV cache has no room for; 0: they are forgotten. "
            "For GPUs, see [engine.md](engine.md#kv-in-host-memory).",
        ),
    ] = 0
    max_running: Annotated[Positive, Meta(description="Most requests in one step.")] = 64
    step_tokens: Annotated[
        Positive,
        Meta(description="Most tokens in one step: fewer admit requests sooner, more compute prompts faster."),
    ] = 512
    policy: Annotated[
        PolicyName, Meta(description="Order of requests in its engine, see [engine.md](engine.md#who-goes-first).")
    ] = "fair"
    speculate: Annotated[
        Literal["off", "ngram", "draft", "auto"],
        Meta(
            description="Speculative decoding of an engine that `serve` starts: drafts from earlier text (ngram), "
            "from a draft model (draft), or from whichever is better (auto). Answers stay the same."
        ),
    ] = "off"
    draft_model: Annotated[
        str | None,
        Meta(
            description="Directory of a small model with the same tokenizer, for draft and auto; in the model's bits."
        ),
    ] = None
    tool_parser: Annotated[
        Literal["auto", "hermes", "llama", "mistral", "mistral-list", "pythonic", "neutral"],
        Meta(description="How its model writes function calls; auto asks its chat template."),
    ] = "auto"
    cost: Annotated[float, Meta(ge=0, description="Relative price of a token, for the router.")] = 1.0
    weight: Annotated[
        int,
        Meta(
            ge=0,
            le=1000,
            description="Share of its tier's conversations, beside [other pools of the tier]"
            "(upstreams.md#several-pools-of-a-tier); 0: it only stands in for them.",
        ),
    ] = 1
    max_turns: Annotated[
        int, Meta(ge=0, description="Most turns that one gateway has in its engines at the same time; 0: any number.")
    ] = 0

    @property
    def weights(self) -> str:
        """What answers: digest of the checkpoint, or its name where no digest is configured, and how it is rounded."""
        known = self.sha256 or self.name
        return known if self.quantize == "off" else f"{known} {self.quantize}"

    @property
    def own(self) -> bool:
        """Whether `serve` starts its engine."""
        return not (self.engines or self.registered)

    @property
    def api_key(self) -> str | None:
        """Key for its servers, read from its file each time, which may be exchanged; None: they want none.

        Raises:
            SettingsError: the file cannot be read, or holds no key.
        """
        if self.api_key_file is None:
            return None
        where = f"pools: {self.name}: api_key_file"
        key = read_secret(self.api_key_file, where)
        if not re.fullmatch(r"[\x21-\x7e]+", key):  # in a header it would be refused with a message that holds it
            raise SettingsError(f"{where}: {self.api_key_file} holds no key: use letters, digits and signs of ASCII")
        return key

    @property
    def takes_messages(self) -> bool:
        """Whether its servers answer conversations, so that its model is nowhere here."""
        return self.dialect in MESSAGE_DIALECTS

    @property
    def tells_context(self) -> bool:
        """Whether its servers tell how many tokens a request may have."""
        return self.dialect not in UNTOLD_CONTEXT

    @property
    def scaled(self) -> bool:
        """Whether a controller decides how many engines it has."""
        return self.max_replicas is not None

    @property
    def elastic(self) -> bool:
        """Whether `serve` starts and ends its engines as its controller decides."""
        return self.own and self.scaled

    @property
    def bounds(self) -> PoolBounds:
        """What the controller may decide outside of all windows.

        Raises:
            ValueError: the fields contradict each other.
        """
        return PoolBounds(
            min_replicas=self.min_replicas,
            max_replicas=max(1, self.min_replicas) if self.max_replicas is None else self.max_replicas,
            on_demand=self.on_demand_replicas,
            spare=self.spare_replicas,
            budget=self.budget,
            price=self.replica_price,
            spot_price=self.spot_price,
        )

    def bounds_at(self, at: float) -> PoolBounds:
        """What the controller may decide at a time in seconds since 1970.

        Raises:
            ValueError: the fields contradict each other.
        """
        return bounds_at(self.bounds, [window.bounds for window in self.windows], at)
