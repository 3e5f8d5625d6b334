"""A listener of the admin API's own, so that it need not be reachable where clients are."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.routing import Mount

from gateway.admin.handlers import on_error
from gateway.config.configuration import Configuration
from gateway.config.settings import SettingsError
from gateway.http import sign_in
from gateway.http.middleware import HostCheck, RequestHeaders


class _Server(uvicorn.Server):
    """uvicorn without handlers for signals: the gateway's own server has them."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@contextlib.asynccontextmanager
async def listening(
    admin: Starlette, configuration: Configuration, bound: socket.socket | None = None
) -> AsyncIterator[None]:
    """Serve `admin` on `admin.listen` while the body runs; nothing if it is served beside everything else.

    Args:
        bound: a socket that is bound to it already, and which other processes serve too.

    Raises:
        SettingsError: the address cannot be used.
    """
    address = configuration.settings.admin.listen
    if address is None:
        yield
        return
    host = "" if address.startswith("unix:") else address.rpartition(":")[0].strip("[]")

    def allowed_origins() -> Sequence[str]:
        return configuration.settings.server.allowed_origins

    app = Starlette(
        routes=[Mount("/admin", admin), *sign_in.routes],
        middleware=[
            Middleware(RequestHeaders),
            Middleware(HostCheck, listen=host, allowed_origins=allowed_origins, on_error=on_error),
        ],
        exception_handlers=dict.fromkeys((HTTPException, Exception), on_error),
    )
    app.state = admin.state
    trusted = configuration.settings.server.trusted_proxies
    server = _Server(
        uvicorn.Config(
            app,
            # uvicorn would believe whatever a program on this machine says of its address.
            proxy_headers=bool(trusted),
            forwarded_allow_ips=trusted,
            http="httptools",
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=5,
        )
    )
    with contextlib.nullcontext(bound) if bound is not None else bind(address) as listener:
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        try:
            yield
        finally:
            server.should_exit = True
            await asyncio.gather(serving, return_exceptions=True)


@contextlib.contextmanager
def bind(address: str) -> Iterator[socket.socket]:
    """Bind a socket to `admin.listen` while the body runs.

    Raises:
        SettingsError: the address cannot be used.
    """
    try:
        if address.startswith("unix:"):
            path = Path(address.removeprefix("unix:"))
            bound = _unix_socket(path)
        else:
            path = None
            bound = _tcp_socket(address)
    except (OSError, ValueError, OverflowError) as error:
        raise SettingsError(f"admin.listen: cannot listen on {address!r}: {error}") from error
    with bound:
        bound.setblocking(False)
        try:
            yield bound
        finally:
            if path is not None:
                path.unlink(missing_ok=True)


def _unix_socket(path: Path) -> socket.socket:
    """Only its owner may connect."""
    path.unlink(missing_ok=True)
    with contextlib.ExitStack() as on_error:
        bound = on_error.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
        before = os.umask(0o177)
        try:
            bound.bind(str(path))
        finally:
            os.umask(before)
        on_error.pop_all()
    return bound


def _tcp_socket(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    with contextlib.ExitStack() as on_error:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        bound = on_error.enter_context(socket.socket(family, socket.SOCK_STREAM))
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((host, int(port)))
        on_error.pop_all()
    return bound
