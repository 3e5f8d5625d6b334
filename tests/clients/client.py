"""What clients.toml says of a client."""

from __future__ import annotations

import hashlib
import tomllib
from functools import cache
from pathlib import Path
from typing import Literal

import msgspec

FOLDER = Path(__file__).parent
REMEDY = "run: make test-clients"


class Client(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A client: how it is installed, the script that drives it, and what its row in docs/clients.md says."""

    registry: Literal["pypi", "npm"]
    """Where its packages come from."""
    packages: list[str]
    """Packages at pinned versions, in the registry's own spelling."""
    script: str
    """Program in `scripts/`: Python, run by the client's own interpreter if it has one, or JavaScript, run by node."""
    covers: str
    """What its checks ask for, in words."""
    differs: dict[str, str] = {}
    """Checks that fail as they should, each with the reason."""
    model: str = ""
    """Model of the catalogue that it needs, and that no run of this suite fetches; none: this repository's own."""
    seconds: int = 240
    """Most seconds that its script may take."""
    in_make_test: bool = False

    @property
    def pins(self) -> list[tuple[str, str]]:
        """Names and versions of its packages."""
        separator = "==" if self.registry == "pypi" else "@"
        pins = (package.rpartition(separator) for package in self.packages)
        return [(name.partition("[")[0], version) for name, _, version in pins]

    @property
    def digest(self) -> str:
        """Names the environment that these packages make."""
        return hashlib.sha256(" ".join([self.registry, *self.packages]).encode()).hexdigest()[:12]


@cache
def clients() -> dict[str, Client]:
    """Return all clients of clients.toml by their names, in its order."""
    return msgspec.convert(tomllib.loads((FOLDER / "clients.toml").read_text("utf-8")), dict[str, Client])
