"""The command line of one engine process: `python -m engine.server`, or `roundhouse engine serve`."""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import gc
import json
import logging
import os
import secrets
import signal
import ssl
import sys
import time
from collections.abc import Iterator
from functools import partial
from typing import Any, NoReturn

import click

from engine.adapters.registry import RegistryError
from engine.checkpoint.errors import CheckpointError
from engine.checkpoint.verification import Verification
from engine.core import EngineCore
from engine.execution.device_check import DeviceLost
from engine.registration import Lease
from engine.server.announcer import Announcer, read_key
from engine.server.host import EngineServer
from engine.server.options import EngineOptions, parameters
from engine.tls import server_context
from engine.wire import PROTOCOL_MIN, PROTOCOL_VERSION

CONFIGURATION_ERROR = 2
"""Exit status when this engine cannot run with its options; trying again would not help."""
DEVICE_LOST, HUNG = 3, 4
"""Exit statuses when the device does not compute any more, and when a step does not end; a fresh process may be able
to go on."""


@click.command(
    params=parameters(EngineOptions),
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
def main(**values: Any) -> None:
    """Serve one model: token ids in, token ids out, as MessagePack frames over a WebSocket.

    Llama 2 and 3, Mistral, Qwen2, Qwen3 and Mixtral checkpoints are served as they are. When the engine can answer it
    prints one line of JSON with the address that clients connect to. SIGTERM drains it: no new requests, and those
    that still run after --drain-timeout go on in other engines. SIGINT, or a second signal, ends it at once.

    \b
    Examples:
      python -m engine.server --model models/Qwen3-0.6B
      python -m engine.server --model models/Llama-3.1-8B --device cuda --kv-tokens 400000
      python -m engine.server --model models/Llama-3.1-8B --dtype bfloat16 --quantize int4
      python -m engine.server --model models/Llama-3.1-8B --dtype bfloat16 --kv-dtype int8 --kv-tokens 64000
      python -m engine.server --model deploy/demo/model --threads 1 --listen unix:///run/roundhouse/small.sock
      python -m engine.server --model large.gguf --speculate auto --draft-model small.gguf

    \b
    A gateway connects to it by its address in a pool (roundhouse.toml):
      [[pools]]
      engines = ["unix:///run/roundhouse/small.sock"]
    """
    try:
        options = EngineOptions(**values)
        tls = None if options.certificate is None else server_context(options.certificate)
        verification = options.verification()
        announcer = _announcer(options)
    except ValueError as error:
        fail(str(error))
    set_up_process(options)
    try:
        with _without_collections():
            from engine.execution.warm_up import NotEnoughMemory
            from engine.server.loaded_engine import LoadedEngine

            with verification.explaining():
                engine = LoadedEngine(options)
    except (ValueError, RegistryError) as error:
        fail(str(error))

    def prepare() -> None:
        with verification.explaining():
            engine.warm_up()
        if options.verify == "strict":
            verification.wait()

    server = EngineServer(engine.core, id=f"{options.pool}-{secrets.token_hex(6)}", prepare=prepare)
    try:
        asyncio.run(_serve(server, engine.core, options, tls, verification, announcer))
    except (NotEnoughMemory, CheckpointError) as error:
        fail(str(error))
    except (OSError, ValueError) as error:
        fail(f"cannot listen at {options.listen}: {error}")
    except RuntimeError as error:
        if isinstance(error.__cause__, DeviceLost):
            _give_up(str(error.__cause__), DEVICE_LOST)
        raise
    finally:
        engine.close()


def set_up_process(options: EngineOptions) -> None:
    """Set the environment that torch and oneDNN read when they are loaded, and set up the log."""
    logging.basicConfig(
        level=options.log_level.upper(), stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s %(message)s"
    )
    # Engines share a machine's cores, so torch's threads must sleep, not spin, while there is no work. The
    # kernels' own do so by themselves (kernels/csrc/cpu/threads.h).
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    os.environ["OMP_NUM_THREADS"] = str(options.cpu_threads)
    # Half of the prepared products, one per shape, that torch and oneDNN would keep; see bench/README.md.
    for capacity in ("LRU_CACHE_CAPACITY", "ONEDNN_PRIMITIVE_CACHE_CAPACITY"):
        os.environ.setdefault(capacity, "512")


@contextlib.contextmanager
def _without_collections() -> Iterator[None]:
    """Collect no garbage while libraries and the model are loaded, nor later among them: they stay, and collections
    would look at them again and again."""
    gc.disable()
    try:
        yield
        gc.collect()
        gc.freeze()
    finally:
        gc.enable()


def _announcer(options: EngineOptions) -> Announcer | None:
    """
    Raises:
        ValueError: the address of Redis, the key or a certificate cannot be used.
    """
    if options.register is None or options.register_key is None:
        return None
    return Announcer(options.register, read_key(options.register_key), options.register_certificate)


def _lease(server: EngineServer, core: EngineCore, options: EngineOptions, address: str) -> Lease:
    """Return what the engine, which listens at this address, says of itself now."""
    load, model = server.load, core.model
    used = load.total_blocks - load.free_blocks - load.cached_blocks - load.lent_blocks
    return Lease(
        id=server.id,
        pool=options.pool,
        address=options.advertise or address,
        server_name=options.server_name,
        model=model.name,
        revision=model.revision,
        protocol=PROTOCOL_VERSION,
        protocol_min=PROTOCOL_MIN,
        state="draining" if load.draining else "ready",
        zone=options.zone,
        spot=options.spot,
        capacity=options.max_running,
        load=load.running + load.waiting,
        waiting=load.waiting,
        waiting_tokens=load.waiting_tokens,
        kv_share=round(used / load.total_blocks, 3),
        adapter_share=round(core.adapter_share, 3),
        work=core.work.read(),
        time=time.time(),
    )


async def _serve(
    server: EngineServer,
    core: EngineCore,
    options: EngineOptions,
    tls: ssl.SSLContext | None,
    verification: Verification,
    announcer: Announcer | None,
) -> None:
    """Serve until a signal, a client's `Drain` or the core's failure, which is raised."""
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()

    def terminate() -> None:
        loop.add_signal_handler(signal.SIGTERM, stop.set)
        server.drain(options.drain_timeout)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    watchdogs = [asyncio.create_task(_end_if_hung(server))]  # to the very end, which waits for the last step
    try:
        async with server.listening(options.listen, tls) as address, contextlib.AsyncExitStack() as stack:
            loop.add_signal_handler(signal.SIGTERM, terminate)
            await stack.enter_async_context(server.probed(options.probes))
            if announcer is not None:
                lease = partial(_lease, server, core, options, address)
                await stack.enter_async_context(announcer.announced(lease))
            model = core.model
            ready = {"event": "ready", "id": server.id, "address": address, "model": model.name}
            print(json.dumps({**ready, "context": model.context}), flush=True)
            watchdogs.append(asyncio.create_task(_end_if_damaged(verification)))
            ends = (stop.wait(), server.wait_drained(), server.wait_failed())
            waiting = {asyncio.create_task(end) for end in ends}
            _, pending = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for task in pending:
                task.cancel()
    finally:
        for watchdog in watchdogs:
            watchdog.cancel()
        verification.close()


async def _end_if_hung(server: EngineServer) -> None:
    await server.wait_hung()
    faulthandler.dump_traceback()
    _give_up("a step takes far longer than predicted; where each thread is stands above", HUNG)


async def _end_if_damaged(verification: Verification) -> None:
    try:
        await asyncio.to_thread(verification.wait)
    except CheckpointError as error:
        _give_up(str(error), CONFIGURATION_ERROR)


def _give_up(reason: str, status: int) -> NoReturn:
    click.echo(f"engine: {reason}", err=True)
    sys.stdout.flush()
    logging.shutdown()
    # Not sys.exit(): what frees memory of such a device may wait for it, or end the process with a status of its own.
    os._exit(status)


def fail(message: str) -> NoReturn:
    click.echo(f"engine: {message}", err=True)
    sys.exit(CONFIGURATION_ERROR)
