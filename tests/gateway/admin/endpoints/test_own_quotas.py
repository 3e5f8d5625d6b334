"""Limits that a tenant's own admins set, through the admin API."""

from __future__ import annotations

import asyncio

import pytest

from tests.gateway.admin.conftest import Administer, problem

pytestmark = pytest.mark.anyio


async def test_an_admin_limits_a_user_of_its_tenant(administer: Administer) -> None:
    """Who then has no request left; others of the tenant have. What operators set stays."""
    async with administer() as api:
        await api.operator.post("/tenants", json={"name": "shop", "adapter_quotas": {"law": {"concurrent_turns": 1}}})
        user = (await api.operator.post("/tenants/shop/users", json={"subject": "ada"})).json()["id"]
        key = {"scopes": ["chat"], "user": user}
        made = [await api.operator.post("/tenants/shop/keys", json=each) for each in (key, {"scopes": ["chat"]})]
        adas, others = (each.json()["key"] for each in made)
        admin = await api.operator.post("/tenants/shop/keys", json={"scopes": ["admin:read", "admin:write"]})
        own = {"users": {user: {"requests_per_minute": 1}}, "adapters": {"law": {"concurrent_turns": 9}}}
        path = "/tenants/shop/quotas/own"
        async with api.client(admin.json()["key"]) as shop:
            shown = await shop.get(path)
            assert shown.json() == {"users": {}, "adapters": {}}
            put = await shop.put(path, json=own, headers={"if-match": shown.headers["etag"]})
            assert put.json() == (await shop.get(path)).json() == own
            problem(
                await shop.put(path, json={}, headers={"if-match": shown.headers["etag"]}), 412, "revision_mismatch"
            )
            problem(await shop.put("/tenants/shop/quotas", json={}, headers={"if-match": "*"}), 403, "forbidden")
            assert (await shop.get("/me")).json()["may"]["quotas"] == ["read", "write"]
        quotas = (await api.operator.get("/tenants/shop/quotas")).json()
        assert quotas["adapters"] == {"law": {"concurrent_turns": 1}}

        async def ask(key: str) -> int:
            async with api.client(key) as client:
                body = {"model": "small", "input": "hello", "max_output_tokens": 1}
                return (await client.post(f"{api.served.url}/v1/responses", json=body)).status_code

        async with asyncio.timeout(20):
            while await ask(adas) != 429:
                pass
        assert await ask(others) == 200
        limits = (await api.operator.get("/tenants/shop/limits")).json()["data"]
        [ada] = [each for each in limits if each["subject"] == f"user:{user}"]
        assert (ada["limit"], ada["left"]) == ("requests_per_minute", 0)
        problem(await api.other.get(path), 404, "not_found")
