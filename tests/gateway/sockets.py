"""Shared parts of the tests of the WebSocket: ask, read errors, expect a close."""

from __future__ import annotations

import asyncio
from typing import Any

import msgpack
from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed

from tests.gateway.conftest import receive, send, until_end

VARIED: dict[str, Any] = {"temperature": 1, "seed": 5, "ignore_eos": True}
"""Parameters of a random text that is the same in every run."""


async def create(socket: ClientConnection, text: str = "hello", **fields: Any) -> None:
    await send(socket, type="response.create", input=text, **fields)


async def ask(socket: ClientConnection, text: str = "hello", **fields: Any) -> list[dict[str, Any]]:
    """Run one turn; returns all its events."""
    await create(socket, text, **fields)
    return await until_end(lambda: receive(socket))


def assert_error(event: dict[str, Any], status: int, code: str, param: str | None = None) -> None:
    assert (event["type"], event["status"]) == ("error", status), event
    assert (event["error"]["code"], event["error"]["param"]) == (code, param)


async def closed_with(socket: ClientConnection) -> int:
    """Read until the server closes; returns its code."""
    async with asyncio.timeout(20):
        try:
            while True:
                await socket.recv()
        except ConnectionClosed as closed:
            assert closed.rcvd is not None
            return closed.rcvd.code


async def receive_msgpack(socket: ClientConnection) -> dict[str, Any]:
    async with asyncio.timeout(20):
        message = await socket.recv()
    assert isinstance(message, bytes)
    event: dict[str, Any] = msgpack.unpackb(message)  # not the library that the server writes it with
    return event
