"""Runs one client's script against a server, and reads the checks that it prints."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from tests.clients.client import FOLDER, Client

_SCRIPTS = FOLDER / "scripts"
_KEPT = ("PATH", "LANG", "LC_ALL", "SSL_CERT_FILE", "SSL_CERT_DIR", "NODE_EXTRA_CA_CERTS")
"""Variables that a script gets from this process; keys of other services and settings of the user are none of them."""
_OFFLINE = {
    "DO_NOT_TRACK": "1",
    "HF_HUB_OFFLINE": "1",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "OTEL_SDK_DISABLED": "true",
}
"""Keeps clients from asking other services."""


class Check(msgspec.Struct, frozen=True):
    """One line that a script prints."""

    name: str
    ok: bool
    detail: str = ""
    """What went wrong."""


@dataclass(frozen=True)
class Server:
    """What a script is told about the server."""

    url: str
    key: str
    model: str
    embedding_model: str = ""
    """None: embeddings are not checked."""


@dataclass(frozen=True)
class Outcome:
    """What came of a client: its checks, or why it was not run."""

    checks: list[Check] = field(default_factory=list)
    skipped: str = ""

    @property
    def passed(self) -> int:
        return sum(check.ok for check in self.checks)

    def surprises(self, client: Client) -> list[str]:
        """Say which checks did not come out as clients.toml says; none for a client that was not run."""
        if self.skipped:
            return []
        failed = {check.name: check.detail for check in self.checks if not check.ok}
        return [
            *(f"{name}: {detail}" for name, detail in failed.items() if name not in client.differs),
            *(f"{name}: passes, and clients.toml says it fails" for name in client.differs if name not in failed),
        ]


def run(client: Client, environment: Path, server: Server) -> Outcome:
    """Run a client's script to its end, in an empty folder that is its home."""
    with tempfile.TemporaryDirectory(prefix="rh-client-") as home:
        process = subprocess.Popen(
            _command(client, environment),
            cwd=home,
            env=_variables(environment, home, server),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        try:
            output, errors = process.communicate(timeout=client.seconds)
        except subprocess.TimeoutExpired:
            _kill(process)
            output, errors = process.communicate()
            return Outcome([*_checks(output), Check("ends", False, f"not within {client.seconds} seconds")])
        finally:
            _kill(process)
    checks = _checks(output)
    if process.returncode != 0 or not checks:
        said = errors.strip().splitlines()[-1:]
        checks.append(Check("ends", False, f"exit status {process.returncode}: {''.join(said)}"))
    return Outcome(checks)


def _command(client: Client, environment: Path) -> list[str]:
    if client.script.endswith(".mjs"):
        # An ES module finds packages beside itself only.
        for script in _SCRIPTS.glob("*.mjs"):
            shutil.copy(script, environment)
        return ["node", str(environment / client.script)]
    python = str(environment / "bin" / "python") if client.registry == "pypi" else sys.executable
    return [python, str(_SCRIPTS / client.script)]


def _variables(environment: Path, home: str, server: Server) -> dict[str, str]:
    path = [str(environment / "bin"), str(environment / "node_modules" / ".bin"), os.environ["PATH"]]
    return {
        **{name: os.environ[name] for name in _KEPT if name in os.environ},
        **_OFFLINE,
        "PATH": os.pathsep.join(path),
        "HOME": home,
        "PYTHONDONTWRITEBYTECODE": "1",
        "ROUNDHOUSE_URL": server.url,
        "ROUNDHOUSE_KEY": server.key,
        "ROUNDHOUSE_MODEL": server.model,
        "ROUNDHOUSE_EMBEDDING_MODEL": server.embedding_model,
    }


def _checks(output: str) -> list[Check]:
    """Read the lines that are checks; clients print others."""
    found = []
    for line in output.splitlines():
        with contextlib.suppress(msgspec.DecodeError):
            found.append(msgspec.json.decode(line, type=Check))
    return found


def _kill(process: subprocess.Popen[str]) -> None:
    """End the script and whatever it has started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
