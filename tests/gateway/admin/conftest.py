"""A real gateway with an operator, and admins of two tenants."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import httpx2
import pytest

from gateway.config.chat import ChatSettings
from gateway.config.settings import ApiKeySettings, SemanticCacheSettings, TenantSettings, demo_settings
from gateway.records.directory import Scope
from tests.gateway.conftest import Serve, Served
from tests.gateway.thread import ServingThread

OPERATOR, ACME, OTHER, CHAT = "operator-key", "acme-key", "other-key", "chat-key"
ADMIN: list[Scope] = ["admin:read", "admin:write"]


def api_key(id: str, text: str, scopes: list[Scope], *, operator: bool = False) -> ApiKeySettings:
    return ApiKeySettings(id=id, sha256=hashlib.sha256(text.encode()).hexdigest(), scopes=scopes, operator=operator)


TENANTS = [
    *demo_settings().tenants,
    TenantSettings(name="operations", keys=[api_key("root", OPERATOR, [*ADMIN, "models"], operator=True)]),
    TenantSettings(
        name="acme", keys=[api_key("acme-admin", ACME, ADMIN), api_key("acme-chat", CHAT, ["chat", "models"])]
    ),
    TenantSettings(name="other", keys=[api_key("other-admin", OTHER, ADMIN)]),
]


@dataclass
class Administered:
    """A running gateway, and clients of its admin API."""

    served: Served
    operator: httpx2.AsyncClient
    acme: httpx2.AsyncClient
    other: httpx2.AsyncClient

    def client(self, key: str | None) -> httpx2.AsyncClient:
        return client(self.served, key)


def client(served: Served, key: str | None) -> httpx2.AsyncClient:
    headers = {"authorization": f"Bearer {key}"} if key else {}
    return httpx2.AsyncClient(base_url=f"{served.url}/admin/v1", headers=headers, timeout=20)


Administer = Callable[..., contextlib.AbstractAsyncContextManager[Administered]]


@pytest.fixture
def administer(serve: Serve) -> Administer:
    """`async with administer(...) as api`; takes what `serve` does."""

    @contextlib.asynccontextmanager
    async def administer(**changes: Any) -> AsyncIterator[Administered]:
        async with contextlib.AsyncExitStack() as stack:
            served = await stack.enter_async_context(serve(**{"tenants": TENANTS, **changes}))
            clients = [await stack.enter_async_context(client(served, key)) for key in (OPERATOR, ACME, OTHER)]
            yield Administered(served, *clients)

    return administer


def problem(response: httpx2.Response, status: int, code: str) -> dict[str, Any]:
    """Check that a response is this problem, and return it."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/problem+json"
    body: dict[str, Any] = response.json()
    assert body["status"] == status
    assert body["code"] == code, body
    assert body["type"] == f"urn:roundhouse:error:{code}"
    assert body["title"]
    assert body["detail"]
    return body


@dataclass
class Shop:
    """A gateway with a tenant `shop` and something of everything."""

    url: str
    names: dict[str, str]
    """Names of existing things, by parameter of a path."""


@contextlib.asynccontextmanager
async def furnished(administer: Administer) -> AsyncIterator[Shop]:
    options = {"semantic_cache": SemanticCacheSettings(enabled=True), "chat": ChatSettings(comments=True)}
    async with administer(**options) as api:
        post = api.operator.post
        await post("/tenants", json={"name": "shop"})
        user = (await post("/tenants/shop/users", json={"subject": "ada"})).json()["id"]
        key = (await post("/tenants/shop/keys", json={})).json()["record"]["id"]
        await post("/prices", json={"name": "tiny-small", "input": 1, "output": 1})
        await post("/routes", json={"name": "tiny-small", "targets": [{"model": "tiny-small", "weight": 1}]})
        await api.served.gateway.view.refresh()
        names = {
            "tenant": "shop",
            "user": user,
            "key": key,
            "public_name": "tiny-small",
            "pool": "small",
            "route": "tiny-small",
        }
        yield Shop(api.served.url, names | {"replica": "small-0"})


@pytest.fixture
def shop(administer: Administer, unsignalled: None) -> Iterator[Shop]:
    """A shop that serves clients which block."""
    with ServingThread(partial(furnished, administer)) as shop:
        yield shop
