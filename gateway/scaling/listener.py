"""What a controller answers to plain HTTP: probes for orchestrators, and its decisions as metrics."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Iterator

import uvicorn
from prometheus_client.exposition import choose_encoder
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from gateway.config.settings import SettingsError
from gateway.scaling.controller import Controller


class _Server(uvicorn.Server):
    """uvicorn without handlers for signals: the controller's own process has them."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@contextlib.asynccontextmanager
async def listening(controller: Controller, bound: socket.socket | None) -> AsyncIterator[None]:
    """Answer at a bound socket while the body runs; nowhere without one.

    `/healthz` is 200 while the process runs; `/readyz` is 503 while Redis does not answer.
    """
    if bound is None:
        yield
        return

    async def health(request: Request) -> Response:
        return PlainTextResponse("ok\n")

    async def readiness(request: Request) -> Response:
        if controller.ready:
            return PlainTextResponse("ok\n")
        return PlainTextResponse("Redis does not answer: nothing is decided\n", 503)

    async def metrics(request: Request) -> Response:
        accept = request.headers.get("accept", "")
        return Response(controller.metrics.page(accept), media_type=choose_encoder(accept)[1])

    app = Starlette(routes=[Route("/healthz", health), Route("/readyz", readiness), Route("/metrics", metrics)])
    config = uvicorn.Config(
        app, proxy_headers=False, http="httptools", ws="none", lifespan="off", log_config=None, access_log=False
    )
    server = _Server(config)
    serving = asyncio.create_task(server.serve(sockets=[bound]))
    try:
        yield
    finally:
        server.should_exit = True
        await asyncio.gather(serving, return_exceptions=True)


def bind(address: str) -> socket.socket:
    """Return a socket that is bound to `host:port`.

    Raises:
        SettingsError: the address cannot be used.
    """
    host, _, port = address.rpartition(":")
    try:
        listener = socket.create_server(
            (host.strip("[]"), int(port)), family=socket.AF_INET6 if "[" in host else socket.AF_INET
        )
    except (OSError, ValueError, OverflowError) as error:
        raise SettingsError(f"scaling.listen: cannot listen on {address!r}: {error}") from error
    listener.setblocking(False)
    return listener
