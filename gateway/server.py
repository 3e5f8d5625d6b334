"""The HTTP and WebSocket server of a gateway: uvicorn, with a shutdown that loses no turn.

uvicorn alone closes WebSockets at once when it is told to stop. Here a stop first makes the gateway unready, refuses
new connections and turns, tells the open ones, and waits for running turns; only then uvicorn ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import signal
import socket
from collections.abc import Callable, Iterator

import uvicorn
from starlette.applications import Starlette

from gateway.config.settings import Settings, SettingsError
from gateway.services import Gateway
from gateway.ws.uvicorn_protocol import patient

log = logging.getLogger("roundhouse.server")

_STOP = (signal.SIGTERM, signal.SIGINT)


class PortTaken(Exception):
    """The configured address cannot be listened on."""


def listen(settings: Settings) -> socket.socket:
    """Bind a socket to the configured address.

    Raises:
        PortTaken: the message says how to choose another port.
    """
    host, port = settings.server.host, settings.server.port
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # The protocol is named because asyncio turns Nagle's algorithm off only where it sees that it is TCP.
    bound = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        # uvicorn closes a connection when its client has read what was sent. For one that reads nothing, that is never:
        # the kernel gives up on it a while after we have.
        patience = int(2000 * settings.server.send_timeout)
        bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, patience)
    try:
        bound.bind((host, port))
    except OSError as error:
        bound.close()
        raise PortTaken(
            f"cannot listen on {host}:{port} ({error.strerror}); choose another port, for example: "
            "make serve PORT=9000, or: roundhouse serve --port 9000"
        ) from error
    bound.setblocking(False)
    return bound


def url(settings: Settings, bound: socket.socket) -> str:
    """Return the address that a browser on this machine can open."""
    host = settings.server.host
    shown = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)
    return f"http://{shown}:{bound.getsockname()[1]}"


@contextlib.contextmanager
def signals(stop: Callable[[], None], reload: Callable[[], None]) -> Iterator[None]:
    """Handle signals while the body runs: SIGTERM and SIGINT stop; SIGHUP reloads, or stops if the terminal that this
    process was started in is gone."""
    loop, terminal = asyncio.get_running_loop(), os.isatty(0)

    def hang_up() -> None:
        (stop if terminal and not os.isatty(0) else reload)()

    for number in _STOP:
        loop.add_signal_handler(number, stop)
    loop.add_signal_handler(signal.SIGHUP, hang_up)
    try:
        yield
    finally:
        for number in (*_STOP, signal.SIGHUP):
            loop.remove_signal_handler(number)


class GatewayServer(uvicorn.Server):
    """uvicorn with our signals: the first one to stop drains, the second one ends at once; SIGHUP reloads."""

    def __init__(self, app: Starlette, settings: Settings) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                loop="uvloop",
                http="httptools",
                ws=patient(settings.server.send_timeout),
                ws_max_size=settings.server.max_message_bytes,
                # Compression costs 2.5 times the memory per idle connection and saves little on short messages.
                ws_per_message_deflate=False,
                proxy_headers=bool(settings.server.trusted_proxies),
                forwarded_allow_ips=settings.server.trusted_proxies,
                lifespan="on",
                log_config=None,
                access_log=False,
                server_header=False,
                timeout_graceful_shutdown=5,
            )
        )
        self._app = app
        self._draining: asyncio.Task[None] | None = None
        self._reloading: set[asyncio.Task[None]] = set()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start as uvicorn does, then exempt what stays (tokenizers, templates, modules) from garbage collection.

        A turn makes a few kilobytes of garbage, most of it without cycles. Scanning everything for it, as the defaults
        do, costs a fifth of a turn's CPU, and a pause of a quarter of a second now and then.
        """
        await super().startup(sockets)
        gc.collect()
        gc.freeze()
        gc.set_threshold(50_000, 20, 100)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Replace uvicorn's signal handlers, which would end the server at once."""
        with signals(self.stop, self.reload):
            yield

    def stop(self) -> None:
        """Drain, then end; called again, end at once."""
        if self._draining is None and self.started:
            self._draining = asyncio.get_running_loop().create_task(self._drain())
        else:
            self.should_exit = True

    def reload(self) -> None:
        """Read the configuration again; the outcome is logged."""
        if self.started:
            task = asyncio.get_running_loop().create_task(self._reload())
            self._reloading.add(task)
            task.add_done_callback(self._reloading.discard)

    async def _reload(self) -> None:
        gateway: Gateway = self._app.state.gateway
        with contextlib.suppress(SettingsError):  # it is in the log
            await gateway.configuration.reload()

    async def _drain(self) -> None:
        gateway: Gateway = self._app.state.gateway
        log.info("draining", extra={"turns": gateway.turns.running, "connections": gateway.connections.open})
        try:
            gateway.connections.drain()
            await gateway.turns.drain(gateway.settings.server.drain_timeout)
            await gateway.connections.shut()
        finally:
            self.should_exit = True
