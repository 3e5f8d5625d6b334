"""A real gateway with an operator, and admins of two tenants."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import httpx2
import pytest

from gateway.config.settings import ApiKeySettings, TenantSettings, demo_settings
from gateway.records.directory import Scope
from gateway.server import GatewayServer
from tests.gateway.conftest import Serve, Served

if TYPE_CHECKING:
    from tests.gateway.admin.thread import Thread

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


@pytest.fixture
def thread(administer: Administer, monkeypatch: pytest.MonkeyPatch) -> Iterator[Thread]:
    """A gateway with a tenant `shop` and something of everything."""
    from tests.gateway.admin.thread import Thread

    # Handlers of signals belong to a main thread.
    monkeypatch.setattr(GatewayServer, "capture_signals", lambda self: contextlib.nullcontext())
    with Thread(administer) as thread:
        yield thread
