"""The processes of a run that can be killed, stopped, damaged and started again: Redis and engines."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import resource
import shutil
import signal
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from redis.asyncio import Redis
from redis.exceptions import RedisError

from engine.checkpoint.digests import checkpoint_digest
from gateway.processes.redis_server import bundled
from tests.chaos.cases import MODEL
from tests.chaos.engine import HARM

START_SECONDS = 300.0
"""Seconds after which a process that has not started fails the run."""


class ServerProcess:
    """A process that a run starts, harms and starts again; its output goes to `log`."""

    def __init__(self, log: Path) -> None:
        self.log = log
        self.process: asyncio.subprocess.Process | None = None

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def signal(self, number: signal.Signals) -> None:
        """Send a signal, unless the process has ended."""
        if self.process is not None and self.process.returncode is None:
            self.process.send_signal(number)

    async def ended(self, seconds: float = START_SECONDS) -> int:
        """Wait for the end; return the exit status."""
        assert self.process is not None
        async with asyncio.timeout(seconds):
            return await self.process.wait()

    async def kill(self) -> None:
        """End it in whatever state it is."""
        if self.process is not None and self.process.returncode is None:
            self.process.kill()
            await self.process.wait()

    async def _launch(self, *command: str, environment: Mapping[str, str], stdout: int | None = None) -> None:
        with self.log.open("ab") as log:
            self.process = await asyncio.create_subprocess_exec(
                *command, stdout=log if stdout is None else stdout, stderr=log, env={**os.environ, **environment}
            )


class RedisProcess(ServerProcess):
    """A Redis that has on its disk whatever it has acknowledged, so that a kill loses nothing."""

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        super().__init__(folder / "redis.log")
        self.socket = folder / "redis.sock"
        self._folder = folder
        self._environment = environment

    @property
    def url(self) -> str:
        return f"unix://{self.socket}"

    async def start(self) -> None:
        options = {
            "port": "0",
            "unixsocket": str(self.socket),
            "dir": str(self._folder),
            "save": "",
            "appendonly": "yes",
            "appendfsync": "no",
        }
        words = [word for name, value in options.items() for word in (f"--{name}", value)]
        await self._launch(bundled(), *words, environment=self._environment)
        async with asyncio.timeout(START_SECONDS), Redis.from_url(self.url) as client:
            while True:
                with contextlib.suppress(RedisError, OSError):
                    if await client.ping():
                        return
                await asyncio.sleep(0.05)


class Refused(Exception):
    """An engine did not start: its exit status."""

    def __init__(self, status: int) -> None:
        super().__init__(f"exit status {status}")
        self.status = status


class EngineProcess(ServerProcess):
    """An engine with a checkpoint of its own."""

    def __init__(self, folder: Path, index: int, model: Path, registry: Path) -> None:
        super().__init__(folder / f"engine-{index}.log")
        self.name = f"small-{index}"
        """What gateways call it."""
        self.socket = folder / f"engine-{index}.sock"
        self.harm = folder / f"engine-{index}.harm"
        """What it says is done to the engine's steps, see `tests.chaos.engine`."""
        self.model = folder / f"model-{index}"
        shutil.copytree(model, self.model)
        self._digest = checkpoint_digest(self.model)
        self._registry = registry
        self._speculate = "ngram" if index else "off"  # which changes no answer

    async def start(self) -> None:
        """Start it, and return when it is ready.

        Raises:
            Refused: it ended instead.
        """
        self.harm.unlink(missing_ok=True)
        options = {
            "model": self.model,
            "sha256": self._digest,
            "name": MODEL,
            "listen": f"unix://{self.socket}",
            "threads": 1,
            "kv-tokens": 65536,
            "adapters": self._registry,
            "drain-timeout": 1.0,
            "speculate": self._speculate,
            "log-level": "warning",
        }
        words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
        environment = {HARM: str(self.harm), "CUDA_VISIBLE_DEVICES": ""}
        command = (sys.executable, "-m", "tests.chaos.engine", *words)
        await self._launch(*command, environment=environment, stdout=asyncio.subprocess.PIPE)
        assert self.process is not None and self.process.stdout is not None
        async with asyncio.timeout(START_SECONDS):
            line = await self.process.stdout.readline()
        if not line:
            raise Refused(await self.ended())
        self.name = json.loads(line).get("id", self.name)

    @contextlib.contextmanager
    def damaged(self, place: float) -> Iterator[None]:
        """Flip a byte of the weights. Args: place: from 0 (the first one) to 1."""
        weights = self.model / "model.safetensors"
        at = min(int(place * weights.stat().st_size), weights.stat().st_size - 1)
        _flip(weights, at)
        try:
            yield
        finally:
            _flip(weights, at)


def _flip(file: Path, at: int) -> None:
    with file.open("r+b") as opened:
        opened.seek(at)
        byte = opened.read(1)
        opened.seek(at)
        opened.write(bytes([byte[0] ^ 0x10]))


@contextlib.contextmanager
def full_disk(pid: int) -> Iterator[None]:
    """Let no file of a process grow: what it writes fails, as on a full disk."""
    soft, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (0, hard))
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (soft, hard))
