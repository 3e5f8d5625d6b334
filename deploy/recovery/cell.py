"""One cell on this machine: an engine, and `roundhouse serve` with a Redis and a gateway, in a folder of their own."""

from __future__ import annotations

import asyncio
import hashlib
import os
import shutil
import socket
import sys
from collections.abc import Mapping
from pathlib import Path
from time import monotonic
from typing import Any

import httpx2

from gateway.config.settings import DEMO

MODEL = "roundhouse-demo-2m"
_PATIENCE = 300.0
_LOSS_SECONDS = 10.0
"""Seconds in which the children of processes that were killed must have ended."""


class CellFailed(Exception):
    """A part of a cell did not do what it was asked for; the message has what it printed."""


class LocalCell:
    """Processes and data that are lost together."""

    def __init__(self, folder: Path, *, secret: str, operator: str) -> None:
        """
        Args:
            folder: to be made; its path is short, because unix sockets lie in it.
            secret: of all cells, so that a key is valid in each.
            operator: key for the admin API.
        """
        self.folder = folder
        self._operator = operator
        self._config = folder / "roundhouse.toml"
        self._processes: list[asyncio.subprocess.Process] = []
        clean = {name: value for name, value in os.environ.items() if not name.startswith(("ROUNDHOUSE_", "REDIS_"))}
        self._environment = {**clean, "ROUNDHOUSE_SECRET": secret, "ROUNDHOUSE_LOG_LEVEL": "warning"}
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.url = f"http://127.0.0.1:{free.getsockname()[1]}"
        folder.mkdir()
        self._config.write_text(self._settings())

    @property
    def adapters(self) -> Path:
        """The folder of its adapters' registry."""
        return self.folder / "data" / "adapters"

    async def start_engine(self) -> None:
        """Start the engine, and wait until it listens."""
        words = {
            "model": str(DEMO / "model"),
            "name": MODEL,
            "listen": f"unix://{self.folder / 'engine.sock'}",
            "threads": "1",
            "adapters": str(self.adapters),
            "log-level": "warning",
        }
        options = [word for name, value in words.items() for word in (f"--{name}", value)]
        process = await self._start("-m", "engine.server", *options, stdout=asyncio.subprocess.PIPE)
        assert process.stdout is not None
        async with asyncio.timeout(_PATIENCE):
            if not await process.stdout.readline():
                raise CellFailed(self._log.read_text())

    async def serve(self) -> None:
        """Start Redis and the gateway, and wait until turns can be answered."""
        process = await self._start("-m", "gateway.cli", "serve", "--config", str(self._config))
        async with asyncio.timeout(_PATIENCE), httpx2.AsyncClient(verify=False) as client:
            while True:
                try:
                    if (await client.get(f"{self.url}/readyz")).status_code == 200:
                        return
                except httpx2.HTTPError:
                    if process.returncode is not None:
                        raise CellFailed(self._log.read_text()) from None
                await asyncio.sleep(0.05)

    async def run(self, *words: str) -> str:
        """Return what a command of `roundhouse` prints in this cell.

        Raises:
            CellFailed: its exit status is not 0.
        """
        command = [sys.executable, "-m", "gateway.cli", *words, "--config", str(self._config)]
        process = await asyncio.create_subprocess_exec(
            *command,
            env=self._environment,
            cwd=self.folder,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        printed, problem = await process.communicate()
        if process.returncode:
            raise CellFailed(f"roundhouse {' '.join(words)}: {problem.decode().strip()}")
        return printed.decode()

    async def admin(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """Return the answer of the admin API, whatever revision a change is based on."""
        headers = {"authorization": f"Bearer {self._operator}", "if-match": "*"}
        async with httpx2.AsyncClient(verify=False, timeout=30) as client:
            answer = await client.request(method, f"{self.url}/admin/v1{path}", json=body, headers=headers)
        if answer.status_code >= 400:
            raise CellFailed(f"{method} {path}: {answer.text}")
        return answer.json() if answer.content else None

    async def lose(self) -> None:
        """Kill all processes at once, and remove all data.

        Raises:
            OSError: it cannot be removed.
        """
        for process in self._processes:
            if process.returncode is None:
                process.kill()  # the kernel ends the children of `serve` with it
        for process in self._processes:
            await process.wait()
        deadline = monotonic() + _LOSS_SECONDS
        while self.folder.exists():  # Redis may create and delete files there until it has ended, too
            shutil.rmtree(self.folder, ignore_errors=monotonic() < deadline)
            await asyncio.sleep(0.05)

    @property
    def _log(self) -> Path:
        return self.folder / "log"

    async def _start(self, *words: str, stdout: int | None = None) -> asyncio.subprocess.Process:
        with self._log.open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                sys.executable, *words, env=self._environment, cwd=self.folder, stdout=stdout or log, stderr=log
            )
        self._processes.append(process)
        return process

    def _settings(self) -> str:
        host, _, port = self.url.removeprefix("http://").partition(":")
        return f"""
[server]
host = "{host}"
port = {port}
[redis]
data = "{self.folder / "data"}"
timeout = 1.0
[embedder]
enabled = false
[[tenants]]
name = "operations"
[[tenants.keys]]
id = "root"
sha256 = "{hashlib.sha256(self._operator.encode()).hexdigest()}"
scopes = ["admin:read", "admin:write"]
operator = true
[[pools]]
tier = "small"
name = "{MODEL}"
model = "{DEMO / "model"}"
engines = ["unix://{self.folder / "engine.sock"}"]
[[prices]]
name = "{MODEL}"
input = 1000000
output = 1000000
"""
