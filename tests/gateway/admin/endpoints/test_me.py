"""`GET /admin/v1/me`, and that nothing of the admin API depends on a budget."""

from __future__ import annotations

import httpx2
import pytest

from gateway.admin.app import API
from gateway.admin.call import Access
from gateway.config.settings import PriceSettings
from tests.gateway.admin.conftest import CHAT, Administer, problem

pytestmark = pytest.mark.anyio


async def test_an_operator_may_all(administer: Administer) -> None:
    async with administer() as api:
        me = (await api.operator.get("/me")).json()
        assert (me["role"], me["tenant"], me["user"], me["key"]) == ("operator", "operations", None, "root")
        assert me["scopes"] == ["admin:read", "admin:write", "models"]
        assert me["session"] is None
        assert me["version"] and me["sign_in"]["key"] is True
        assert me["may"] == {
            tag: sorted({"read" if each.method == "GET" else "write" for each in API.endpoints if each.tag == tag})
            for tag in {each.tag for each in API.endpoints}
        }


async def test_an_admin_of_a_tenant_may_what_concerns_one(administer: Administer) -> None:
    """What it is told fits what it is answered."""
    async with administer() as api:
        me = (await api.acme.get("/me")).json()
        assert (me["role"], me["tenant"], me["key"]) == ("tenant_admin", "acme", "acme-admin")
        assert me["may"]["keys"] == ["read", "write"]
        assert me["may"]["tenants"] == ["read"]
        for endpoint in API.endpoints:
            if endpoint.method == "GET" and endpoint.access is Access.OPERATOR and "{" not in endpoint.path:
                problem(await api.acme.get(endpoint.path), 403, "forbidden")
        operators_only = {each.tag for each in API.endpoints} - {
            each.tag for each in API.endpoints if each.access is not Access.OPERATOR
        }
        assert operators_only and not operators_only & me["may"].keys()


async def test_whoever_may_not_administer_is_nobody_here(administer: Administer) -> None:
    async with administer() as api, api.client(CHAT) as chat, api.client(None) as nobody:
        problem(await chat.get("/me"), 403, "insufficient_scope")
        problem(await nobody.get("/me"), 401, "missing_api_key")


async def spend(client: httpx2.AsyncClient, url: str) -> None:
    """Ask until the tenant's budget is spent."""
    for number in range(20):
        answer = await client.post(f"{url}/v1/responses", json={"model": "small", "input": f"question {number}"})
        if answer.status_code != 200:
            break
    assert (answer.status_code, answer.json()["error"]["code"]) == (429, "insufficient_quota")


async def test_a_spent_budget_closes_nothing_of_the_admin_api(administer: Administer) -> None:
    """Neither for a tenant's admin, nor for an operator who has signed in with a browser and chats for that tenant."""
    price = PriceSettings(name="tiny-small", input=1_000_000_000, output=0)
    async with administer(limits={"spend_per_day": 30_000}, prices=[price]) as api:
        url = api.served.url
        browser = httpx2.AsyncClient(base_url=url, headers={"origin": url}, timeout=20)
        async with browser, api.client(CHAT) as chat:
            secret = await api.served.gateway.sign_in.links.make()
            assert (await browser.get(f"/auth/link?secret={secret}")).status_code == 303
            await spend(browser, url)
            await spend(chat, url)
            for endpoint in API.endpoints:
                path = endpoint.path.replace("{tenant}", "acme")
                if endpoint.method == "GET" and "{" not in path and endpoint.produces != "text/event-stream":
                    shown = await browser.get(f"/admin/v1{path}")
                    assert shown.status_code == 200, (path, shown.text)
                    if endpoint.access is not Access.OPERATOR:
                        assert (await api.acme.get(path)).status_code == 200, path
            made = await browser.post("/admin/v1/tenants", json={"name": "bakery"})
            assert made.status_code == 201, made.text
            assert (await api.acme.post("/tenants/acme/keys", json={})).status_code == 201
