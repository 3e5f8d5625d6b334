"""Requests that name a resource, and all of the answers to them, which must not disclose whether it exists."""

from __future__ import annotations

import asyncio
import json
import re
import secrets
from collections.abc import Mapping
from typing import Any, NamedTuple

import httpx2
import msgspec
from websockets.asyncio.client import ClientConnection

from tests.gateway.conftest import TERMINAL, Served


class Attempt(NamedTuple):
    """A request that names something of this kind; `$` stands for the name."""

    kind: str
    body: Mapping[str, Any] | None = None
    query: str = ""
    headers: Mapping[str, str] = {}

    def named(self, name: str) -> Attempt:
        body, query, headers = json.loads(json.dumps([self.body, self.query, self.headers]).replace("$", name))
        return Attempt(self.kind, body, query, headers)


def client(served: Served, key: str | None) -> httpx2.AsyncClient:
    # Ids of requests are random unless the client gives them.
    headers = {"x-request-id": "r", **({"authorization": f"Bearer {key}"} if key else {})}
    return httpx2.AsyncClient(base_url=served.url, headers=headers, timeout=20)


def invented(name: str) -> str:
    """Return a name of the same form that never existed; of a response, one that the same gateway would have run."""
    if "/" in name:
        return "/".join(part if part == "items" else invented(part) for part in name.split("/"))
    if name.startswith("resp_"):
        return name[:21] + secrets.token_hex(16)
    if name.startswith("conv_"):
        return name[:5] + secrets.token_hex(24)
    return name[:4] + secrets.token_hex(len(name))[: len(name) - 4]


OWN = [
    (re.compile(r"(resp_|msg_|conv_|cmp_|chatcmpl-|cmpl-|req_)[0-9a-f]{16,}"), r"\1*"),
    (re.compile(r'("(?:created|created_at|completed_at|remaining|reset_seconds)":)[\d.]+'), r"\1*"),
    (re.compile(r"^(x-ratelimit-(?:remaining|reset)-.*|[a-z-]+-ms|date): .*$", re.MULTILINE), r"\1: *"),
    (re.compile(r'("(?:created_at|[a-z_]+_duration)":)("[^"]*"|\d+)'), r"\1*"),
]
"""Parts of a response that depend on the caller or the time."""


def without_own(said: str, name: str = "\0") -> str:
    for part in name.split("/"):
        said = said.replace(part, "*")
    for pattern, instead in OWN:
        said = pattern.sub(instead, said)
    return said


def written(status: int, headers: Mapping[str, str], content: bytes) -> str:
    """Return a whole response as text."""
    head = "".join(f"{name.lower()}: {value}\n" for name, value in sorted(headers.items()))
    return f"{status}\n{head}\n{content.decode()}\n"


async def over_http(client: httpx2.AsyncClient, endpoint: str, attempt: Attempt, name: str) -> str:
    """Return what the client is told over HTTP, and what headers alone tell where they can be read."""
    method, path = endpoint.split(" ")
    _, body, query, headers = attempt.named(name)
    address = re.sub(r"{.*}", name, path) + query
    options: dict[str, Any] = {"headers": headers} | ({} if body is None else {"json": body})
    said = ""
    for each in (method, "HEAD") if method == "GET" else (method,):
        response = await client.request(each, address, **options)
        said += written(response.status_code, response.headers, response.content)
    return said


async def over_a_socket(socket: ClientConnection, attempt: Attempt, name: str) -> str:
    """Return what the client is told over a socket, up to the event that ends it."""
    said: list[dict[str, Any]] = []
    packed = socket.subprotocol == "roundhouse.msgpack"
    event = attempt.named(name).body
    await socket.send(msgspec.msgpack.encode(event) if packed else json.dumps(event))
    while not said or said[-1]["type"] not in TERMINAL:
        async with asyncio.timeout(20):
            message = await socket.recv()
        said.append(msgspec.msgpack.decode(message) if isinstance(message, bytes) else json.loads(message))
    return msgspec.json.encode(said).decode()
