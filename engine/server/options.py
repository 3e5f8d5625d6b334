"""The options of an engine process. Each field of `EngineOptions` is one: its type, limits, default and help.

The command line and docs/engine-options.md are made from them; a test compares the page.
"""

from __future__ import annotations

import os
import re
import types
import typing
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin
from urllib.parse import urlsplit

import click
import msgspec
from msgspec import Meta

from engine.adapters.residency import ResidencyConfig
from engine.cache.blocks import BLOCK_SIZE
from engine.checkpoint.verification import Verification
from engine.scheduling.config import SchedulerConfig
from engine.tls import Certificate
from engine.wire import PolicyName

File = Annotated[Path, click.Path(exists=True, dir_okay=False, path_type=Path)]
Checkpoint = Annotated[Path, click.Path(exists=True, path_type=Path)]
Positive = Annotated[int, Meta(ge=1)]
NotNegative = Annotated[int, Meta(ge=0)]

_ADAPTERS = ResidencyConfig()
_SCHEDULER = SchedulerConfig(blocks=1)


class EngineOptions(msgspec.Struct, frozen=True, kw_only=True):
    """One engine process.

    Raises:
        ValueError: options do not go together; the message names them.
    """

    model: Annotated[Checkpoint, Meta(description="Checkpoint: a folder in Hugging Face format, or a GGUF file.")]
    sha256: Annotated[
        str | None,
        Meta(
            description="SHA-256 that the checkpoint, or its manifest, must have; another one is refused, see "
            "[models.md](models.md#digests).",
        ),
    ] = None
    verify: Annotated[
        Literal["strict", "background", "off"],
        Meta(
            description="Compare checkpoints that have a [manifest](models.md#manifests) with it while they load. "
            "strict: no request is taken before every byte was compared; background: requests are taken, and the "
            "engine ends when it finds damage. Those without a manifest are not compared."
        ),
    ] = "strict"
    name: Annotated[str | None, Meta(description="Name of the model for clients; default: the checkpoint's.")] = None
    listen: Annotated[
        str,
        Meta(
            description="Address to listen on. ws://HOST:PORT (port 0 picks a free one) and unix:///PATH have no "
            "authentication: for this machine or a network of its own. wss://HOST:PORT needs the three --tls options "
            "and admits only gateways with a certificate.",
            extra={"metavar": "ADDRESS"},
        ),
    ] = "ws://127.0.0.1:0"
    tls_cert: Annotated[File | None, Meta(description="Certificate for the host that gateways connect to (PEM).")] = (
        None
    )
    tls_key: Annotated[File | None, Meta(description="Private key of that certificate (PEM, no password).")] = None
    tls_client_ca: Annotated[File | None, Meta(description="Authorities of the gateways' certificates (PEM).")] = None
    probes: Annotated[
        str | None,
        Meta(
            description="Second address, for probes and metrics alone (/healthz, /readyz, /metrics), in plain HTTP: "
            "orchestrators have no certificate for wss://. --listen answers them as well.",
            extra={"metavar": "HOST:PORT"},
        ),
    ] = None
    pool: Annotated[
        str,
        Meta(
            description="Pool that the engine belongs to: a gateway's tier, such as small. Its processes are known as "
            "<pool>-<12 hex digits>."
        ),
    ] = "engine"
    register: Annotated[
        str | None,
        Meta(
            description="Redis of the gateways, as their redis.url names it, in which the engine announces itself, "
            "see [operating.md](operating.md#engines-that-announce-themselves); also ROUNDHOUSE_REGISTER, for an "
            "address with a password.",
            extra={"metavar": "URL", "envvar": "ROUNDHOUSE_REGISTER"},
        ),
    ] = None
    register_key: Annotated[
        File | None, Meta(description="File with the key that `roundhouse engine key` prints; --register needs it.")
    ] = None
    register_ca: Annotated[
        File | None,
        Meta(description="Authorities of Redis' certificates (PEM), for --register with TLS; default: the machine's."),
    ] = None
    register_cert: Annotated[
        File | None,
        Meta(description="Certificate of this engine for Redis (PEM), where Redis asks for one; with --register-ca."),
    ] = None
    register_cert_key: Annotated[
        File | None, Meta(description="Private key of that certificate (PEM, no password).")
    ] = None
    advertise: Annotated[
        str | None,
        Meta(
            description="Address at which gateways reach it, for --register; default: that of --listen.",
            extra={"metavar": "ADDRESS"},
        ),
    ] = None
    server_name: Annotated[
        str | None,
        Meta(description="Name that its certificate is for, for --register; default: the host of the address."),
    ] = None
    zone: Annotated[str, Meta(description="Zone that its machine is in, for --register.")] = ""
    spot: Annotated[
        bool,
        Meta(
            description="Say with --register that its machine may be taken away at short notice.",
            extra={"is_flag": True},
        ),
    ] = False
    device: Annotated[Literal["cpu", "cuda"], Meta(description="Device that the model runs on.")] = "cpu"
    dtype: Annotated[
        Literal["auto", "float32", "bfloat16"],
        Meta(
            description="Data type of weights and activations; auto is what the checkpoint stores. Quantised weights "
            "stay as they are stored: there it is the type of activations, and auto float32 on CPUs, bfloat16 on GPUs."
        ),
    ] = "auto"
    kv_dtype: Annotated[
        Literal["auto", "fp32", "fp16", "bf16", "fp8", "int8"],
        Meta(
            description="Data type of keys and values; auto is that of the activations, or if the checkpoint's weights "
            "are quantised fp16 or, with bfloat16 activations, bf16. fp8 and int8 hold twice the tokens of bf16 in the "
            "same memory; int8 is the more exact of the two. fp16 is for CPUs only, and fp32 needs float32 activations."
        ),
    ] = "auto"
    quantize: Annotated[
        Literal["off", "int8", "w8a16", "int4"],
        Meta(
            description="Round the weights of linear layers while loading, which takes half (int8, w8a16) or a quarter "
            "(int4) of the memory and is faster. int8 and w8a16 differ in how products are computed. Needs bfloat16; "
            "embeddings stay as they are, and int4 leaves the head in int8. Applies to the draft model too."
        ),
    ] = "off"
    yarn_factor: Annotated[
        float | None,
        Meta(
            gt=1,
            description="Stretch the model's context by this factor with YaRN, as far as its card says that it was "
            "made for (Qwen2.5: 4). It costs a little quality in short texts. The draft model is not stretched.",
        ),
    ] = None
    threads: Annotated[Positive | None, Meta(description="CPU threads; default: all CPUs that it may run on.")] = None
    kv_tokens: Annotated[
        int,
        Meta(
            ge=BLOCK_SIZE,
            description="Tokens that the KV cache holds, for all requests and cached prefixes; it bounds the context.",
        ),
    ] = 32_768
    kv_host_bytes: Annotated[
        NotNegative,
        Meta(
            description="Bytes of host memory for prefixes that the KV cache has no room for; 0 forgets them. Use it "
            "where the device has memory of its own; on a CPU give the memory to --kv-tokens instead."
        ),
    ] = 0
    kv_load_tokens: Annotated[
        NotNegative,
        Meta(description="Tokens of the shortest prefix that is loaded from host memory; shorter ones are recomputed."),
    ] = _SCHEDULER.host_load_tokens
    max_running: Annotated[Positive, Meta(description="Most requests in one step.")] = _SCHEDULER.max_running
    step_tokens: Annotated[
        Positive,
        Meta(
            description="Most tokens in one step; longer prompts run in chunks. A lower number streams more smoothly "
            "beside long prompts, a higher one computes prompts faster."
        ),
    ] = _SCHEDULER.step_tokens
    policy: Annotated[
        PolicyName,
        Meta(
            description="Order in which requests are served: by arrival (fcfs), by service class and arrival "
            "(priority), or by service class and in equal shares of the tenants (fair)."
        ),
    ] = _SCHEDULER.policy
    max_queue_seconds: Annotated[
        float | None,
        Meta(
            gt=0,
            description="Refuse requests whose predicted wait for a first step is longer; requests may name a "
            "shorter one. No limit unless given.",
        ),
    ] = None
    drain_timeout: Annotated[
        float,
        Meta(
            ge=0,
            le=86_400,
            description="Seconds that running requests have to end after SIGTERM; then the rest goes on in other "
            "engines.",
        ),
    ] = 30.0
    adapters: Annotated[
        str | None,
        Meta(
            description="Registry of LoRA adapters: a folder, or an address such as s3://bucket/path. The gateway "
            "needs the same.",
            extra={"metavar": "URL"},
        ),
    ] = None
    speculate: Annotated[
        Literal["off", "ngram", "draft", "auto"],
        Meta(
            description="Draft tokens and verify several in one step: with earlier text (ngram), with a draft model "
            "(draft), or with whichever drafts better (auto). Answers stay the same; the engine stops drafting where "
            "it does not pay."
        ),
    ] = "off"
    draft_model: Annotated[
        Checkpoint | None,
        Meta(description="Checkpoint of a small model with the same tokenizer, for --speculate draft and auto."),
    ] = None
    draft_tokens: Annotated[int, Meta(ge=1, le=15, description="Most tokens drafted per request and step.")] = 8
    adapter_share: Annotated[
        float,
        Meta(
            gt=0,
            lt=1,
            description="Largest part of the KV cache that adapters may hold; the rest bounds the context.",
        ),
    ] = _ADAPTERS.share
    adapter_host_bytes: Annotated[
        NotNegative,
        Meta(description="Bytes of host memory for prepared adapters; the least recently used ones leave first."),
    ] = _ADAPTERS.host_bytes
    adapter_step_bytes: Annotated[
        Positive | None,
        Meta(
            description="Most bytes of different adapters in one step, which reads each of them once: a lower number "
            "keeps steps short, a higher one lets more adapters run at once. No limit unless given."
        ),
    ] = None
    adapter_wait: Annotated[
        float,
        Meta(ge=0, description="Seconds that an adapter waits for room before another one takes no more requests."),
    ] = _ADAPTERS.wait
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"],
        Meta(description="Least severe level that is logged to standard error."),
    ] = "info"

    def __post_init__(self) -> None:
        tls = [self.tls_cert, self.tls_key, self.tls_client_ca]
        if any(tls) and not all(tls):
            raise ValueError("--tls-cert, --tls-key and --tls-client-ca belong together: give all three")
        if not re.fullmatch(r"[A-Za-z0-9_.-]{1,48}", self.pool):
            raise ValueError("--pool: 1 to 48 letters, digits, '_', '.' and '-'")
        if self.register is not None:
            self._check_registration()
        if self.probes is not None and not re.fullmatch(r"(\[[0-9a-f:.]+\]|[^:\[\]]+):\d{1,5}", self.probes):
            raise ValueError("--probes: give HOST:PORT, such as 0.0.0.0:9002 or [::]:9002")
        if self.speculate == "draft" and self.draft_model is None:
            raise ValueError("--speculate draft needs --draft-model; without one choose ngram or auto")
        if self.draft_model is not None and self.speculate not in ("draft", "auto"):
            raise ValueError(f"--draft-model is of no use with --speculate {self.speculate}; choose draft or auto")

    def _check_registration(self) -> None:
        if self.register_key is None:
            raise ValueError("--register needs --register-key, the key that `roundhouse engine key` prints")
        own = (self.register_cert, self.register_cert_key)
        if any(own) and not (all(own) and self.register_ca):
            raise ValueError("--register-cert, --register-cert-key and --register-ca belong together: give all three")
        address = urlsplit(self.advertise or self.listen)
        if address.scheme not in ("ws", "wss", "unix") or address.hostname in ("0.0.0.0", "::"):
            raise ValueError("--register needs an address that gateways can connect to: give it as --advertise")

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

    @property
    def register_certificate(self) -> Certificate | None:
        """Files for TLS to Redis, if they are given."""
        if self.register_ca is None:
            return None
        cert, key = (None if each is None else str(each) for each in (self.register_cert, self.register_cert_key))
        return Certificate(str(self.register_ca), cert, key)

    def verification(self) -> Verification:
        """Begin to compare the checkpoints with their manifests. Beside requests it takes one CPU at most.

        Raises:
            ValueError: a manifest cannot be read, or lists other files or sizes than its checkpoint has.
        """
        checkpoints = [path for path in (self.model, self.draft_model) if path is not None and self.verify != "off"]
        return Verification(checkpoints, threads=self.cpu_threads if self.verify == "strict" else 1)

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
