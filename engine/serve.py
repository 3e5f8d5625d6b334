"""The command line of one engine: `python -m engine.serve`, or `roundhouse engine serve`."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import logging
import os
import signal
import sys
from pathlib import Path
from typing import get_args

import click
import torch

from engine.config import CheckpointError
from engine.core import EngineCore, SchedulerConfig
from engine.kv_cache import BLOCK_SIZE
from engine.runner import Dtype, ModelRunner
from engine.server import EngineServer

CONFIGURATION_ERROR = 2
"""Exit status when this engine cannot run with what it was given; a supervisor does not try again."""


@click.command(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.option(
    "--model", required=True, type=click.Path(exists=True, file_okay=False, path_type=Path), help="Checkpoint."
)
@click.option("--name", help="What clients call the model; the directory's name unless given.")
@click.option("--listen", default="ws://127.0.0.1:9001", show_default=True, help="ws://HOST:PORT or unix:///PATH.")
@click.option("--device", type=click.Choice(["cpu", "cuda"]), default="cpu", show_default=True)
@click.option("--dtype", type=click.Choice(get_args(Dtype)), default="auto", show_default=True, help="Weights and KV.")
@click.option("--threads", type=click.IntRange(min=1), default=os.cpu_count(), show_default=True, help="CPU threads.")
@click.option("--kv-tokens", type=click.IntRange(min=16), default=32_768, show_default=True, help="KV cache size.")
@click.option("--max-running", type=click.IntRange(min=1), default=64, show_default=True, help="Requests in one step.")
@click.option("--step-tokens", type=click.IntRange(min=16), default=2048, show_default=True, help="Tokens in one step.")
@click.option(
    "--log-level", type=click.Choice(["debug", "info", "warning", "error"]), default="info", show_default=True
)
def main(
    model: Path,
    name: str | None,
    listen: str,
    device: str,
    dtype: Dtype,
    threads: int,
    kv_tokens: int,
    max_running: int,
    step_tokens: int,
    log_level: str,
) -> None:
    """Serve one model: token ids in, token ids out, MessagePack frames over a WebSocket.

    \b
    MODEL is a directory in Hugging Face format (config.json, safetensors, tokenizer.json) of a Llama 2 or 3,
    Mistral, Qwen2, Qwen3 or Mixtral architecture. A gateway connects by naming the address in a pool:
        roundhouse engine serve --model /models/llama-3-8b --device cuda --dtype bfloat16 --listen ws://127.0.0.1:9001
        # roundhouse.toml:  engines = ["ws://127.0.0.1:9001"]

    One line of JSON on standard output says when the engine listens. SIGTERM ends it.
    """
    logging.basicConfig(
        level=log_level.upper(), stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s %(message)s"
    )
    torch.set_num_threads(threads)
    try:
        runner = ModelRunner(model, blocks=-(-kv_tokens // BLOCK_SIZE), device=device, dtype=dtype, name=name)
    except CheckpointError as error:
        click.echo(f"engine: {model}: {error}", err=True)
        sys.exit(CONFIGURATION_ERROR)
    blocks = -(-kv_tokens // BLOCK_SIZE)
    config = SchedulerConfig(blocks=blocks, step_tokens=step_tokens, max_running=max_running)
    core = EngineCore(runner, runner.info, config)
    # What was loaded lives as long as the process: collections need not look at it again.
    gc.collect()
    gc.freeze()
    try:
        asyncio.run(_serve(EngineServer(core), listen))
    except (OSError, ValueError) as error:
        click.echo(f"engine: cannot listen at {listen}: {error}", err=True)
        sys.exit(CONFIGURATION_ERROR)


async def _serve(server: EngineServer, listen: str) -> None:
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    async with server.listening(listen) as address:
        print(json.dumps({"listening": address}), flush=True)
        waiting = [asyncio.create_task(stopped.wait()), asyncio.create_task(server.wait_failed())]
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        for task in waiting:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task


if __name__ == "__main__":
    main()
