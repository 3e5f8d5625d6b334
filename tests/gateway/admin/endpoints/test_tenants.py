"""Tenants and their quotas through the admin API."""

from __future__ import annotations

import asyncio
import time

import pytest

from gateway.access.directory.schema import records_key
from gateway.protocol.prompts import PromptWrite
from gateway.turns.comments import INDEX_KEY, Comment
from gateway.turns.prompts import new_id
from tests.gateway.admin.conftest import Administer, problem

pytestmark = pytest.mark.anyio


async def test_a_tenant_is_made_shown_changed_and_deleted(administer: Administer) -> None:
    """Each answer has the ETag that the next change needs. Prompts and comments go with it: another one of its name
    must not find them."""
    async with administer() as api:
        prompts, comments = api.served.gateway.prompts, api.served.gateway.comments
        await prompts.create("shop", new_id(), PromptWrite("a", "b"))
        await comments.write("shop", Comment("resp_1", time.time_ns() // 1_000_000, "up", None, "a"))
        made = await api.operator.post("/tenants", json={"name": "shop", "weight": 2})
        assert made.status_code == 201
        assert made.headers["location"] == "/admin/v1/tenants/shop"
        shown = await api.operator.get("/tenants/shop")
        assert shown.json() == made.json()
        assert (shown.json()["name"], shown.json()["weight"], shown.json()["read_only"]) == ("shop", 2.0, False)
        assert shown.headers["etag"] == made.headers["etag"]
        tag = {"if-match": made.headers["etag"]}
        changed = await api.operator.patch("/tenants/shop", json={"description": "a shop"}, headers=tag)
        assert changed.status_code == 200
        assert (changed.json()["description"], changed.json()["weight"]) == ("a shop", 2.0)
        assert changed.headers["etag"] != made.headers["etag"]
        tag = {"if-match": changed.headers["etag"]}
        assert (await api.operator.delete("/tenants/shop", headers=tag)).status_code == 204
        problem(await api.operator.get("/tenants/shop"), 404, "not_found")
        assert await prompts.all_of("shop") == await comments.of_tenant("shop") == []
        assert not await api.served.gateway.redis.exists(INDEX_KEY.format(tenant="shop"))


async def test_deleting_a_tenant_can_be_repeated_where_it_fails_half_way(
    administer: Administer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until nothing is left of it. While it has keys, it and its texts stay."""

    async def away(*_: object) -> None:
        raise ConnectionError

    async with administer() as api:
        gateway = api.served.gateway
        await api.operator.post("/tenants", json={"name": "shop"})
        key = (await api.operator.post("/tenants/shop/keys", json={})).json()["record"]["id"]
        await gateway.prompts.create("shop", new_id(), PromptWrite("a", "b"))
        await gateway.comments.write("shop", Comment("resp_1", time.time_ns() // 1_000_000, "up", None, "a"))
        any_state = {"if-match": "*"}
        problem(await api.operator.delete("/tenants/shop", headers=any_state), 409, "not_empty")
        assert len(await gateway.prompts.all_of("shop")) == len(await gateway.comments.of_tenant("shop")) == 1
        await api.operator.delete(f"/tenants/shop/keys/{key}", headers=any_state)
        with monkeypatch.context() as patched:
            patched.setattr(gateway.redis, "unlink", away)
            problem(await api.operator.delete("/tenants/shop", headers=any_state), 503, "unavailable")
        problem(await api.operator.get("/tenants/shop"), 404, "not_found")
        assert await gateway.prompts.all_of("shop") != []
        assert (await api.operator.delete("/tenants/shop", headers=any_state)).status_code == 204
        assert await gateway.prompts.all_of("shop") == await gateway.comments.of_tenant("shop") == []
        problem(await api.operator.delete("/tenants/shop", headers=any_state), 404, "not_found")
        # One that is there, and cannot be read, keeps its texts.
        await gateway.redis.hset(records_key("tenant"), "shop", "by hand")  # type: ignore[misc]
        await gateway.prompts.create("shop", new_id(), PromptWrite("a", "b"))
        problem(await api.operator.delete("/tenants/shop", headers=any_state), 404, "not_found")
        assert len(await gateway.prompts.all_of("shop")) == 1


async def test_a_change_needs_the_state_that_it_is_meant_for(administer: Administer) -> None:
    """428 without If-Match, 412 for another state, 400 for what is no ETag; nothing is changed."""
    async with administer() as api:
        tag = (await api.operator.post("/tenants", json={"name": "shop"})).headers["etag"]
        for headers, status, code in (
            ({}, 428, "precondition_required"),
            ({"if-match": '"0"'}, 412, "revision_mismatch"),
            ({"if-match": f"W/{tag}"}, 412, "revision_mismatch"),
            ({"if-match": "17"}, 400, "invalid_value"),
        ):
            refused = await api.operator.patch("/tenants/shop", json={"weight": 3}, headers=headers)
            problem(refused, status, code)
            problem(await api.operator.delete("/tenants/shop", headers=headers), status, code)
        assert (await api.operator.get("/tenants/shop")).headers["etag"] == tag
        for accepted in (f'"0", {tag}', "*"):
            changed = await api.operator.patch("/tenants/shop", json={}, headers={"if-match": accepted})
            assert changed.status_code == 200


async def test_of_two_changes_to_the_same_state_one_wins(administer: Administer) -> None:
    """The other is told to read it again."""
    async with administer() as api:
        tag = (await api.operator.post("/tenants", json={"name": "shop"})).headers["etag"]
        answers = await asyncio.gather(
            *(
                api.operator.patch("/tenants/shop", json={"weight": weight}, headers={"if-match": tag})
                for weight in range(1, 9)
            )
        )
        statuses = sorted(answer.status_code for answer in answers)
        assert statuses == [200] + [412] * 7
        (won,) = (answer for answer in answers if answer.status_code == 200)
        assert (await api.operator.get("/tenants/shop")).json() == won.json()


async def test_a_request_with_the_same_idempotency_key_is_done_once(administer: Administer) -> None:
    """Also when it is sent many times at once; another request with that key is refused."""
    async with administer() as api:
        headers = {"idempotency-key": "0193b8a0"}
        answers = await asyncio.gather(
            *(api.operator.post("/tenants", json={"name": "shop"}, headers=headers) for _ in range(8))
        )
        assert {answer.status_code for answer in answers} == {201}
        assert len({answer.headers["etag"] for answer in answers}) == 1
        assert sorted(answer.headers.get("idempotent-replayed", "") for answer in answers) == [""] + ["true"] * 7
        again = await api.operator.post("/tenants", json={"name": "shop2"}, headers=headers)
        problem(again, 409, "idempotency_key_reused")
        problem(await api.operator.post("/tenants", json={"name": "shop"}), 409, "already_exists")


async def test_lists_come_in_pages(administer: Administer) -> None:
    """Every tenant once; a cursor of something else is refused."""
    async with administer() as api:
        names = [f"shop-{index:02}" for index in range(7)]
        for name in names:
            await api.operator.post("/tenants", json={"name": name})
        found, cursor = [], None
        while True:
            query = {"limit": 3, **({"cursor": cursor} if cursor else {})}
            page = (await api.operator.get("/tenants", params=query)).json()
            found += [tenant["name"] for tenant in page["data"]]
            if (cursor := page["next"]) is None:
                break
            assert len(page["data"]) == 3
        assert found == sorted([*names, "acme", "demo", "operations", "other"])
        for wrong in ("x", "bm9uZQ", "WyJrZXk6IiwiYSJd"):
            problem(await api.operator.get("/tenants", params={"cursor": wrong}), 400, "invalid_value")
        for limit in (0, 201, "many"):
            problem(await api.operator.get("/tenants", params={"limit": limit}), 400, "invalid_value")


async def test_tenants_of_the_configuration_are_read_only(administer: Administer) -> None:
    """They are shown, and the refusal says where to change them."""
    async with administer() as api:
        shown = await api.operator.get("/tenants/acme")
        assert shown.json()["read_only"] is True
        tag = {"if-match": shown.headers["etag"]}
        refused = await api.operator.patch("/tenants/acme", json={"weight": 5}, headers=tag)
        assert "configuration file" in problem(refused, 409, "read_only")["detail"]


async def test_quotas_are_set_as_a_whole(administer: Administer) -> None:
    """They share the tenant's ETag."""
    async with administer() as api:
        tag = (await api.operator.post("/tenants", json={"name": "shop"})).headers["etag"]
        quotas = {
            "quota": {"requests_per_minute": 60},
            "models": {"tiny-small": {"spend_per_day": 5}},
            "adapters": {"shop:pirate": {"concurrent_turns": 2}},
        }
        put = await api.operator.put("/tenants/shop/quotas", json=quotas, headers={"if-match": tag})
        assert put.json() == quotas
        assert (await api.operator.get("/tenants/shop/quotas")).json() == quotas
        tenant = await api.operator.get("/tenants/shop")
        assert tenant.headers["etag"] == put.headers["etag"]
        assert tenant.json()["model_quotas"] == quotas["models"]
        wrong = await api.operator.put(
            "/tenants/shop/quotas", json={"quota": {"requests_per_minute": -1}}, headers={"if-match": "*"}
        )
        assert problem(wrong, 400, "invalid_value")["param"] == "quota.requests_per_minute"
        for unknown in ({"quota": {"images": 1}}, {"models": {"tiny-small": {"images": 1}}}):
            refused = await api.operator.put("/tenants/shop/quotas", json=unknown, headers={"if-match": "*"})
            assert problem(refused, 400, "unknown_parameter")["param"] == "images"
