"""What holds for every request."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator

import httpx2
import pytest
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from gateway.errors import ApiError
from gateway.http.exchange import on_error
from gateway.http.middleware import BodyLimit, HostCheck, RequestHeaders
from gateway.telemetry.logs import JsonFormatter

pytestmark = pytest.mark.anyio


async def echo(request: Request) -> Response:
    logging.getLogger("roundhouse.test").warning("asked")
    return PlainTextResponse(str(len(await request.body())))


@pytest.fixture
async def client() -> AsyncIterator[httpx2.AsyncClient]:
    app = Starlette(
        routes=[Route("/", echo, methods=["POST"])],
        middleware=[
            Middleware(RequestHeaders),
            Middleware(
                HostCheck, listen="127.0.0.1", allowed_origins=lambda: ["https://chat.example"], on_error=on_error
            ),
            Middleware(BodyLimit, limit=10),
        ],
        exception_handlers={ApiError: on_error},
    )
    transport = httpx2.ASGITransport(app=app)
    async with httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1", verify=False) as client:
        yield client


@pytest.mark.parametrize(
    ("host", "status"),
    [("127.0.0.1:8080", 200), ("localhost", 200), ("chat.example", 200), ("evil.example", 403), ("", 403)],
)
async def test_a_local_server_is_addressed_as_such(client: httpx2.AsyncClient, host: str, status: int) -> None:
    """Or under the name of a page that may use it, behind a proxy."""
    assert (await client.post("/", headers={"host": host})).status_code == status


async def test_a_body_within_the_limit_is_read(client: httpx2.AsyncClient) -> None:
    """Up to the last byte."""
    assert (await client.post("/", content=b"x" * 10)).text == "10"


async def test_a_body_above_the_limit_is_refused_while_it_is_read(client: httpx2.AsyncClient) -> None:
    """Also one that does not say how long it is."""

    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(3):
            yield b"x" * 5

    for content in (b"x" * 11, chunks()):
        response = await client.post("/", content=content)
        assert (response.status_code, response.json()["error"]["code"]) == (413, "request_too_large")


@pytest.mark.parametrize(
    ("offered", "kept"), [("my-id_1.2", True), ("", False), ("a b", False), ("x" * 129, False), ("a\tb", False)]
)
async def test_every_response_has_a_request_id(client: httpx2.AsyncClient, offered: str, kept: bool) -> None:
    """The client's own if it is well formed."""
    answered = (await client.post("/", headers={"x-request-id": offered})).headers["x-request-id"]
    assert (answered == offered) is kept
    assert answered


async def test_the_request_id_is_in_the_log(client: httpx2.AsyncClient) -> None:
    """In every line of the request."""
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(JsonFormatter().format(record))
    logging.getLogger("roundhouse.test").addHandler(handler)
    await client.post("/", headers={"x-request-id": "abc"})
    logging.getLogger("roundhouse.test").removeHandler(handler)
    assert '"request_id":"abc"' in lines[0]
