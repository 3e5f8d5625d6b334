"""The command line of one engine process: `python -m engine.server`, or `roundhouse engine serve`."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import os
import signal
import ssl
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NoReturn

import click

from engine.adapters.residency import ResidencyConfig
from engine.cache.blocks import BLOCK_SIZE
from engine.core import EngineCore, SchedulerConfig
from engine.execution.device_check import DeviceLost
from engine.scheduling.config import POLICIES
from engine.server.host import EngineServer
from engine.speculation.speculator import Speculate, Speculator
from engine.tls import Certificate, server_context
from engine.wire import PolicyName

if TYPE_CHECKING:
    from engine.cache.memory import KVDtype
    from engine.execution.runner import Dtype
    from kernels import Quantization

_FILE = click.Path(exists=True, dir_okay=False)

CONFIGURATION_ERROR = 2
"""Exit status when this engine cannot run with what it was given; trying again would not help."""
DEVICE_LOST = 3
"""Exit status when the device does not compute any more; a fresh process may find it well."""
_ADAPTERS = ResidencyConfig()
"""What adapters may hold unless told otherwise."""
_HOST_LOAD_TOKENS = SchedulerConfig(blocks=1).host_load_tokens


@click.command(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100, "show_default": True})
@click.option(
    "--model",
    required=True,
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Directory of the checkpoint in Hugging Face format.",
)
@click.option("--name", help="What clients call the model; the directory's name unless given.")
@click.option(
    "--listen",
    default="ws://127.0.0.1:0",
    metavar="ADDRESS",
    help="ws://HOST:PORT (port 0 picks a free one) or unix:///PATH: without authentication, for this machine or a "
    "network of its own. wss://HOST:PORT with the three --tls options: for gateways with a certificate only.",
)
@click.option("--tls-cert", type=_FILE, help="The engine's certificate, for the host in gateways' addresses (PEM).")
@click.option("--tls-key", type=_FILE, help="Its private key (PEM, without a password).")
@click.option("--tls-client-ca", type=_FILE, help="Authorities whose certificates gateways must have (PEM).")
@click.option("--device", type=click.Choice(["cpu", "cuda"]), default="cpu", help="Where the model runs.")
@click.option(
    "--dtype",
    type=click.Choice(["auto", "float32", "bfloat16"]),
    default="auto",
    help="Of weights and activations; auto is what the checkpoint stores.",
)
@click.option(
    "--kv-dtype",
    type=click.Choice(["auto", "bf16", "fp8", "int8"]),
    default="auto",
    help="Of keys and values; auto is that of the activations. fp8 and int8 hold twice the tokens of bf16 in the same "
    "memory; int8 is the more exact of the two.",
)
@click.option(
    "--quantize",
    type=click.Choice(["off", "int8", "w8a16", "int4"]),
    default="off",
    help="Round the weights of linear layers while loading: half (int8, w8a16) or a quarter (int4) of the memory, and "
    "faster. int8 rounds activations, too, at each product. Needs bfloat16; embeddings stay as they are, and int4 "
    "leaves the head in int8. Holds for the draft model too.",
)
@click.option("--threads", type=click.IntRange(min=1), default=len(os.sched_getaffinity(0)), help="CPU threads.")
@click.option(
    "--kv-tokens",
    type=click.IntRange(min=BLOCK_SIZE),
    default=32_768,
    help="Tokens that the KV cache holds, of all requests and cached prefixes together; it bounds the context.",
)
@click.option(
    "--kv-host-bytes",
    type=click.IntRange(min=0),
    default=0,
    help="Host memory for prefixes that the KV cache has no room for; 0 forgets them. It pays where the device has "
    "memory of its own: on a CPU give the memory to --kv-tokens instead.",
)
@click.option(
    "--kv-load-tokens",
    type=click.IntRange(min=0),
    default=_HOST_LOAD_TOKENS,
    help="A shorter prefix in host memory is computed again rather than loaded.",
)
@click.option("--max-running", type=click.IntRange(min=1), default=64, help="Most requests in one step.")
@click.option(
    "--step-tokens",
    type=click.IntRange(min=1),
    default=2048,
    help="Most tokens in one step; longer prompts run in chunks. Fewer stream more smoothly beside long prompts, more "
    "run prompts faster.",
)
@click.option(
    "--policy",
    type=click.Choice(POLICIES),
    default="fair",
    help="Who goes first: in order of arrival (fcfs), by service class and arrival (priority), or by service class and "
    "equal shares of the tenants (fair).",
)
@click.option(
    "--max-queue-seconds",
    type=click.FloatRange(min=0, min_open=True),
    help="Refuse requests whose first step is predicted to be further away; they may name a shorter time themselves.",
)
@click.option(
    "--adapters",
    metavar="URL",
    help="Registry of LoRA adapters: a folder, or an address such as s3://bucket/path. The gateway that names them "
    "needs the same.",
)
@click.option(
    "--speculate",
    type=click.Choice(["off", "ngram", "draft", "auto"]),
    default="off",
    help="Guess tokens and confirm several in one step: from what the text has said before (ngram), with a draft "
    "model, or whichever guesses better (auto). Answers stay the same; it stops by itself where it does not pay.",
)
@click.option(
    "--draft-model",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Directory of a small model with the same tokenizer, for --speculate draft and auto.",
)
@click.option("--draft-tokens", type=click.IntRange(1, 15), default=8, help="Most tokens guessed per request and step.")
@click.option(
    "--adapter-share",
    type=click.FloatRange(0, 1, min_open=True, max_open=True),
    default=_ADAPTERS.share,
    help="Most of the KV cache that adapters hold together. It bounds the context: a request has the rest for itself.",
)
@click.option(
    "--adapter-host-bytes",
    type=click.IntRange(min=0),
    default=_ADAPTERS.host_bytes,
    help="Memory for prepared adapters; beyond it those go that were not used for longest.",
)
@click.option(
    "--adapter-step-bytes",
    type=click.IntRange(min=1),
    help="Most bytes of different adapters in one step, which reads each of them once: fewer keep steps short, more "
    "let more adapters run at once. No limit unless given.",
)
@click.option(
    "--adapter-wait",
    type=click.FloatRange(min=0),
    default=_ADAPTERS.wait,
    help="Seconds that an adapter waits for others before one of them takes no more requests.",
)
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    default="info",
    help="Least severe level that is logged, to standard error.",
)
def main(
    model: Path,
    name: str | None,
    listen: str,
    tls_cert: str | None,
    tls_key: str | None,
    tls_client_ca: str | None,
    device: str,
    dtype: Dtype,
    quantize: Literal["off"] | Quantization,
    kv_dtype: KVDtype,
    threads: int,
    kv_tokens: int,
    kv_host_bytes: int,
    kv_load_tokens: int,
    max_running: int,
    step_tokens: int,
    policy: PolicyName,
    max_queue_seconds: float | None,
    adapters: str | None,
    speculate: Speculate,
    draft_model: Path | None,
    draft_tokens: int,
    adapter_share: float,
    adapter_host_bytes: int,
    adapter_step_bytes: int | None,
    adapter_wait: float,
    log_level: str,
) -> None:
    """Serve one model: token ids in, token ids out, as MessagePack frames over a WebSocket.

    Llama 2 and 3, Mistral, Qwen2, Qwen3 and Mixtral checkpoints are served as they are. When the engine can answer it
    prints one line of JSON with the address that clients connect to. SIGTERM ends it, and every request in it.

    \b
    Examples:
      python -m engine.server --model models/Qwen3-0.6B
      python -m engine.server --model models/Llama-3.1-8B --device cuda --kv-tokens 400000
      python -m engine.server --model models/Llama-3.1-8B --dtype bfloat16 --quantize int4
      python -m engine.server --model models/Llama-3.1-8B --dtype bfloat16 --kv-dtype int8 --kv-tokens 64000
      python -m engine.server --model deploy/demo/models/small --threads 1 --listen unix:///run/roundhouse/small.sock
      python -m engine.server --model deploy/demo/models/large --speculate auto --draft-model deploy/demo/models/small

    \b
    A gateway connects to it by its address in a pool (roundhouse.toml):
      [[pools]]
      engines = ["unix:///run/roundhouse/small.sock"]
    """
    try:
        tls = _tls(tls_cert, tls_key, tls_client_ca)
    except ValueError as error:
        _fail(str(error))
    logging.basicConfig(
        level=log_level.upper(), stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s %(message)s"
    )
    # Before torch is loaded: engines share a machine's cores, so that its threads must sleep, not spin, while there is
    # no work. The kernels' own do so by themselves (kernels/csrc/cpu/threads.h).
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    os.environ["OMP_NUM_THREADS"] = str(threads)
    # Half of what torch and oneDNN would keep of prepared products, one per shape; see bench/README.md.
    for capacity in ("LRU_CACHE_CAPACITY", "ONEDNN_PRIMITIVE_CACHE_CAPACITY"):
        os.environ.setdefault(capacity, "512")
    from engine.adapters.registry import Registry, RegistryError
    from engine.checkpoint.config import CheckpointError
    from engine.execution.draft_model import DraftModel
    from engine.execution.graphs.policy import CapturePolicy
    from engine.execution.runner import ModelRunner
    from engine.execution.warm_up import NotEnoughMemory, warm_up
    from engine.grammar.compiler import GrammarCompiler
    from engine.grammar.constraints import Constraints

    if (speculate == "draft") > (draft_model is not None):
        _fail("--speculate draft needs --draft-model; without one choose ngram or auto")
    if draft_model is not None and speculate not in ("draft", "auto"):
        _fail(f"--draft-model is of no use with --speculate {speculate}; choose draft or auto")
    try:
        source = None if adapters is None else Registry(adapters)
        residency = ResidencyConfig(
            share=adapter_share, host_bytes=adapter_host_bytes, step_bytes=adapter_step_bytes, wait=adapter_wait
        )
        config = SchedulerConfig(
            blocks=-(-kv_tokens // BLOCK_SIZE),
            step_tokens=step_tokens,
            max_running=max_running,
            policy=policy,
            max_queue_seconds=max_queue_seconds,
            host_load_tokens=kv_load_tokens,
        )
        runner = ModelRunner(
            model,
            blocks=config.blocks,
            device=device,
            dtype=dtype,
            quantize=None if quantize == "off" else quantize,
            kv_dtype=kv_dtype,
            name=name,
            adapters=source,
        )
        host = runner.host_memory(kv_host_bytes) if kv_host_bytes else None
    except CheckpointError as error:
        _fail(f"{model}: {error}")
    except (ValueError, RegistryError) as error:
        _fail(str(error))
    runners = [runner]
    speculator = None
    if speculate != "off":
        try:
            drafter = None if draft_model is None else DraftModel.from_directory(draft_model, runner, model)
        except CheckpointError as error:
            _fail(f"{draft_model}: {error}")
        if drafter is not None:
            runners.append(drafter.runner)
        speculator = Speculator(ngrams=speculate != "draft", model=drafter, tokens=draft_tokens)
    constraints = Constraints(GrammarCompiler(model, runner.info), runner.info.vocabulary, threads=threads)
    core = EngineCore(
        runner,
        runner.info,
        config,
        constraints=constraints,
        speculator=speculator,
        bank=runner.bank,
        residency=residency,
        host=host,
    )

    def prepare() -> None:
        drafted = 0 if speculator is None else draft_tokens
        warm_up(runners, config, draft_tokens=drafted, residency=residency, kv_host_bytes=kv_host_bytes)
        constraints.warm_up()
        for each in runners:
            each.record_decodes(CapturePolicy(config.max_running, each.info.context))

    # What was loaded lives as long as the process: collections need not look at it again.
    gc.collect()
    gc.freeze()
    try:
        asyncio.run(_serve(EngineServer(core, prepare=prepare), core, listen, tls))
    except NotEnoughMemory as error:
        _fail(str(error))
    except (OSError, ValueError) as error:
        _fail(f"cannot listen at {listen}: {error}")
    except RuntimeError as error:
        if isinstance(error.__cause__, DeviceLost):
            _give_up(error.__cause__)
        raise
    finally:
        core.close()
        constraints.close()


async def _serve(server: EngineServer, core: EngineCore, listen: str, tls: ssl.SSLContext | None) -> None:
    """Serve until a signal or the core's failure, which is raised."""
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    async with server.listening(listen, tls) as address:
        ready = {"event": "ready", "address": address, "model": core.model.name, "context": core.model.context}
        print(json.dumps(ready), flush=True)
        waiting = {asyncio.create_task(stop.wait()), asyncio.create_task(server.wait_failed())}
        _, pending = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        for task in pending:
            task.cancel()


def _tls(certificate: str | None, key: str | None, authority: str | None) -> ssl.SSLContext | None:
    """
    Raises:
        ValueError: some of the options are missing, or a file is not what it should be.
    """
    if certificate is None and key is None and authority is None:
        return None
    if certificate is None or key is None or authority is None:
        raise ValueError("--tls-cert, --tls-key and --tls-client-ca belong together: give all three")
    return server_context(Certificate(authority, certificate, key))


def _give_up(lost: DeviceLost) -> NoReturn:
    click.echo(f"engine: {lost}", err=True)
    sys.stdout.flush()
    logging.shutdown()
    # Not sys.exit(): what frees memory of such a device may wait for it, or end the process with a status of its own.
    os._exit(DEVICE_LOST)


def _fail(message: str) -> NoReturn:
    click.echo(f"engine: {message}", err=True)
    sys.exit(CONFIGURATION_ERROR)
