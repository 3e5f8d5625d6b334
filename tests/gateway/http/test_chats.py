"""`/v1/chats`: whose conversations it tells of, and what a change has to say."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import msgspec
import pytest

from gateway.config.chat import ChatSettings
from gateway.errors import Unavailable
from gateway.protocol.chats import ChatEntry, ChatList, ChatsFound, ChatTree
from gateway.turns import chats as module
from gateway.turns.comments import Comment
from tests.gateway.conftest import KEY, Serve, Served
from tests.gateway.people import key_of
from tests.gateway.pipeline.sources.test_redis_keys import documented

pytestmark = pytest.mark.anyio

SERVER = ChatSettings(history="server")
NEW = {"if-none-match": "*"}
TURN: dict[str, Any] = {
    "id": "t1",
    "parent": None,
    "question": "why?",
    "text": "because",
    "response_id": None,
    "data": {"model": "auto"},
}
CHAT: dict[str, Any] = {"title": "A title", "updated_ms": 5, "turns": [TURN], "leaf": "t1", "settings": {"seed": 1}}


def code(response: httpx2.Response) -> tuple[int, str]:
    return response.status_code, response.json()["error"]["code"]


def etag(response: httpx2.Response) -> dict[str, str]:
    assert response.status_code == 200, response.text
    return {"if-match": response.headers["etag"]}


@contextlib.asynccontextmanager
async def people(served: Served, *users: str, tenant: str = "demo") -> AsyncIterator[list[httpx2.AsyncClient]]:
    """Clients with a key of each of these users."""
    async with contextlib.AsyncExitStack() as stack:
        clients = []
        for user in users:
            headers = {"authorization": f"Bearer {await key_of(served.gateway, user, tenant=tenant)}"}
            client = httpx2.AsyncClient(base_url=served.base_url, headers=headers, timeout=20)
            clients.append(await stack.enter_async_context(client))
        yield clients


async def test_a_conversation_is_made_read_changed_and_deleted(serve: Serve) -> None:
    """On whichever gateway; its responses, and comments on them, are deleted with it."""
    async with serve(chat=SERVER) as served, serve(chat=SERVER) as other, people(served, "ann") as [ann]:
        response = await ann.post("/responses", json={"model": "small", "input": "hello", "max_output_tokens": 2})
        turn = {**TURN, "response_id": response.json()["id"]}
        made = await ann.post("/chats/c1", json={**CHAT, "turns": [turn]}, headers=NEW)
        entry = msgspec.json.decode(made.content, type=ChatEntry)
        elsewhere = f"{other.base_url}/chats/c1"
        found = await ann.get(elsewhere)
        assert etag(found) == etag(made) == {"if-match": f'"{entry.revision}"'}
        chat = msgspec.json.decode(found.content, type=ChatTree)
        assert msgspec.to_builtins(chat.turns) == [turn]
        assert (chat.title, chat.leaf, chat.settings, chat.revision) == ("A title", "t1", {"seed": 1}, entry.revision)
        second = {**TURN, "id": "t2", "parent": "t1"}
        body = {**CHAT, "title": "Another", "pinned": True, "folder": "Work", "turns": [second], "leaf": "t2"}
        changed = await ann.post(elsewhere, json=body, headers=etag(made))
        listed = msgspec.json.decode((await ann.get("/chats")).content, type=ChatList)
        assert listed.data == [msgspec.json.decode(changed.content, type=ChatEntry)]
        assert (listed.data[0].title, listed.data[0].pinned, listed.data[0].folder) == ("Another", True, "Work")
        assert [each["id"] for each in (await ann.get("/chats/c1")).json()["turns"]] == ["t1", "t2"]
        comments = served.gateway.comments
        await comments.write("demo", Comment(turn["response_id"], time.time_ns() // 1_000_000, "up", None, "a"))
        gone = await ann.delete("/chats/c1")
        assert gone.json() == {"id": "c1", "object": "chat.deleted", "deleted": True}
        assert code(await ann.get(elsewhere)) == (404, "chat_not_found")
        assert code(await ann.get(f"/responses/{turn['response_id']}")) == (404, "response_not_found")
        assert await comments.of_tenant("demo") == []


async def test_a_conversation_stays_until_its_responses_are_deleted(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that deleting it can be repeated."""
    async with serve(chat=SERVER) as served, people(served, "ann") as [ann]:
        response = await ann.post("/responses", json={"model": "small", "input": "hello", "max_output_tokens": 2})
        turn = {**TURN, "response_id": response.json()["id"]}
        await ann.post("/chats/c1", json={**CHAT, "turns": [turn]}, headers=NEW)

        async def unreachable(*_: object) -> None:
            raise Unavailable("its gateway does not answer")

        with monkeypatch.context() as patch:
            patch.setattr(served.gateway.turns, "delete", unreachable)
            assert (await ann.delete("/chats/c1")).status_code == 503
        assert (await ann.delete("/chats/c1")).status_code == 200
        assert code(await ann.get(f"/responses/{turn['response_id']}")) == (404, "response_not_found")
        assert code(await ann.delete("/chats/c1")) == (404, "chat_not_found")


async def test_a_conversation_that_cannot_be_read_can_be_deleted(serve: Serve) -> None:
    """With those of its responses that can be read."""
    async with serve(chat=SERVER) as served, people(served, "ann") as [ann]:
        response = await ann.post("/responses", json={"model": "small", "input": "hello", "max_output_tokens": 2})
        id = response.json()["id"]
        turns = [{**TURN, "response_id": id}, {**TURN, "id": "t2"}]
        await ann.post("/chats/c1", json={**CHAT, "turns": turns}, headers=NEW)
        redis = served.gateway.redis
        [key] = await redis.keys("rh1:chat:*")
        fields = await redis.hgetall(key)
        (second,) = (field for field, value in fields.items() if value.startswith(b"%010d" % 4))
        await redis.hset(key, mapping={name: b"0" * 20 + b"broken" for name in (b"entry", b"head", second)})
        assert code(await ann.get("/chats/c1")) == (404, "chat_not_found")
        assert (await ann.delete("/chats/c1")).status_code == 200
        assert code(await ann.get(f"/responses/{id}")) == (404, "response_not_found")
        assert await redis.keys("rh1:chat:*") == [] and code(await ann.delete("/chats/c1")) == (404, "chat_not_found")


async def test_a_change_says_what_it_is_meant_for(serve: Serve) -> None:
    async with serve(chat=SERVER) as served, people(served, "ann") as [ann]:
        assert code(await ann.post("/chats/c1", json=CHAT)) == (428, "precondition_required")
        assert code(await ann.post("/chats/c1", json=CHAT, headers={"if-match": '"1"'})) == (404, "chat_not_found")
        made = await ann.post("/chats/c1", json=CHAT, headers=NEW)
        assert code(await ann.post("/chats/c1", json=CHAT, headers=NEW)) == (412, "revision_mismatch")
        changed = await ann.post("/chats/c1", json=CHAT, headers=etag(made))
        assert code(await ann.post("/chats/c1", json=CHAT, headers=etag(made))) == (412, "revision_mismatch")
        assert etag(changed) != etag(made)
        assert code(await ann.post("/chats/a.b", json=CHAT, headers=NEW)) == (400, "invalid_value")
        assert code(await ann.post("/chats/c2", json={**CHAT, "x": 1}, headers=NEW)) == (400, "unknown_parameter")


async def test_pages_follow_one_another(serve: Serve) -> None:
    async with serve(chat=SERVER) as served, people(served, "ann") as [ann]:
        for number in range(5):
            await ann.post(f"/chats/c{number}", json={**CHAT, "updated_ms": number}, headers=NEW)
        found, more, after = [], True, ""
        while more:
            page = msgspec.json.decode((await ann.get(f"/chats?limit=2{after}")).content, type=ChatList)
            found += [entry.id for entry in page.data]
            more, after = page.has_more, f"&after={found[-1]}"
        assert found == ["c4", "c3", "c2", "c1", "c0"]
        assert code(await ann.get("/chats?after=nothing")) == (400, "invalid_value")


async def test_search_opens_ones_own(serve: Serve) -> None:
    async with serve(chat=SERVER) as served, people(served, "ann", "bob") as [ann, bob]:
        await ann.post("/chats/c1", json=CHAT, headers=NEW)
        for client, words, expected in ((ann, "BECAUSE title", ["c1"]), (ann, "nothing", []), (bob, "because", [])):
            answer = await client.post("/chats/search", json={"query": words})
            found = msgspec.json.decode(answer.content, type=ChatsFound)
            assert ([entry.id for entry in found.data], found.complete) == (expected, True)


async def test_another_user_finds_nothing(serve: Serve) -> None:
    """Of the same tenant or of another one; an id belongs to whoever uses it."""
    async with (
        serve(chat=SERVER) as served,
        people(served, "ann", "bob") as [ann, bob],
        people(served, "eve", tenant="elsewhere") as [eve],
    ):
        made = await ann.post("/chats/c1", json=CHAT, headers=NEW)
        for other in (bob, eve):
            assert code(await other.get("/chats/c1")) == (404, "chat_not_found")
            assert code(await other.delete("/chats/c1")) == (404, "chat_not_found")
            assert code(await other.post("/chats/c1", json=CHAT, headers=etag(made))) == (404, "chat_not_found")
            assert (await other.get("/chats")).json()["data"] == []
            assert (await other.post("/chats/c1", json={**CHAT, "title": "mine"}, headers=NEW)).status_code == 200
        assert (await ann.get("/chats/c1")).json()["title"] == "A title"


async def test_nobody_else_is_let_in(serve: Serve) -> None:
    """A key without a user, and users of a tenant that does not keep conversations on the server."""
    tenants = {"kept": "server", "gone": "off"}
    async with (
        serve(chat=ChatSettings(tenants=tenants)) as served,
        people(served, "ann") as [ann],
        people(served, "kay", tenant="kept") as [kay],
        people(served, "gil", tenant="gone") as [gil],
        httpx2.AsyncClient(base_url=served.base_url, headers={"authorization": f"Bearer {KEY}"}) as bare,
    ):
        assert (await kay.get("/chats")).status_code == 200
        for client, expected in ((ann, "chats_not_kept"), (gil, "chats_not_kept"), (bare, "user_required")):
            for response in (
                await client.get("/chats"),
                await client.get("/chats/c1"),
                await client.post("/chats/c1", json=CHAT, headers=NEW),
                await client.delete("/chats/c1"),
                await client.post("/chats/search", json={"query": "a"}),
            ):
                assert code(response) == (403, expected)
        address = f"{served.url}/ui/config.json"
        told = [(await client.get(address)).json()["history"] for client in (kay, gil, ann, bare)]
        assert told == ["server", "off", "browser", "browser"]


async def test_requests_are_counted(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_PER_MINUTE", 2)
    async with serve(chat=SERVER) as served, people(served, "ann", "bob") as [ann, bob]:
        statuses = [(await ann.get("/chats")).status_code for _ in range(3)]
        refused = await ann.get("/chats")
        assert statuses == [200, 200, 429]
        assert 0 < int(refused.headers["retry-after"]) <= 60
        assert (await bob.get("/chats")).status_code == 200


async def test_every_key_is_documented_and_ends_by_itself(serve: Serve) -> None:
    async with serve(chat=SERVER) as served, people(served, "ann") as [ann]:
        await ann.post("/chats/c1", json=CHAT, headers=NEW)
        redis, rows = served.gateway.redis, documented()
        keys = [key.decode() for key in await redis.keys("rh1:chat*")]
        assert len(keys) == 3
        for key in keys:
            kinds = [kind for pattern, kind, _ in rows if pattern.fullmatch(key)]
            assert kinds == [(await redis.type(key)).decode()]
            assert await redis.pttl(key) > 0
