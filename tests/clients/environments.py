"""An environment for each client: its pinned packages in a folder of the user's cache, made when first needed."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from tests.clients.client import Client

_SECONDS = 500
"""Most seconds that an installation may take."""


class UnavailableError(Exception):
    """A client cannot be installed or run on this machine; the message says why."""


def cache_folder() -> Path:
    """Return the folder of the environments, which are kept between runs."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "roundhouse" / "clients"


def environment(name: str, client: Client, report: Callable[[str], None] = print) -> Path:
    """Return the folder of a client's environment; install it if these packages are not installed.

    Environments of the client's other versions are removed.

    Raises:
        UnavailableError: there is no node, or a registry did not give what was asked for.
    """
    if (client.registry == "npm" or client.script.endswith(".mjs")) and not shutil.which("npm"):
        raise UnavailableError("there is no node here; install it with: apt-get install nodejs npm")
    folder = cache_folder() / name / client.digest
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "installed").exists():
            for other in folder.parent.iterdir():
                if other.is_dir():
                    shutil.rmtree(other)
            folder.mkdir()
            report(f"{name}: installing {', '.join(client.packages)}")
            for command in _commands(client, folder):
                _run(command)
            (folder / "installed").touch()
    return folder


def _commands(client: Client, folder: Path) -> list[list[str]]:
    if client.registry == "npm":
        return [["npm", "install", "--prefix", str(folder), "--no-audit", "--no-fund", *client.packages]]
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--retries", "1"]
    return [
        [sys.executable, "-m", "venv", "--without-pip", str(folder)],
        [*pip, "--python", str(folder), "install", "--quiet", "--prefer-binary", *client.packages],
    ]


def _run(command: list[str]) -> None:
    try:
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=_SECONDS)
    except subprocess.TimeoutExpired:
        raise UnavailableError(f"{_words(command)} took more than {_SECONDS} seconds") from None
    except subprocess.CalledProcessError as error:
        said = [line for line in error.stderr.splitlines() if line.strip()]
        raise UnavailableError(f"{_words(command)} failed: {said[-1] if said else error.returncode}") from None


def _words(command: list[str]) -> str:
    """The command without its options and paths."""
    return " ".join(Path(word).name for word in command if not word.startswith("-"))
