"""API keys through the admin API."""

from __future__ import annotations

import time

import pytest

from gateway.access.identity.last_used import LastUsed
from gateway.config.identity import IdentitySettings, IssuerSettings
from gateway.records.api_keys import well_formed
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


async def test_only_operators_touch_operators_keys(administer: Administer) -> None:
    """Whatever an admin of the tenant sends: what counts is what the key is, not what the request says of it."""
    async with administer() as api:
        made = await api.operator.post("/tenants/acme/keys", json={"operator": True, "scopes": ["admin:write"]})
        path = f"/tenants/acme/keys/{made.json()['record']['id']}"
        headers = {"if-match": made.headers["etag"]}
        for change in (
            {"disabled": True},
            {"operator": False},
            {"scopes": ["chat"]},
            {"expires_at": 2_000_000_000},
            {},
        ):
            problem(await api.acme.patch(path, json=change, headers=headers), 403, "forbidden")
        problem(await api.acme.delete(path, headers=headers), 403, "forbidden")
        problem(await api.acme.post(f"{path}/rotate", json={}), 403, "forbidden")
        assert (await api.acme.get(path)).headers["etag"] == made.headers["etag"]
        changed = await api.operator.patch(path, json={"disabled": True}, headers=headers)
        assert changed.json()["disabled"] is True
        headers = {"if-match": changed.headers["etag"]}
        assert (await api.operator.delete(path, headers=headers)).status_code == 204


async def test_only_operators_touch_users_with_operators_keys(administer: Administer) -> None:
    """A disabled user takes the key along."""
    async with administer() as api:
        user = await api.acme.post("/tenants/acme/users", json={"subject": "ada"})
        path, id = f"/tenants/acme/users/{user.json()['id']}", user.json()["id"]
        tag = {"if-match": user.headers["etag"]}
        changed = await api.acme.patch(path, json={"description": "Ada"}, headers=tag)
        tag = {"if-match": changed.headers["etag"]}
        await api.operator.post("/tenants/acme/keys", json={"operator": True, "user": id})
        for change in ({"disabled": True}, {"scopes": []}):
            problem(await api.acme.patch(path, json=change, headers=tag), 403, "forbidden")
        problem(await api.acme.delete(path, headers=tag), 403, "forbidden")
        assert (await api.operator.patch(path, json={"disabled": True}, headers=tag)).json()["disabled"] is True


async def test_only_operators_touch_users_whom_an_identity_provider_makes_operators(administer: Administer) -> None:
    """A record with such a `subject`, disabled or bounded, would take an operator's access away."""
    issuers = [
        IssuerSettings(name="corp", issuer="https://corp.example", audience=["a"], tenant="acme", operators=["ann"]),
        IssuerSettings(name="ops", issuer="https://ops.example", audience=["a"], tenant="other", operators=["bob"]),
    ]
    async with administer(identity=IdentitySettings(issuers=issuers)) as api:
        users = "/tenants/acme/users"
        problem(await api.acme.post(users, json={"subject": "ann", "disabled": True}), 403, "forbidden")
        # Whom other tenants' providers make operators is no operator here.
        own = await api.acme.post(users, json={"subject": "bob"})
        assert own.status_code == 201
        path = f"{users}/{own.json()['id']}"
        problem(
            await api.acme.patch(path, json={"subject": "ann"}, headers={"if-match": own.headers["etag"]}),
            403,
            "forbidden",
        )
        made = await api.operator.post(users, json={"subject": "ann"})
        path, tag = f"{users}/{made.json()['id']}", {"if-match": made.headers["etag"]}
        for change in ({"disabled": True}, {"scopes": []}, {"subject": "carl"}):
            problem(await api.acme.patch(path, json=change, headers=tag), 403, "forbidden")
        problem(await api.acme.delete(path, headers=tag), 403, "forbidden")
        assert (await api.operator.delete(path, headers=tag)).status_code == 204


async def test_a_rotated_key_goes_on_with_the_limits_of_the_first(administer: Administer) -> None:
    """A rotation is no way to a fresh budget, nor to two of them while both keys work."""
    async with administer() as api:
        wanted = {"quota": {"requests_per_minute": 2}}
        first = (await api.acme.post("/tenants/acme/keys", json=wanted)).json()
        second = await api.acme.post(f"/tenants/acme/keys/{first['record']['id']}/rotate", json={})
        third = await api.acme.post(f"/tenants/acme/keys/{second.json()['record']['id']}/rotate", json={})
        assert third.json()["record"]["counts_as"] == first["record"]["id"]
        turn = {"model": "auto", "input": "x", "max_output_tokens": 1}
        answers = []
        for key in (first["key"], second.json()["key"], third.json()["key"], first["key"]):
            headers = {"authorization": f"Bearer {key}"}
            async with api.client(None) as client:
                answer = await client.post(f"{api.served.url}/v1/responses", json=turn, headers=headers)
                answers.append(answer.status_code)
        assert answers == [200, 200, 429, 429]


async def test_the_last_use_of_keys_is_shown(administer: Administer) -> None:
    """In lists and alone; null of one that was never used."""
    async with administer() as api:
        used = (await api.acme.post("/tenants/acme/keys", json={})).json()
        unused = (await api.acme.post("/tenants/acme/keys", json={})).json()["record"]
        assert unused["last_used_at"] is None
        at = int(time.time()) - 60
        noted = LastUsed(api.served.gateway.redis, clock=lambda: at)
        noted.touch("acme", used["record"]["id"])
        await noted.flush()
        path = f"/tenants/acme/keys/{used['record']['id']}"
        assert (await api.acme.get(path)).json()["last_used_at"] == at
        listed = {one["id"]: one["last_used_at"] for one in (await api.acme.get("/tenants/acme/keys")).json()["data"]}
        assert (listed[used["record"]["id"]], listed[unused["id"]]) == (at, None)
        changed = await api.acme.patch(path, json={"description": "ci"}, headers={"if-match": "*"})
        assert changed.json()["last_used_at"] == at


async def test_a_rotation_says_when_the_new_key_expires(administer: Administer) -> None:
    """It may be given a time as any new key."""
    async with administer() as api:
        old = (await api.acme.post("/tenants/acme/keys", json={})).json()["record"]
        ends = int(time.time()) + 3600
        new = await api.acme.post(f"/tenants/acme/keys/{old['id']}/rotate", json={"expires_at": ends})
        assert new.json()["record"]["expires_at"] == ends


async def test_when_a_key_expires_is_a_time_and_no_duration(administer: Administer) -> None:
    """A number of seconds would make a key that has expired; one that there is can be ended so."""
    async with administer() as api:
        hour = {"expires_at": 3600}
        made = await api.acme.post("/tenants/acme/keys", json={})
        path = f"/tenants/acme/keys/{made.json()['record']['id']}"
        for place in ("/tenants/acme/keys", f"{path}/rotate"):
            refused = problem(await api.acme.post(place, json=hour), 400, "invalid_value")
            assert refused["param"] == "expires_at"
            assert "1700000000" in refused["detail"]
        assert (await api.acme.patch(path, json=hour, headers={"if-match": "*"})).status_code == 200
