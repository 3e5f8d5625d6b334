"""A real embedder: the process that `serve` starts, with the model that is installed."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec


class EmbedderProcess:
    """`python -m cache.embedder` on a socket of its own, or another module with the same options."""

    def __init__(self, *options: str, module: str = "cache.embedder") -> None:
        # Socket paths have at most about 100 characters, which pytest's own folders exceed.
        self.folder = Path(tempfile.mkdtemp(prefix="rh-embedder-"))
        self.socket = self.folder / "embedder.sock"
        self._options = options
        self._module = module
        self.process: subprocess.Popen[str] | None = None

    def start(self) -> dict[str, object]:
        """Start it and wait until it listens; returns what it prints then."""
        command = [sys.executable, "-m", self._module, "--listen", f"unix://{self.socket}", *self._options]
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, env={**os.environ, "HF_HUB_OFFLINE": "1"}, text=True
        )
        assert self.process.stdout
        line = self.process.stdout.readline()
        assert line, f"the embedder ended with {self.process.wait()}"
        ready: dict[str, object] = msgspec.json.decode(line)
        return ready

    def kill(self) -> None:
        """Kill the process."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            if self.process.stdout:
                self.process.stdout.close()
            self.process = None


@contextlib.contextmanager
def embedder_process(*options: str, module: str = "cache.embedder") -> Iterator[EmbedderProcess]:
    """Run an embedder until the block ends."""
    embedder = EmbedderProcess(*options, module=module)
    try:
        embedder.start()
        yield embedder
    finally:
        embedder.kill()
        shutil.rmtree(embedder.folder, ignore_errors=True)
