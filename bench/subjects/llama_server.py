"""llama.cpp as it is deployed: `llama-server` in a process of its own, with a streaming HTTP request per prompt."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

from bench.subjects.interface import Clock, RequestBatch, Subject, SubjectSetup, Trace

_BATCH = 2048
"""Most tokens of a step; its default."""
_ROUND = 256
"""Tokens of which llama.cpp's caches have a multiple."""
_POLL_SECONDS = 0.02


@contextlib.contextmanager
def load(setup: SubjectSetup) -> Iterator[Subject]:
    """Start the server on a unix socket; it is loaded once it says that it is healthy.

    Raises:
        RuntimeError: it ended.
    """
    program, libraries = _program()
    with tempfile.TemporaryDirectory(prefix="rh-llama-") as folder:
        address = f"{folder}/server.sock"
        context = setup.requests * -(-setup.tokens // _ROUND) * _ROUND
        command = [str(program), "--model", setup.model, "--host", address]
        command += ["--ctx-size", str(context), "--parallel", str(setup.requests), "--batch-size", str(_BATCH)]
        command += ["--threads", str(setup.threads), "--threads-batch", str(setup.threads)]
        environment = {**os.environ, "LD_LIBRARY_PATH": libraries}
        with subprocess.Popen(command, stdout=sys.stderr, env=environment) as process:
            try:
                asyncio.run(_healthy(address, process))
                yield Subject(lambda batch: asyncio.run(_ask(address, batch)), (process.pid,))
            finally:
                process.terminate()


def _program() -> tuple[Path, str]:
    """Return the path of `llama-server`, which llama-cpp-python's build has installed, and of its libraries."""
    found = importlib.util.find_spec("llama_cpp")
    assert found is not None and found.origin is not None
    package = Path(found.origin).parent
    return package.parent / "bin" / "llama-server", f"{package / 'lib'}:{package.parent / 'lib'}"


async def _healthy(address: str, process: subprocess.Popen[bytes]) -> None:
    while True:
        if process.poll() is not None:
            raise RuntimeError(f"llama-server ended with status {process.returncode}")
        with contextlib.suppress(OSError):
            async for status in _lines(address, "GET /health"):
                if b" 200 " in status:
                    return
                break
        await asyncio.sleep(_POLL_SECONDS)


async def _ask(address: str, batch: RequestBatch) -> list[Trace]:
    """Submit all prompts; times are those at which the client has the tokens."""
    clock = Clock(len(batch.prompts))

    async def collect(index: int, prompt: list[int]) -> None:
        fields: dict[str, Any] = {"prompt": prompt, "n_predict": batch.new_tokens, "temperature": 0}
        fields |= {"ignore_eos": True, "stream": True, "return_tokens": True, "cache_prompt": True}
        async for line in _lines(address, "POST /completion", json.dumps(fields).encode()):
            if line.startswith(b"data: {"):
                event = json.loads(line.removeprefix(b"data: "))
                # A token that ends within a character is sent with the next one: only its number is known.
                missing = event["tokens_predicted"] - len(clock.traces[index].tokens)
                clock.add(index, ([-1] * missing + event["tokens"])[-missing:] if missing else [])

    await asyncio.gather(*(collect(index, prompt) for index, prompt in enumerate(batch.prompts)))
    return clock.traces


async def _lines(address: str, request: str, body: bytes = b"") -> AsyncIterator[bytes]:
    """Send a request -> the lines of its answer: the status line, headers, and the chunks of the body with their sizes.

    Each event comes in a chunk of its own, so that those who look for events need not know of chunks.
    """
    reader, writer = await asyncio.open_unix_connection(address)
    try:
        head = f"{request} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)
        await writer.drain()
        async for line in reader:
            yield line
    finally:
        writer.close()
