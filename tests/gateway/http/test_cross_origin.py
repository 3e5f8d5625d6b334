"""Pages of other origins: what a browser asks and is told, and what a page in Chromium can do."""

from __future__ import annotations

import asyncio
import http.server
import threading
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest
from playwright.sync_api import Error

from tests.e2e.browser import chromium, needs_chromium
from tests.gateway.conftest import KEY, Serve, Served

pytestmark = pytest.mark.anyio

PAGE, OTHER = "http://localhost:9", "http://localhost:10"
PREFLIGHT = {
    "access-control-request-method": "POST",
    "access-control-request-headers": "authorization,content-type,x-stainless-lang",
}
BODY = {"model": "small", "input": "hello", "max_output_tokens": 2}

SCRIPT = """async ([url, key, body]) => {
  const headers = { authorization: `Bearer ${key}`, "content-type": "application/json" };
  const post = (path, body) => fetch(url + path, { method: "POST", headers, body: JSON.stringify(body) });
  const answer = await post("/v1/responses", body);
  const refused = await post("/v1/responses", { ...body, model: "nothing" });
  const stream = await post("/v1/responses", { ...body, stream: true });
  const { ticket } = await (await post("/v1/tickets")).json();
  const address = url.replace("http", "ws") + "/v1/responses";
  const socket = new WebSocket(address, ["roundhouse.json", "roundhouse.ticket." + ticket]);
  const opened = await new Promise((done) => { socket.onopen = () => done(true); socket.onclose = () => done(false); });
  return {
    status: (await answer.json()).status,
    headers: [...answer.headers.keys()],
    code: (await refused.json()).error.code,
    streamed: (await stream.text()).includes("response.output_text.delta"),
    opened,
  };
}"""


async def ask(
    served: Served, origin: str, method: str = "POST", path: str = "/v1/responses", **headers: str
) -> httpx2.Response:
    """A request as a browser sends it for a page of this origin."""
    given = {"origin": origin, "authorization": f"Bearer {KEY}", **headers}
    async with httpx2.AsyncClient(verify=False) as client:
        return await client.request(method, f"{served.url}{path}", json=BODY, headers=given)


PATHS = ("/v1/responses", "/v1/messages", "/api/chat", "/tokenize")


def refused(response: httpx2.Response, path: str, code: str) -> None:
    """Check that a refusal has the shape of the path's API."""
    body = response.json()
    assert response.status_code == 403
    if path == "/v1/messages":
        assert (body["type"], body["error"]["type"]) == ("error", "permission_error")
    elif path.startswith("/api/"):
        assert list(body) == ["error"] and isinstance(body["error"], str)
    else:
        assert body["error"]["code"] == code


@pytest.mark.parametrize("path", PATHS)
async def test_a_preflight_lets_allowed_origins_send_any_header(serve: Serve, path: str) -> None:
    """Others are refused in the shape of the path's API."""
    async with serve(server={"allowed_origins": [PAGE]}) as served:
        allowed = await ask(served, PAGE, "OPTIONS", path, **PREFLIGHT)
        others = await ask(served, OTHER, "OPTIONS", path, **PREFLIGHT)
    assert allowed.status_code == 200
    assert allowed.headers["access-control-allow-origin"] == PAGE
    assert allowed.headers["access-control-allow-headers"] == PREFLIGHT["access-control-request-headers"]
    assert "access-control-allow-credentials" not in allowed.headers
    refused(others, path, "origin_not_allowed")
    assert others.headers["vary"] == "Origin"
    assert "access-control-allow-origin" not in others.headers


@pytest.mark.parametrize("path", PATHS)
async def test_another_host_is_refused_in_the_shape_of_the_path(serve: Serve, path: str) -> None:
    async with serve() as served:
        refused(await ask(served, PAGE, path=path, host="evil.example"), path, "host_not_allowed")


async def test_answers_and_errors_can_be_read_by_allowed_origins(serve: Serve) -> None:
    """And caches on the way keep them apart."""
    async with serve(server={"allowed_origins": [PAGE]}) as served:
        for key in (KEY, "wrong"):
            mine = await ask(served, PAGE, authorization=f"Bearer {key}")
            others = await ask(served, OTHER, authorization=f"Bearer {key}")
            assert mine.headers["access-control-allow-origin"] == PAGE
            assert mine.headers["access-control-expose-headers"] == "*"
            assert "access-control-allow-origin" not in others.headers
            assert "Origin" in mine.headers["vary"] and "Origin" in others.headers["vary"]
        await served.settle()


async def test_all_origins_get_no_credentials(serve: Serve) -> None:
    async with serve(server={"allowed_origins": ["*"]}) as served:
        answer = await ask(served, OTHER)
    assert answer.headers["access-control-allow-origin"] == "*"
    assert "access-control-allow-credentials" not in answer.headers


async def test_without_allowed_origins_nothing_is_said(serve: Serve) -> None:
    async with serve() as served:
        assert (await ask(served, PAGE, "OPTIONS", **PREFLIGHT)).status_code == 405
        assert "access-control-allow-origin" not in (await ask(served, PAGE)).headers


class Page(http.server.BaseHTTPRequestHandler):
    """An empty page."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/html")
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def page_port() -> Iterator[int]:
    """Port of a server of the page."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Page) as server:
        threading.Thread(target=server.serve_forever).start()
        yield server.server_address[1]
        server.shutdown()


@needs_chromium
async def test_a_page_of_an_allowed_origin_can_do_everything(serve: Serve, page_port: int) -> None:
    """Ask, read errors and headers, stream, get a ticket and open a WebSocket with it; another page can do nothing."""
    allowed, other = f"http://127.0.0.1:{page_port}", f"http://localhost:{page_port}"

    def visit(origin: str, url: str) -> Any:
        with chromium() as browser:
            page = browser.new_page()
            page.goto(f"{origin}/")
            return page.evaluate(SCRIPT, [url, KEY, BODY])

    async with serve(server={"allowed_origins": [allowed]}) as served:
        found = await asyncio.to_thread(visit, allowed, served.url)
        with pytest.raises(Error, match="Failed to fetch"):
            await asyncio.to_thread(visit, other, served.url)
        await served.settle()
    assert {"x-request-id", "x-ratelimit-limit-tokens", "x-roundhouse-model"} <= {*found.pop("headers")}
    assert found == {"status": "incomplete", "code": "model_not_found", "streamed": True, "opened": True}
