"""`/v1/prompts`: who writes what a tenant shares, who reads it, and what a change has to say."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections.abc import AsyncIterator, Sequence
from functools import partial
from typing import Any

import httpx2
import msgspec
import pytest

from gateway.access.identity import Principal, Scope
from gateway.access.identity.principal import SCOPES
from gateway.errors import Unavailable
from gateway.protocol.prompts import PromptList, PromptObject
from gateway.turns import prompts as module
from gateway.turns.prompts import KEY as PROMPTS_KEY
from gateway.turns.prompts import new_id
from tests.gateway.conftest import Serve, Served
from tests.gateway.http.test_chats import code, etag, people
from tests.gateway.people import key_of
from tests.gateway.pipeline.sources.test_redis_keys import documented

pytestmark = pytest.mark.anyio

SECRET = "canary7f3a"
BODY = {"name": f"About {SECRET}", "text": f"Tell {{{{who}}}} about {SECRET}."}


@contextlib.asynccontextmanager
async def admin(
    served: Served, user: str = "adam", tenant: str = "demo", scopes: Sequence[Scope] = ("chat", "admin:write")
) -> AsyncIterator[httpx2.AsyncClient]:
    """A client that may change what its tenant shares."""
    headers = {"authorization": f"Bearer {await key_of(served.gateway, user, tenant=tenant, scopes=scopes)}"}
    async with httpx2.AsyncClient(base_url=served.base_url, headers=headers, timeout=20) as client:
        yield client


async def shared(client: httpx2.AsyncClient, **fields: str) -> PromptObject:
    response = await client.post("/prompts", json=BODY | fields)
    assert response.status_code == 201, response.text
    return msgspec.json.decode(response.content, type=PromptObject)


async def listed(client: httpx2.AsyncClient) -> PromptList:
    return msgspec.json.decode((await client.get("/prompts")).content, type=PromptList)


async def audited(served: Served) -> list[tuple[str, str, str, str | None]]:
    """Action, subject, actor and tenant of each change of a prompt."""
    logged = [json.loads(bytes(each.entry)) for each in await served.gateway.directory.audit.read(0, 1000)]
    return [
        (each["action"], each["subject"], each["actor"], each.get("tenant"))
        for each in logged
        if each["action"].startswith("prompt.")
    ]


async def test_what_an_admin_writes_everybody_of_the_tenant_reads(serve: Serve) -> None:
    """On whichever gateway, and each change is in the audit log."""
    async with (
        serve() as served,
        serve() as other,
        admin(served) as adam,
        people(served, "ann") as [ann],
        people(served, "eve", tenant="elsewhere") as [eve],
    ):
        prompt = await shared(adam)
        second = await shared(adam, name="a first one")
        assert await listed(ann) == PromptList([second, prompt], may_change=False)
        assert (await listed(adam)).may_change
        elsewhere = f"{other.base_url}/prompts/{prompt.id}"
        found = await ann.get(elsewhere)
        assert msgspec.json.decode(found.content, type=PromptObject) == prompt
        changed = await adam.post(elsewhere, json=BODY | {"text": "Be brief."}, headers=etag(found))
        assert (changed.json()["text"], changed.json()["revision"] > prompt.revision) == ("Be brief.", True)
        assert etag(await ann.get(f"/prompts/{prompt.id}")) == etag(changed)
        assert (await listed(eve)).data == []
        assert code(await eve.get(f"/prompts/{prompt.id}")) == (404, "prompt_not_found")
        gone = await adam.delete(f"/prompts/{prompt.id}", headers=etag(changed))
        assert gone.json() == {"id": prompt.id, "object": "prompt.deleted", "deleted": True}
        assert code(await ann.get(elsewhere)) == (404, "prompt_not_found")
        assert (await listed(ann)).data == [second]
        who = ("demo/user:adam", "demo")
        assert await audited(served) == [
            ("prompt.create", prompt.id, *who),
            ("prompt.create", second.id, *who),
            ("prompt.update", prompt.id, *who),
            ("prompt.delete", prompt.id, *who),
        ]


async def test_only_admins_write_and_only_of_their_tenant(serve: Serve) -> None:
    async with (
        serve() as served,
        admin(served) as adam,
        admin(served, "eve", tenant="elsewhere") as eve,
        admin(served, "ann", scopes=["chat", "admin:read"]) as ann,
        admin(served, "bob", scopes=["admin:write"]) as bob,
    ):
        prompt = await shared(adam)
        path, match = f"/prompts/{prompt.id}", {"if-match": f'"{prompt.revision}"'}
        for client, refusal in ((ann, (403, "insufficient_scope")), (eve, (404, "prompt_not_found"))):
            assert code(await client.post(path, json=BODY, headers=match)) == refusal
            assert code(await client.delete(path, headers=match)) == refusal
        assert code(await ann.post("/prompts", json=BODY)) == (403, "insufficient_scope")
        assert code(await bob.get("/prompts")) == (403, "insufficient_scope")
        assert (await bob.post(path, json=BODY, headers=match)).status_code == 200
        assert [each.id for each in (await listed(adam)).data] == [prompt.id]


async def test_an_operator_who_acts_for_no_tenant_has_no_prompts(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    async def operator(connection: Any) -> Principal:
        return Principal("", "link:operator", scopes=SCOPES, operator=True)

    async with serve() as served, admin(served) as adam:
        monkeypatch.setattr(served.gateway.identity, "authenticate", operator)
        assert code(await adam.post("/prompts", json=BODY)) == (403, "forbidden")
        assert code(await adam.get("/prompts")) == (403, "forbidden")


async def test_a_change_says_what_it_has_read(serve: Serve) -> None:
    async with serve() as served, admin(served) as adam:
        prompt = await shared(adam)
        path = f"/prompts/{prompt.id}"
        unknown = f"/prompts/{new_id()}"
        match = {"if-match": f'"{prompt.revision}"'}
        for change in (partial(adam.post, json=BODY), adam.delete):
            assert code(await change(path)) == (428, "precondition_required")
            assert code(await change(path, headers={"if-match": '"1"'})) == (412, "revision_mismatch")
            assert code(await change(unknown, headers=match)) == (404, "prompt_not_found")
        assert (await adam.get(path)).json()["revision"] == prompt.revision
        # What was tried and failed is told of as that; what is unknown was not tried.
        tried = [action for action, *_ in await audited(served)][1:]
        assert tried == ["prompt.update", "prompt.update.failed", "prompt.delete", "prompt.delete.failed"]


async def test_of_a_change_and_a_deletion_at_once_one_wins(serve: Serve) -> None:
    """Whoever deletes has seen what goes."""
    async with serve() as served, admin(served) as adam:
        prompt = await shared(adam)
        path, match = f"/prompts/{prompt.id}", {"if-match": f'"{prompt.revision}"'}
        changed, gone = await asyncio.gather(
            adam.post(path, json=BODY, headers=match), adam.delete(path, headers=match)
        )
        assert (changed.status_code == 200) != (gone.status_code == 200)
        assert len((await listed(adam)).data) == (changed.status_code == 200)


async def test_there_are_bounds(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of each prompt, and of all of a tenant; a deleted one makes room."""
    monkeypatch.setattr(module, "MAX_PROMPTS", 1)
    async with serve() as served, admin(served) as adam, admin(served, "eve", tenant="elsewhere") as eve:
        largest = {"name": "n" * 100, "text": "\U0001f642" * 10_000}
        prompt = await shared(adam, **largest)
        for field, text in largest.items():
            for wrong in ("", text + "x"):
                answer = await adam.post("/prompts", json=BODY | {field: wrong})
                assert (code(answer), answer.json()["error"]["param"]) == ((400, "invalid_value"), field)
        assert code(await adam.post("/prompts", json=BODY)) == (409, "too_many_prompts")
        await shared(eve)
        match = {"if-match": f'"{prompt.revision}"'}
        changed = await adam.post(f"/prompts/{prompt.id}", json=BODY, headers=match)
        assert (await adam.delete(f"/prompts/{prompt.id}", headers=etag(changed))).status_code == 200
        await shared(adam)


async def test_what_is_unreadable_is_left_out_and_can_be_deleted(serve: Serve) -> None:
    """A prompt that somebody has put in another's place, or into another tenant, is unreadable there. A refusal tells
    its revision, which nobody could read."""
    async with serve() as served, admin(served) as adam, admin(served, "eve", tenant="elsewhere") as eve:
        prompt, redis = await shared(adam), served.gateway.redis
        key = PROMPTS_KEY.format(tenant="demo")
        value = await redis.hget(key, prompt.id)  # type: ignore[misc]
        await redis.hset(PROMPTS_KEY.format(tenant="elsewhere"), prompt.id, value)  # type: ignore[misc]
        await redis.hset(key, "prompt_2", value)  # type: ignore[misc]
        await redis.hset(key, "prompt_3", "by hand")  # type: ignore[misc]
        assert (await listed(eve)).data == []
        assert (await listed(adam)).data == [prompt]
        for other in ("prompt_2", "prompt_3"):
            assert code(await adam.get(f"/prompts/{other}")) == (404, "prompt_not_found")
            refused = await adam.delete(f"/prompts/{other}", headers={"if-match": '"1"'})
            told = re.search(r'its ETag is ("\d+")', refused.json()["error"]["message"])
            assert code(refused) == (412, "revision_mismatch") and told is not None
            assert (await adam.delete(f"/prompts/{other}", headers={"if-match": told[1]})).status_code == 200
        assert await redis.hlen(key) == 1  # type: ignore[misc]


async def test_nothing_is_changed_that_cannot_be_written_into_the_audit_log(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def away(*_: object, **__: object) -> None:
        raise Unavailable("the directory cannot be reached")

    async with serve() as served, admin(served) as adam:
        prompt = await shared(adam)
        monkeypatch.setattr(served.gateway.directory, "apply", away)
        match = {"if-match": f'"{prompt.revision}"'}
        assert code(await adam.delete(f"/prompts/{prompt.id}", headers=match)) == (503, "unavailable")
        assert code(await adam.post("/prompts", json=BODY)) == (503, "unavailable")
        assert (await listed(adam)).data == [prompt]


async def test_the_key_is_documented_and_has_no_end(serve: Serve) -> None:
    async with serve() as served, admin(served) as adam:
        await shared(adam)
        redis = served.gateway.redis
        [key] = [key.decode() for key in await redis.keys("rh1:prompts:*")]
        kinds = [kind for pattern, kind, _ in documented() if pattern.fullmatch(key)]
        assert kinds == [(await redis.type(key)).decode()]
        assert await redis.pttl(key) == -1
        assert SECRET.encode() not in await redis.dump(key)
