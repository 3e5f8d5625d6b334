"""The `[[pools]]` section: tiers, and the models and engines that serve them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, Literal
from urllib.parse import urlsplit

from msgspec import Meta

from engine.wire import PolicyName
from gateway.config.redis import without_secrets
from gateway.config.secret_file import read_secret
from gateway.config.windows import PoolWindow
from gateway.models.catalogue import Sha256
from gateway.records.section import Positive, Seconds, Section, SettingsError
from scale.schedule import bounds_at
from scale.signals import PoolBounds

Tier = Literal["small", "medium", "large"]
DialectName = Literal["roundhouse", "llama.cpp", "llama.cpp-llguidance", "vllm", "sglang"]
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
    model: Annotated[str, Meta(description="Checkpoint: a folder in Hugging Face format, or a GGUF file.")]
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
            "only read for its tokenizer and chat template."
        ),
    ] = "roundhouse"
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


def check_pools(pools: Sequence[PoolSettings]) -> None:
    """Raises SettingsError: there is none, or the fields of one contradict each other."""
    if not pools:
        raise SettingsError("pools: at least one pool is needed")
    for pool in pools:
        _check_engines(pool)
        _check_replicas(pool)
        if pool.quantize != "off" and pool.dtype != "bfloat16":
            raise SettingsError(
                f'pools: quantize of the {pool.tier} pool is {pool.quantize!r}, which needs dtype = "bfloat16"'
            )
        if pool.step_tokens < pool.max_running:
            raise SettingsError(
                f"pools: step_tokens ({pool.step_tokens}) of the {pool.tier} pool must be at least its max_running "
                f"({pool.max_running})"
            )


def _check_engines(pool: PoolSettings) -> None:
    """Raises SettingsError: an address is none, or its engines are of another dialect than it says."""
    schemes: tuple[str, ...]
    if pool.dialect == "roundhouse":
        schemes, form = ("ws", "wss", "unix"), "ws(s)://host:port or unix:///path"
        if pool.api_key_file is not None:
            raise SettingsError(f"pools: api_key_file of the {pool.tier} pool needs another dialect")
        if pool.adapter_folder is not None:
            raise SettingsError(f"pools: adapter_folder of the {pool.tier} pool needs another dialect")
    else:
        schemes, form = ("http", "https"), "http(s)://host:port"
        if not pool.engines or pool.registered:
            raise SettingsError(
                f"pools: the {pool.tier} pool is of {pool.dialect} servers, which `serve` does not start and which do "
                "not announce themselves: name their addresses in engines, and leave out registered"
            )
        _ = pool.api_key  # refused now rather than at the first request
    for address in pool.engines:
        if not _is_address(address, schemes):
            raise SettingsError(f"pools: engines: {without_secrets(address)!r} is no address; use {form}")


def _is_address(address: str, schemes: Sequence[str]) -> bool:
    try:
        parts = urlsplit(address)
        _ = parts.port
    except ValueError:
        return False
    return parts.scheme in schemes and "@" not in parts.netloc and bool(parts.hostname or parts.scheme == "unix")


def _check_replicas(pool: PoolSettings) -> None:
    """Raises SettingsError: how many engines it may have is contradictory."""
    try:
        bounds = pool.bounds
        for window in pool.windows:
            _check_window(pool, window, bounds)
    except ValueError as error:
        raise SettingsError(f"pools: the {pool.tier} pool: {error}") from error
    if pool.max_replicas is None:
        if pool.on_demand_replicas:
            raise SettingsError(f"pools: on_demand_replicas of the {pool.tier} pool needs max_replicas")
        if pool.own and pool.min_replicas != 1:
            raise SettingsError(
                f"pools: min_replicas of the {pool.tier} pool is {pool.min_replicas}, but `serve` starts one engine: "
                "set max_replicas too, or registered, or name engines that run elsewhere"
            )
    elif pool.engines:
        raise SettingsError(
            f"pools: max_replicas of the {pool.tier} pool has no effect on the engines that it names; leave out either"
        )


def _check_window(pool: PoolSettings, window: PoolWindow, bounds: PoolBounds) -> None:
    """Raises ValueError: it contradicts itself, or its pool."""
    if not pool.scaled:
        raise ValueError("windows need max_replicas")
    if window.min_replicas == 0 < pool.min_replicas:
        raise ValueError("a window in which it may sleep needs min_replicas = 0 of the pool, so that turns wait for it")
    high = window.bounds.max_replicas
    low = pool.min_replicas if window.min_replicas is None else window.min_replicas
    if high is not None and max(low, pool.on_demand_replicas) > high:
        raise ValueError(f"max_replicas of a window is {high}, below min_replicas or on_demand_replicas")
    if low > bounds.affordable:
        raise ValueError(f"the budget pays {bounds.affordable:g} replicas, fewer than min_replicas of a window, {low}")
