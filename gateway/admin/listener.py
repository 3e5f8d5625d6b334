"""A listener of the admin API's own, so that it need not be reachable where clients are."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import uvicorn
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.routing import Mount

from gateway.configuration import Configuration
from gateway.middleware import HostCheck, RequestHeaders
from gateway.settings import SettingsError


class _Server(uvicorn.Server):
    """uvicorn without handlers for signals: the gateway's own server has them."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@contextlib.asynccontextmanager
async def listening(admin: Starlette, configuration: Configuration) -> AsyncIterator[None]:
    """Serve `admin` on `admin.listen` while the body runs; nothing if it is served beside everything else.

    Raises:
        SettingsError: the address cannot be used.
    """
    address = configuration.settings.admin.listen
    if address is None:
        yield
        return
    host = "" if address.startswith("unix:") else address.rpartition(":")[0].strip("[]")
    app = Starlette(
        routes=[Mount("/admin", admin)],
        middleware=[
            Middleware(RequestHeaders),
            Middleware(HostCheck, listen=host, allowed_origins=lambda: configuration.settings.server.allowed_origins),
        ],
    )
    server = _Server(
        uvicorn.Config(
            app,
            http="httptools",
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=5,
        )
    )
    with _bound(address) as bound:
        serving = asyncio.create_task(server.serve(sockets=[bound]))
        try:
            yield
        finally:
            server.should_exit = True
            await asyncio.gather(serving, return_exceptions=True)


@contextlib.contextmanager
def _bound(address: str) -> Iterator[socket.socket]:
    path = Path(address.removeprefix("unix:")) if address.startswith("unix:") else None
    host, _, port = address.rpartition(":")
    try:
        if path is not None:
            path.unlink(missing_ok=True)
            bound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            before = os.umask(0o177)  # only its owner may connect
            try:
                bound.bind(str(path))
            finally:
                os.umask(before)
        else:
            host = host.strip("[]")
            bound = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound.bind((host, int(port)))
    except (OSError, ValueError) as error:
        raise SettingsError(f"admin.listen: cannot listen on {address!r}: {error}") from error
    bound.setblocking(False)
    with bound:
        try:
            yield bound
        finally:
            if path is not None:
                path.unlink(missing_ok=True)
