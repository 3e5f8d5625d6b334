"""Scopes at every endpoint of a real gateway."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from typing import Any, get_args

import httpx2
import pytest
from starlette.routing import BaseRoute, Mount, Route, WebSocketRoute
from websockets.exceptions import InvalidStatus

from gateway.access.identity import Principal, Scope
from gateway.access.identity.principal import SCOPES, USE
from gateway.config.settings import ApiKeySettings, TenantSettings
from tests.gateway.conftest import Serve, Served, receive, send

pytestmark = pytest.mark.anyio

PUBLIC = {
    "/",
    "/api/version",
    "/health",
    "/healthz",
    "/metrics",
    "/readyz",
    "/s/static",
    "/s/{share_id}",
    "/service-worker.js",
    "/static",
    "/ui/config.json",
    "/version",
} | {"/v1/openapi.json"}
"""Paths that need no key."""


def key(scope: str) -> str:
    return f"key-with-{scope}"


def sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


TENANTS = [
    TenantSettings(
        name="acme",
        keys=[
            ApiKeySettings(id=scope.replace(":", "-"), sha256=sha256(key(scope)), scopes=[scope])
            for scope in sorted(SCOPES)
        ],
    )
]


TOKENS = ("/tokenize", "/detokenize", "/tokenizer_info")


def endpoints(routes: Iterable[BaseRoute]) -> list[tuple[str, str]]:
    """Method and path of every endpoint under /v1 and /api, and of those for tokens."""
    found = []
    for route in routes:
        if isinstance(route, Route) and route.path.startswith(("/v1/", "/api/", *TOKENS)) and route.path not in PUBLIC:
            found += [(method, route.path) for method in sorted((route.methods or set()) - {"HEAD"})]
        else:
            assert isinstance(route, Route | Mount | WebSocketRoute)
            elsewhere = route.path.startswith(("/admin", "/auth/"))
            assert isinstance(route, WebSocketRoute) or route.path in PUBLIC or elsewhere
    return found


def scope_of(method: str, path: str) -> str:
    if path.startswith("/v1/prompts") and method != "GET":
        return "admin:write"
    return "models" if path.startswith(("/v1/models", "/api/tags", "/api/show")) else "chat"


def code_of(response: httpx2.Response) -> str:
    """The error's code; Anthropic's and Ollama's shapes have none."""
    error = response.json()["error"]
    codes = {401: "missing_api_key", 403: "insufficient_scope"}
    return str(error["code"] if isinstance(error, dict) and "code" in error else codes[response.status_code])


async def ask(served: Served, method: str, path: str, bearer: str | None) -> httpx2.Response:
    headers = {"authorization": f"Bearer {bearer}"} if bearer else {}
    async with httpx2.AsyncClient(headers=headers, verify=False) as client:
        return await client.request(method, served.url + re.sub(r"{[^}]*}", "some", path))


async def test_every_endpoint_needs_a_key_and_its_scope(serve: Serve) -> None:
    async with serve(tenants=TENANTS) as served:
        checked = endpoints(served.server.config.app.routes)  # type: ignore[union-attr]
        for method, path in checked:
            response = await ask(served, method, path, None)
            assert (response.status_code, code_of(response)) == (401, "missing_api_key"), path
            needed = scope_of(method, path)
            for scope in sorted(SCOPES - {needed}):
                response = await ask(served, method, path, key(scope))
                assert (response.status_code, code_of(response)) == (403, "insufficient_scope"), (path, scope)
                assert f"'{needed}'" in response.text
            response = await ask(served, method, path, key(needed))
            if path.startswith("/v1/chats"):  # the key has no user, whose conversations they would be
                assert (response.status_code, code_of(response)) == (403, "user_required"), path
            else:
                assert response.status_code in (200, 201, 400, 404, 415, 428), path
    assert {"/v1/responses", "/v1/chat/completions", "/v1/completions", "/v1/models", "/v1/tickets"} <= {
        path for _, path in checked
    }


async def test_a_websocket_needs_the_scope(serve: Serve) -> None:
    async with serve(tenants=TENANTS) as served:
        with pytest.raises(InvalidStatus) as caught:
            async with served.connect(key("models")):
                pass
        assert caught.value.response.status_code == 403
        async with served.connect(key("chat")) as socket:
            await send(socket, type="response.create", model="auto", input="hello", max_output_tokens=1)
            assert (await receive(socket))["type"] == "response.created"


@pytest.mark.parametrize("scope", get_args(Scope))
def test_a_principal_may_do_what_its_scopes_say(scope: Any) -> None:
    Principal("acme", "key", scopes=frozenset({scope})).require(scope)
    for other in SCOPES - {scope}:
        with pytest.raises(Exception, match=other) as caught:
            Principal("acme", "key", scopes=frozenset({scope})).require(other)
        assert caught.value.code == "insufficient_scope"  # type: ignore[attr-defined]


def test_a_principal_without_scopes_of_its_own_uses_but_does_not_administer() -> None:
    assert Principal("acme", "key").scopes == USE == SCOPES - {"admin:read", "admin:write"}
