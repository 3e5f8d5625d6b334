"""The options of an engine process. Each field of `EngineOptions` is one: its type, limits, default and help.

The command line and docs/engine-options.md are made from them; a test compares the page.
"""

from __future__ import annotations

import os
import types
import typing
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

import click
import msgspec
from msgspec import Meta

from engine.adapters.residency import ResidencyConfig
from engine.cache.blocks import BLOCK_SIZE
from engine.scheduling.config import SchedulerConfig
from engine.tls import Certificate
from engine.wire import PolicyName

File = Annotated[Path, click.Path(exists=True, dir_okay=False, path_type=Path)]
Directory = Annotated[Path, click.Path(exists=True, file_okay=False, path_type=Path)]
Positive = Annotated[int, Meta(ge=1)]
NotNegative = Annotated[int, Meta(ge=0)]

_ADAPTERS = ResidencyConfig()
_SCHEDULER = SchedulerConfig(blocks=1)


class EngineOptions(msgspec.Struct, frozen=True, kw_only=True):
    """One engine process.

    Raises:
        ValueError: options do not go together; the message names them.
    """

    model: Annotated[Directory, Meta(description="Directory of the checkpoint in Hugging Face format.")]
    name: Annotated[str | None, Meta(description="What clients call the model; the directory's name unless given.")] = (
        None
    )
    listen: Annotated[
        str,
        Meta(
            description="ws://HOST:PORT (port 0 picks a free one) or unix:///PATH: without authentication, for this "
            "machine or a network of its own. wss://HOST:PORT with the three --tls options: for gateways with a "
            "certificate only.",
            extra={"metavar": "ADDRESS"},
        ),
    ] = "ws://127.0.0.1:0"
    tls_cert: Annotated[
        File | None, Meta(description="The engine's certificate, for the host in gateways' addresses (PEM).")
    ] = None
    tls_key: Annotated[File | None, Meta(description="Private key of that certificate (PEM, without a password).")] = (
        None
    )
    tls_client_ca: Annotated[
        File | None, Meta(description="Authorities whose certificates gateways must have (PEM).")
    ] = None
    device: Annotated[Literal["cpu", "cuda"], Meta(description="Where the model runs.")] = "cpu"
    dtype: Annotated[
        Literal["auto", "float32", "bfloat16"],
        Meta(description="Data type of weights and activations; auto is what the checkpoint stores."),
    ] = "auto"
    kv_dtype: Annotated[
        Literal["auto", "bf16", "fp8", "int8"],
        Meta(
            description="Data type of keys and values; auto is that of the activations. fp8 and int8 hold twice the "
            "tokens of bf16 in the same memory; int8 is the more exact of the two."
        ),
    ] = "auto"
    quantize: Annotated[
        Literal["off", "int8", "w8a16", "int4"],
        Meta(
            description="Round the weights of linear layers while loading: half (int8, w8a16) or a quarter (int4) of "
            "the memory, and faster. int8 rounds activations, too, at each product. Needs bfloat16; embeddings stay "
            "as they are, and int4 leaves the head in int8. Holds for the draft model too."
        ),
    ] = "off"
    threads: Annotated[
        Positive | None, Meta(description="CPU threads; as many as the process may run on unless given.")
    ] = None
    kv_tokens: Annotated[
        int,
        Meta(
            ge=BLOCK_SIZE,
            description="Tokens that the KV cache holds, of all requests and cached prefixes together; it bounds the "
            "context.",
        ),
    ] = 32_768
    kv_host_bytes: Annotated[
        NotNegative,
        Meta(
            description="Host memory for prefixes that the KV cache has no room for; 0 forgets them. It pays where the "
            "device has memory of its own: on a CPU give the memory to --kv-tokens instead."
        ),
    ] = 0
    kv_load_tokens: Annotated[
        NotNegative,
        Meta(description="Shortest prefix that is loaded from host memory; a shorter one is computed again."),
    ] = _SCHEDULER.host_load_tokens
    max_running: Annotated[Positive, Meta(description="Most requests in one step.")] = _SCHEDULER.max_running
    step_tokens: Annotated[
        Positive,
        Meta(
            description="Most tokens in one step; longer prompts run in chunks. Fewer stream more smoothly beside long "
            "prompts, more run prompts faster."
        ),
    ] = _SCHEDULER.step_tokens
    policy: Annotated[
        PolicyName,
        Meta(
            description="Who goes first: in order of arrival (fcfs), by service class and arrival (priority), or by "
            "service class and equal shares of the tenants (fair)."
        ),
    ] = _SCHEDULER.policy
    max_queue_seconds: Annotated[
        float | None,
        Meta(
            gt=0,
            description="Longest predicted wait for a first step, beyond which a request is refused; requests may name "
            "a shorter time themselves.",
        ),
    ] = None
    adapters: Annotated[
        str | None,
        Meta(
            description="Registry of LoRA adapters: a folder, or an address such as s3://bucket/path. The gateway that "
            "names them needs the same.",
            extra={"metavar": "URL"},
        ),
    ] = None
    speculate: Annotated[
        Literal["off", "ngram", "draft", "auto"],
        Meta(
            description="Guess tokens and confirm several in one step: from what the text has said before (ngram), "
            "with a draft model, or whichever guesses better (auto). Answers stay the same; it stops by itself where "
            "it does not pay."
        ),
    ] = "off"
    draft_model: Annotated[
        Directory | None,
        Meta(description="Directory of a small model with the same tokenizer, for --speculate draft and auto."),
    ] = None
    draft_tokens: Annotated[int, Meta(ge=1, le=15, description="Most tokens guessed per request and step.")] = 8
    adapter_share: Annotated[
        float,
        Meta(
            gt=0,
            lt=1,
            description="Most of the KV cache that adapters hold together. It bounds the context: a request has the "
            "rest for itself.",
        ),
    ] = _ADAPTERS.share
    adapter_host_bytes: Annotated[
        NotNegative,
        Meta(description="Host memory for prepared adapters; beyond it the least recently used leave first."),
    ] = _ADAPTERS.host_bytes
    adapter_step_bytes: Annotated[
        Positive | None,
        Meta(
            description="Most bytes of different adapters in one step, which reads each of them once: fewer keep steps "
            "short, more let more adapters run at once. No limit unless given."
        ),
    ] = None
    adapter_wait: Annotated[
        float,
        Meta(ge=0, description="Seconds that an adapter waits for others before one of them takes no more requests."),
    ] = _ADAPTERS.wait
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"],
        Meta(description="Least severe level that is logged, to standard error."),
    ] = "info"

    def __post_init__(self) -> None:
        tls = [self.tls_cert, self.tls_key, self.tls_client_ca]
        if any(tls) and not all(tls):
            raise ValueError("--tls-cert, --tls-key and --tls-client-ca belong together: give all three")
        if self.speculate == "draft" and self.draft_model is None:
            raise ValueError("--speculate draft needs --draft-model; without one choose ngram or auto")
        if self.draft_model is not None and self.speculate not in ("draft", "auto"):
            raise ValueError(f"--draft-model is of no use with --speculate {self.speculate}; choose draft or auto")

    @property
    def cpu_threads(self) -> int:
        """Number of threads that compute, at least one."""
        return self.threads or len(os.sched_getaffinity(0))

    @property
    def certificate(self) -> Certificate | None:
        """Files for mutual TLS, if they are given."""
        if self.tls_client_ca is None:
            return None
        return Certificate(str(self.tls_client_ca), str(self.tls_cert), str(self.tls_key))

    def scheduler(self) -> SchedulerConfig:
        """
        Raises:
            ValueError: the sizes do not go together.
        """
        return SchedulerConfig(
            blocks=-(-self.kv_tokens // BLOCK_SIZE),
            step_tokens=self.step_tokens,
            max_running=self.max_running,
            policy=self.policy,
            max_queue_seconds=self.max_queue_seconds,
            host_load_tokens=self.kv_load_tokens,
        )

    def residency(self) -> ResidencyConfig:
        """Bounds of what adapters may hold."""
        return ResidencyConfig(
            share=self.adapter_share,
            host_bytes=self.adapter_host_bytes,
            step_bytes=self.adapter_step_bytes,
            wait=self.adapter_wait,
        )


def parameters(options: type[msgspec.Struct]) -> list[click.Parameter]:
    """Make a command-line option of each field of a struct: click parses it, checks its limits and explains it."""
    hints = typing.get_type_hints(options, include_extras=True)
    return [_option(field, hints[field.name]) for field in msgspec.structs.fields(options)]


def _option(field: msgspec.structs.FieldInfo, hint: Any) -> click.Option:
    kind, notes = _unfolded(hint)
    meta = {
        name: value
        for note in notes
        for name in ("description", "extra", "ge", "gt", "le", "lt")
        if (value := getattr(note, name, None)) is not None
    }
    [type_] = [note for note in notes if isinstance(note, click.ParamType)] or [_type(kind, meta)]
    return click.Option(
        [f"--{field.name.replace('_', '-')}"],
        type=type_,
        help=meta["description"],
        show_default=True,
        **({"required": True} if field.required else {"default": field.default}),
        **meta.get("extra", {}),
    )


def _type(kind: Any, meta: dict[str, Any]) -> Any:
    if get_origin(kind) is Literal:
        return click.Choice(get_args(kind))
    low, high = (meta.get(strict, meta.get(loose)) for strict, loose in (("gt", "ge"), ("lt", "le")))
    if low is None and high is None:
        return kind
    ranged = click.FloatRange if kind is float else click.IntRange
    return ranged(low, high, min_open="gt" in meta, max_open="lt" in meta)


def _unfolded(hint: Any) -> tuple[Any, list[Any]]:
    """Return the type inside `Annotated` and `... | None`, and the annotations around it."""
    notes: list[Any] = []
    while True:
        if get_origin(hint) is Annotated:
            hint, *more = get_args(hint)
            notes += more
        elif types.NoneType in get_args(hint):
            [hint] = [each for each in get_args(hint) if each is not types.NoneType]
        else:
            return hint, notes
