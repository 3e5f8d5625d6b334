"""The embedder: a process of its own that turns texts into vectors, for every gateway of this machine.

It keeps torch out of the gateway and its loop free. `roundhouse serve` starts it; by hand:

    python -m cache.embedder --listen unix:///run/roundhouse/embedder.sock

The default model needs no network. It reads directories of sentence-transformers models with safetensors weights, never
code or pickles in them.
"""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import os
import signal
import sys
from pathlib import Path
from typing import NoReturn

import click

from cache.embedding.model import DEFAULT_NAME, ModelError, SentenceModel, directory_of
from cache.embedding.server import EmbedderServer
from cache.embedding.wire import EmbedderInfo

CONFIGURATION_ERROR = 2
"""Exit status when it cannot run with what it was given; trying again would not help."""


@click.command(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100, "show_default": True})
@click.option(
    "--model",
    default="",
    help="Directory or hub name of a sentence-transformers model; the installed one unless given.",
)
@click.option("--name", default="", help="What clients call the model; the end of its name unless given.")
@click.option("--listen", required=True, metavar="unix:///PATH", help="Where gateways connect.")
@click.option("--device", type=click.Choice(["cpu", "cuda"]), default="cpu", help="Where the model runs.")
@click.option("--threads", type=click.IntRange(min=1), default=1, help="CPU threads.")
@click.option("--queue", type=click.IntRange(min=64), default=4096, help="Most texts that may wait.")
def main(model: str, name: str, listen: str, device: str, threads: int, queue: int) -> None:
    """Turn texts into vectors. Prints one line of JSON when it can; SIGTERM ends it."""
    if not listen.startswith("unix:///"):
        _fail(f"--listen: {listen!r} is no address; use unix:///path")
    logging.basicConfig(level="WARNING", stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    # Before torch is loaded: it shares the machine's cores with engines, so that threads without work must sleep.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    os.environ["OMP_NUM_THREADS"] = str(threads)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    os.environ["TRANSFORMERS_VERBOSITY"] = "error"
    os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"
    gc.disable()  # what is loaded here stays, and collections would look at it again and again
    try:
        loaded = SentenceModel(directory_of(model), device=device)
        loaded.encode(["What is a roundhouse?"])  # the first one takes longer
        gc.collect()
        gc.freeze()
    except ModelError as error:
        _fail(str(error))
    finally:
        gc.enable()
    hello = EmbedderInfo(
        name or Path(model).name or DEFAULT_NAME, loaded.revision, loaded.dimensions, loaded.max_tokens
    )
    try:
        asyncio.run(_serve(EmbedderServer(loaded, hello, queue=queue), Path(listen.removeprefix("unix://")), hello))
    except OSError as error:
        _fail(f"cannot listen at {listen}: {error}")


async def _serve(server: EmbedderServer, path: Path, hello: EmbedderInfo) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    async with server.listening(path):
        print(json.dumps({"event": "ready", "model": hello.model, "dimensions": hello.dimensions}), flush=True)
        await stop.wait()


def _fail(message: str) -> NoReturn:
    click.echo(f"embedder: {message}", err=True)
    sys.exit(CONFIGURATION_ERROR)


if __name__ == "__main__":
    main()
