"""API keys through the admin API."""

from __future__ import annotations

import time

import pytest

from gateway.identity.keys import well_formed
from tests.gateway.admin.conftest import Administer, problem

pytestmark = pytest.mark.anyio


async def test_a_key_is_shown_once(administer: Administer) -> None:
    """In the answer that makes it; neither shown again nor stored anywhere in Redis."""
    async with administer() as api:
        made = await api.acme.post("/tenants/acme/keys", json={"scopes": ["chat"], "description": "ci"})
        assert made.status_code == 201
        text, record = made.json()["key"], made.json()["record"]
        assert well_formed(text)
        assert (record["tenant"], record["scopes"], record["operator"]) == ("acme", ["chat"], False)
        shown = await api.acme.get(f"/tenants/acme/keys/{record['id']}")
        assert shown.json() == record
        assert made.headers["location"] == f"/admin/v1/tenants/acme/keys/{record['id']}"
        assert text not in (await api.acme.get("/tenants/acme/keys")).text
        redis = api.served.gateway.redis
        for key in await redis.keys("*"):
            assert text.encode() not in (await redis.dump(key) or b"")


async def test_a_repeated_request_makes_one_key_and_does_not_show_it_again(administer: Administer) -> None:
    """It says so; the caller can rotate the key."""
    async with administer() as api:
        headers = {"idempotency-key": "a"}
        first = await api.acme.post("/tenants/acme/keys", json={}, headers=headers)
        again = await api.acme.post("/tenants/acme/keys", json={}, headers=headers)
        assert again.status_code == 201
        assert again.headers["idempotent-replayed"] == "true"
        assert again.json() == {"key": None, "record": first.json()["record"]}
        # The same words of another caller are another request.
        other = await api.operator.post("/tenants/acme/keys", json={}, headers=headers)
        assert other.json()["record"]["id"] != first.json()["record"]["id"]


async def test_rotating_leaves_the_old_key_a_while(administer: Administer) -> None:
    """The new one has its scopes, user and quota, and says whom it replaces."""
    async with administer() as api:
        user = (await api.acme.post("/tenants/acme/users", json={"subject": "ada"})).json()
        wanted = {"scopes": ["models"], "user": user["id"], "quota": {"requests_per_minute": 7}}
        old = (await api.acme.post("/tenants/acme/keys", json=wanted)).json()
        path = f"/tenants/acme/keys/{old['record']['id']}"
        before = int(time.time())
        new = await api.acme.post(f"{path}/rotate", json={"overlap_seconds": 60})
        assert new.status_code == 201
        assert new.json()["key"] != old["key"]
        record = new.json()["record"]
        assert {name: record[name] for name in wanted} == wanted
        assert record["replaces"] == old["record"]["id"]
        assert record["expires_at"] is None
        ends = (await api.acme.get(path)).json()["expires_at"]
        assert before + 60 <= ends <= int(time.time()) + 60
        # Rotated again, it does not live longer than was said first.
        await api.acme.post(f"{path}/rotate", json={"overlap_seconds": 3600})
        assert (await api.acme.get(path)).json()["expires_at"] == ends


async def test_a_revoked_key_is_gone(administer: Administer) -> None:
    """And its user can be deleted then, not before."""
    async with administer() as api:
        user = await api.acme.post("/tenants/acme/users", json={"subject": "ada"})
        key = await api.acme.post("/tenants/acme/keys", json={"user": user.json()["id"]})
        place = f"/tenants/acme/users/{user.json()['id']}"
        problem(await api.acme.delete(place, headers={"if-match": user.headers["etag"]}), 409, "not_empty")
        path = f"/tenants/acme/keys/{key.json()['record']['id']}"
        assert (await api.acme.delete(path, headers={"if-match": key.headers["etag"]})).status_code == 204
        problem(await api.acme.get(path), 404, "not_found")
        assert (await api.acme.delete(place, headers={"if-match": "*"})).status_code == 204


async def test_only_operators_make_operators(administer: Administer) -> None:
    """An admin of a tenant cannot give its keys more reach than it has, also not by a change or a rotation."""
    async with administer() as api:
        problem(await api.acme.post("/tenants/acme/keys", json={"operator": True}), 403, "forbidden")
        own = await api.acme.post("/tenants/acme/keys", json={"scopes": ["admin:write"]})
        path = f"/tenants/acme/keys/{own.json()['record']['id']}"
        headers = {"if-match": own.headers["etag"]}
        problem(await api.acme.patch(path, json={"operator": True}, headers=headers), 403, "forbidden")
        made = await api.operator.post("/tenants/acme/keys", json={"operator": True})
        theirs = f"/tenants/acme/keys/{made.json()['record']['id']}"
        problem(await api.acme.post(f"{theirs}/rotate", json={}), 403, "forbidden")
