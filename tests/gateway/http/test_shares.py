"""`/v1/shares`: who shares, who reads, and what readers are told afterwards."""

from __future__ import annotations

import asyncio
import base64

import httpx2
import msgspec
import pytest

from gateway.config.chat import ChatSettings
from gateway.protocol.shares import SharedConversation, ShareEntry, ShareList
from gateway.records.directory import Tenant
from gateway.turns import shares as module
from gateway.turns.shares import DATA_KEY, SHARE_KEY
from tests.gateway.conftest import KEY, Serve, Served
from tests.gateway.http.test_chats import code, people
from tests.gateway.pipeline.sources.test_redis_keys import documented

pytestmark = pytest.mark.anyio

SEALED = bytes(range(256))
BODY = {"ciphertext": base64.b64encode(SEALED).decode()}


def client(served: Served, key: str | None = None) -> httpx2.AsyncClient:
    headers = {"authorization": f"Bearer {key}"} if key else {}
    return httpx2.AsyncClient(base_url=served.base_url, headers=headers, timeout=20)


async def shared(owner: httpx2.AsyncClient, **more: int) -> ShareEntry:
    response = await owner.post("/shares", json=BODY | more)
    assert response.status_code == 201, response.text
    return msgspec.json.decode(response.content, type=ShareEntry)


async def test_what_is_shared_is_read_by_others_of_the_tenant(serve: Serve) -> None:
    """As it came, until it is revoked; a key without a user shares too."""
    async with (
        serve() as served,
        people(served, "ann", "bob") as [ann, bob],
        people(served, "eve", tenant="elsewhere") as [eve],
        client(served, KEY) as bare,
        client(served) as nobody,
    ):
        for owner in (ann, bare):
            share = await shared(owner)
            assert (share.bytes, share.expires_at - share.created_at) == (256, 30 * 86_400)
            listed = msgspec.json.decode((await owner.get("/shares")).content, type=ShareList)
            assert listed.data == [share]
            path = f"/shares/{share.id}"
            found = msgspec.json.decode((await bob.get(path)).content, type=SharedConversation)
            assert (found.ciphertext, found.expires_at) == (SEALED, share.expires_at)
            assert code(await eve.get(path)) == code(await bob.get("/shares/nothing")) == (404, "share_not_found")
            assert code(await nobody.get(path)) == code(await nobody.get("/shares/nothing")) == (401, "missing_api_key")
            for other in (bob, eve):
                assert (await other.get("/shares")).json()["data"] == []
                assert code(await other.delete(path)) == (404, "share_not_found")
            assert (await owner.delete(path)).json() == {"id": share.id, "object": "share.deleted", "deleted": True}
            assert code(await bob.get(path)) == (410, "share_revoked")
            assert code(await eve.get(path)) == (404, "share_not_found")
            assert (await owner.get("/shares")).json()["data"] == []
            assert not await served.gateway.redis.exists(DATA_KEY.format(id=share.id))


async def test_what_has_expired_is_gone(serve: Serve) -> None:
    async with serve() as served, client(served, KEY) as owner:
        share = await shared(owner, expires_in=60)
        redis = served.gateway.redis
        assert 0 < await redis.ttl(DATA_KEY.format(id=share.id)) <= 60
        assert await redis.ttl(SHARE_KEY.format(id=share.id)) > 30 * 86_400 - 60
        await redis.pexpire(DATA_KEY.format(id=share.id), 1)
        while (response := await owner.get(f"/shares/{share.id}")).status_code == 200:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
        assert code(response) == (410, "share_expired")
        for seconds in (59, 30 * 86_400 + 1):
            assert code(await owner.post("/shares", json=BODY | {"expires_in": seconds})) == (400, "invalid_value")


async def test_the_operator_says_who_reads(serve: Serve) -> None:
    """Anyone, or nobody; and nobody of a tenant that keeps nothing."""
    async with serve(chat=ChatSettings(sharing="anyone")) as served, client(served, KEY) as owner:
        share = await shared(owner)
        async with client(served) as nobody:
            assert (await nobody.get(f"/shares/{share.id}")).status_code == 200
            assert code(await nobody.get("/shares")) == (401, "missing_api_key")
    for chat in (ChatSettings(sharing="off"), ChatSettings(tenants={"demo": "off"}, sharing="anyone")):
        async with serve(chat=chat) as served, client(served, KEY) as owner:
            assert code(await owner.post("/shares", json=BODY)) == (403, "sharing_off")
            assert (await owner.get(f"{served.url}/ui/config.json")).json()["sharing"] == "off"


async def test_nobody_reads_what_a_disabled_tenant_shares(serve: Serve) -> None:
    """Though anyone may read what others share."""
    async with (
        serve(chat=ChatSettings(sharing="anyone")) as served,
        people(served, "eve", tenant="elsewhere") as [eve],
        client(served) as nobody,
    ):
        share = await shared(eve)
        assert (await nobody.get(f"/shares/{share.id}")).status_code == 200
        await served.gateway.directory.write(Tenant(name="elsewhere", disabled=True), actor="test")
        async with asyncio.timeout(20):
            while (response := await nobody.get(f"/shares/{share.id}")).status_code == 200:
                pass
        assert code(response) == (403, "sharing_off")


async def test_there_are_bounds(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of what one owner shares; revoking makes room."""
    async with serve() as served, people(served, "ann", "bob") as [ann, bob]:
        large = {"ciphertext": base64.b64encode(bytes(512 * 1024 + 1)).decode()}
        assert code(await ann.post("/shares", json=large)) == (400, "invalid_value")
        for bound, most in (("MAX_SHARES", 1), ("MAX_SHARED_BYTES", 300)):
            with monkeypatch.context() as patch:
                patch.setattr(module, bound, most)
                share = await shared(ann)
                assert code(await ann.post("/shares", json=BODY)) == (409, "too_many_shares")
                await shared(bob)
                await ann.delete(f"/shares/{share.id}")
                again = await shared(ann)
            for owner in (ann, bob):
                for each in (await owner.get("/shares")).json()["data"]:
                    await owner.delete(f"/shares/{each['id']}")
            assert again.id != share.id


async def test_every_key_is_documented_and_ends_by_itself(serve: Serve) -> None:
    async with serve() as served, client(served, KEY) as owner:
        await shared(owner)
        redis, rows = served.gateway.redis, documented()
        keys = [key.decode() for key in await redis.keys("rh1:share*")]
        assert len(keys) == 3
        for key in keys:
            kinds = [kind for pattern, kind, _ in rows if pattern.fullmatch(key)]
            assert kinds == [(await redis.type(key)).decode()]
            assert await redis.pttl(key) > 0
