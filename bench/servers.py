"""Servers that benchmarks start as processes, and end: Redis, our gateway, LiteLLM's, our engine."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

from gateway.processes.redis_server import binary

ROOT = Path(__file__).parent.parent
PEERS = Path("~/.cache/roundhouse/bench").expanduser()
LITELLM = PEERS / "litellm" / "bin" / "litellm"
START_SECONDS = 90.0
_ENGINE_START_SECONDS = 120.0


@contextlib.contextmanager
def process(command: list[str], environment: dict[str, str] | None = None) -> Iterator[subprocess.Popen[bytes]]:
    """Run a process that ends with the block."""
    variables, nowhere = {**os.environ, **(environment or {})}, subprocess.DEVNULL
    started = subprocess.Popen(command, cwd=ROOT, env=variables, stdout=nowhere, stderr=nowhere)
    try:
        yield started
    finally:
        started.terminate()
        try:
            started.wait(15)
        except subprocess.TimeoutExpired:
            started.kill()
            started.wait()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_for(port: int, ready: str | None = None) -> None:
    """Wait until something listens at a port, and says that it is ready if it has a page for that.

    Raises:
        TimeoutError: it does not in time.
    """
    limit = time.monotonic() + START_SECONDS
    while time.monotonic() < limit:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1) as probe:
            if ready is None:
                return
            probe.sendall(f"GET {ready} HTTP/1.0\r\nHost: 127.0.0.1:{port}\r\n\r\n".encode())
            if b" 200 " in probe.recv(64):
                return
        time.sleep(0.1)
    raise TimeoutError(f"nothing answers on port {port} after {START_SECONDS:g} s")


@contextlib.contextmanager
def listening(
    command: Callable[[int], list[str]], environment: dict[str, str] | None = None, ready: str | None = None
) -> Iterator[tuple[int, int]]:
    """Start a server with `command` at a free port; gives the port and its process id."""
    port = free_port()
    with process(command(port), environment) as started:
        wait_for(port, ready)
        yield port, started.pid


@contextlib.contextmanager
def redis_server(folder: Path) -> Iterator[Path]:
    """Start a Redis that keeps nothing; gives its socket, which is in the folder."""
    path = folder / "redis.sock"
    with process([binary(), "--port", "0", "--unixsocket", str(path), "--save", "", "--dir", str(folder)]):
        yield path


def gateway(folder: Path, settings: str, processes: int = 1) -> contextlib.AbstractContextManager[tuple[int, int]]:
    """Start `roundhouse serve` with these settings, in TOML without `[server]`; gives its port and process id.

    `processes` gateway processes share the port.
    """

    def command(port: int) -> list[str]:
        file = folder / "roundhouse.toml"
        file.write_text(f"[server]\nport = {port}\ngateways = {processes}\n{settings}")
        return [sys.executable, "-c", "from gateway.cli.root import main; main()", "serve", "--config", str(file)]

    return listening(command, ready="/readyz")


def shared_settings(folder: Path, key: str) -> str:
    """Return settings of a gateway with the Redis of the folder, without an embedder, and one tenant with this key."""
    digest = hashlib.sha256(key.encode()).hexdigest()
    return (
        f'[redis]\nurl = "unix://{folder}/redis.sock"\ndata = "{folder}/data"\n[log]\nlevel = "warning"\n'
        # A process of its own, whose start would count as turns' CPU; it is asked about no question here.
        f'[embedder]\nenabled = false\n[[tenants]]\nname = "bench"\nkeys = [{{ id = "bench", sha256 = "{digest}" }}]\n'
    )


def litellm(
    folder: Path, upstream: int, key: str, settings: str = ""
) -> contextlib.AbstractContextManager[tuple[int, int]]:
    """Start LiteLLM's proxy in front of the upstream at that port, as one process; gives its port and process id."""

    def command(port: int) -> list[str]:
        file = folder / "litellm.yaml"
        file.write_text(
            "model_list:\n  - model_name: auto\n    litellm_params: {model: openai/stub, api_key: none, "
            f"api_base: 'http://127.0.0.1:{upstream}/v1'}}\n{settings}"
        )
        options = ["--config", str(file), "--port", str(port), "--host", "127.0.0.1", "--num_workers", "1"]
        return [str(LITELLM), *options]

    return listening(command, {"LITELLM_LOG": "ERROR", "LITELLM_MASTER_KEY": f"sk-{key}"})


@contextlib.asynccontextmanager
async def engine_process(
    address: str, model: Path, *, threads: int = 1, **options: object
) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run `python -m engine.server` on the CPU: ready when the block begins, ended when it ends."""
    words = [word for name, value in options.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "engine.server", "--model", str(model), "--listen", address),
        *("--threads", str(threads), "--log-level", "warning", *words),
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": str(threads)},
    )
    try:
        assert process.stdout is not None
        async with asyncio.timeout(_ENGINE_START_SECONDS):
            if json.loads(await process.stdout.readline() or "{}").get("event") != "ready":
                raise RuntimeError(f"the engine at {address} did not start")
        yield process
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()
