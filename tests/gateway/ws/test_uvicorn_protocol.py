"""The protocol on uvloop, as gateways run it: other loops forgive what uvloop does not."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed
from websockets.frames import Frame

from gateway.ws.uvicorn_protocol import WebSocketProtocol
from tests.gateway.conftest import Serve, receive, send

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, Any]]:
    return "asyncio", {"use_uvloop": True}


async def test_a_client_that_goes_before_something_is_written_is_no_fault(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    faults: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: faults.append(context))
    sending = WebSocketProtocol.send

    async def lose_and_send(self: WebSocketProtocol, message: Any) -> None:
        if message["type"] == "websocket.send":
            self.transport.abort()
        await sending(self, message)

    async with serve() as served:
        monkeypatch.setattr(WebSocketProtocol, "send", lose_and_send)
        async with served.connect() as socket:
            await send(socket, type="response.create", model="small", input="hello")
            with pytest.raises(ConnectionClosed):
                await receive(socket)
        await served.settle()
    assert faults == []


async def test_a_server_may_end_while_a_client_is_parting(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    faults: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: faults.append(context))
    closing = WebSocketProtocol.handle_close
    parted = []

    def close_and_end(self: WebSocketProtocol, event: Frame) -> None:
        closing(self, event)
        self.shutdown()
        parted.append(self)

    monkeypatch.setattr(WebSocketProtocol, "handle_close", close_and_end)
    async with serve() as served:
        async with served.connect():
            pass
        await served.settle()
    assert faults == []
    assert len(parted) == 1
