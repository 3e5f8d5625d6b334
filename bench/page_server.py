"""Serves the chat page, and answers its questions with a text of so many tokens a second."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import socket
import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace

import msgspec
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

from gateway.config.settings import demo_settings
from gateway.engines.arrival import ArrivalState
from gateway.http import page

TOKEN = 4
"""Characters of a token."""
USAGE = {"input_tokens": 30, "output_tokens": 0, "total_tokens": 30}
ROUTE = {
    "type": "roundhouse.route",
    "tier": "small",
    "model": "bench",
    "replica": "bench",
    "complexity": 0.1,
    "reasons": ["it is measured"],
    "options": [],
    "cache": "bypass",
    "cache_reason": "",
}


class PageServer:
    """The page with its own files and policy; what answers is `text`, at `rate` tokens a second."""

    def __init__(self) -> None:
        self.text = ""
        self.rate = 200.0
        self.app = Starlette(
            routes=[
                *page.routes,
                Route("/v1/models", self._models),
                Route("/v1/tickets", self._ticket, methods=["POST"]),
                WebSocketRoute("/v1/responses", self._socket),
            ]
        )
        self.app.state.gateway = SimpleNamespace(settings=demo_settings(), arrivals=ArrivalState(), caller=self._nobody)

    @contextlib.contextmanager
    def serving(self) -> Iterator[str]:
        """Serve on a thread; gives the address."""
        with socket.create_server(("127.0.0.1", 0)) as bound:
            server = uvicorn.Server(uvicorn.Config(self.app, log_config=None, ws="websockets-sansio"))
            thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]})
            thread.start()
            try:
                while not server.started:
                    time.sleep(0.02)
                yield f"http://127.0.0.1:{bound.getsockname()[1]}/"
            finally:
                server.should_exit = True
                thread.join()

    async def _nobody(self, request: Request) -> None:
        """Nobody has signed in."""

    async def _models(self, request: Request) -> JSONResponse:
        return JSONResponse({"object": "list", "data": [{"id": "bench", "type": "chat"}]})

    async def _ticket(self, request: Request) -> JSONResponse:
        return JSONResponse({"ticket": "bench"})

    async def _socket(self, socket: WebSocket) -> None:
        await socket.accept("roundhouse.json")
        with contextlib.suppress(WebSocketDisconnect):
            while True:
                asked = await socket.receive_json()
                if asked["type"] == "response.create":
                    await self._answer(socket, asked["stream_id"])

    async def _answer(self, socket: WebSocket, lane: str) -> None:
        numbers = itertools.count()

        async def send(event: dict[str, object]) -> None:
            whole = {**event, "sequence_number": next(numbers), "stream_id": lane}
            await socket.send_text(msgspec.json.encode(whole).decode())

        await send({"type": "response.created", "response": {"id": f"resp_{lane}"}})
        await send(ROUTE)
        window = self.app.state.gateway.settings.turns.coalesce_window
        begun, sent, tokens = time.perf_counter(), 0, -(-len(self.text) // TOKEN)
        while sent < tokens:
            # Not a pause after the one before: a busy machine would add to each.
            await asyncio.sleep(max(0.0, begun + sent / self.rate - time.perf_counter()))
            there = min(tokens, 1 + int((time.perf_counter() - begun) * self.rate))
            await send({"type": "response.output_text.delta", "delta": self.text[sent * TOKEN : there * TOKEN]})
            sent = there
            await asyncio.sleep(window)  # as the gateway does
        response = {"id": f"resp_{lane}", "status": "completed", "usage": USAGE}
        await send({"type": "response.completed", "response": response})
