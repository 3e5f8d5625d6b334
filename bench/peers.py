"""The Python environments of the peers: `python -m bench.peers [NAME ...]` sets them up, or says why it cannot.

What each needs stands in bench/peers.toml, with versions; an environment whose section has not changed is left alone.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path

import msgspec

from bench.checkpoints import cache_folder

_FILE = Path(__file__).with_name("peers.toml")


class PeerEnvironment(msgspec.Struct, frozen=True):
    """One section of bench/peers.toml."""

    requirements: list[str]
    arguments: list[str] = []
    without: list[str] = []
    variables: dict[str, str] = {}

    @property
    def digest(self) -> str:
        return hashlib.sha256(msgspec.json.encode(self)).hexdigest()


def environments() -> dict[str, PeerEnvironment]:
    """Return all peers of the file, by name."""
    return msgspec.convert(tomllib.loads(_FILE.read_text()), dict[str, PeerEnvironment])


def folder(name: str, cache: Path) -> Path:
    """Return the folder of a peer's environment; what the peer has converted is in `models` below it."""
    return cache / "peers" / name


def python_of(name: str, cache: Path) -> Path | None:
    """Return a peer's interpreter; None if its environment is not set up, or not as the file says."""
    stamp = _stamp(name, cache)
    if not stamp.exists() or stamp.read_text() != environments()[name].digest:
        return None
    return folder(name, cache) / "bin" / "python"


def set_up(name: str, cache: Path) -> None:
    """Install a peer.

    Raises:
        subprocess.CalledProcessError: pip could not; what it said is on standard error.
    """
    environment, place = environments()[name], folder(name, cache)
    python = place / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", place], check=True)
    variables = {key: value.format(bench=_FILE.parent) for key, value in environment.variables.items()}
    pip = [str(python), "-m", "pip", "--quiet", "--disable-pip-version-check"]
    subprocess.run(
        [*pip, "install", *environment.arguments, *environment.requirements],
        check=True,
        env={**os.environ, **variables},
    )
    if environment.without:
        subprocess.run([*pip, "uninstall", "--yes", *environment.without], check=True)
    shutil.rmtree(place / "models", ignore_errors=True)
    _stamp(name, cache).write_text(environment.digest)


def _stamp(name: str, cache: Path) -> Path:
    return folder(name, cache) / "installed"


def main(argv: Sequence[str] | None = None) -> None:
    names = list(environments())
    parser = argparse.ArgumentParser(prog="python -m bench.peers", description=__doc__.partition("\n")[0])
    parser.add_argument("name", nargs="*", metavar="NAME", help=f"peers, of {', '.join(names)}; all by default")
    parser.add_argument("--cache", type=Path, default=cache_folder(), help="folder of the environments")
    arguments = parser.parse_args(argv)
    unknown = set(arguments.name) - set(names)
    if unknown:
        parser.error(f"there is no peer {', '.join(sorted(unknown))}")
    failed = []
    for name in arguments.name or names:
        if python_of(name, arguments.cache) is not None:
            print(f"{name}: set up")
            continue
        print(f"{name}: installing", flush=True)
        try:
            set_up(name, arguments.cache)
        except (OSError, subprocess.CalledProcessError) as error:
            print(f"{name}: {error}", file=sys.stderr)
            failed.append(name)
    if failed:
        print(f"not set up, and left out by the benchmark: {', '.join(failed)}")


if __name__ == "__main__":
    main()
