"""Ports for processes that are told theirs before they listen."""

from __future__ import annotations

import contextlib
import itertools
import os
import secrets
import socket

_FIRST, _EACH, _WORKERS = 20_000, 500, 5
_WORKER = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % _WORKERS
_offsets = itertools.count(secrets.randbelow(_EACH))


def free_port() -> int:
    """Return a port of 127.0.0.1 that nobody listens at, and that no other caller is given soon.

    The system never gives it to a connection, as it does with those that it chooses itself for port 0: between
    the choice and the process's listening another would get it. Each of a test run's first workers has ports of
    its own, above those that Ray's processes take, and so low that the port 10,000 above, which a node of a Redis
    cluster takes too, is not the system's either.
    """
    while True:
        port = _FIRST + _WORKER * _EACH + next(_offsets) % _EACH
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
