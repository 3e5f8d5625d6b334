"""What Redis keeps of conversations: whole changes, in order, within bounds."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from typing import Any

import pytest
from msgspec.structs import replace
from redis.asyncio import Redis

from gateway.access.identity import Principal
from gateway.config.settings import TurnSettings
from gateway.errors import Conflict, NotFound, Unavailable
from gateway.protocol.requests import Message, TurnRequest
from gateway.protocol.stream import Routed, TextDelta
from gateway.storage.seal import Seal
from gateway.turns import conversations as module
from gateway.turns.conversations import BYTES_KEY, CONVERSATION_KEY, INDEX_KEY, Conversations
from gateway.turns.ids import new_conversation_id
from gateway.turns.turn import Turn
from tests.gateway.turns.contexts import context

pytestmark = pytest.mark.anyio

SECRET = b"s" * 32


@pytest.fixture
async def client(redis_url: str) -> AsyncIterator[Redis]:
    async with Redis.from_url(redis_url) as client:
        await client.flushall()
        yield client


def conversations(client: Redis, secret: bytes = SECRET, **changes: Any) -> Conversations:
    return Conversations(client, Seal(secret), replace(TurnSettings(), **changes))


def said(*texts: str) -> dict[str, Message]:
    return {f"msg_{text}": Message("user", text) for text in texts}


async def test_what_is_added_at_once_is_all_there(client: Redis) -> None:
    """Each addition in one piece, and in its own order."""
    kept, id = conversations(client), new_conversation_id()
    await kept.create("alice", id, {}, said("first"))
    batches = [[f"{number}-{part}" for part in range(3)] for number in range(20)]
    await asyncio.gather(*(kept.append("alice", id, said(*batch)) for batch in batches))
    texts = [message.content for message in (await kept.items("alice", id)).values()]
    assert texts[0] == "first"
    assert sorted(texts[n : n + 3] for n in range(1, len(texts), 3)) == sorted(batches)


async def test_what_is_added_again_is_there_once(client: Redis) -> None:
    """As after an answer of Redis that got lost."""
    kept, id = conversations(client), new_conversation_id()
    await kept.create("alice", id, {}, said("a"))
    for _ in range(2):
        await kept.append("alice", id, said("b", "c"))
    assert list(await kept.items("alice", id)) == ["msg_a", "msg_b", "msg_c"]


@pytest.mark.parametrize("unknown", ["conv_" + 48 * "a", "conv_1", "", "conv_" + 48 * "{", "head"])
async def test_what_does_not_exist_is_not_found(client: Redis, unknown: str) -> None:
    """By no method, and nothing is made; another tenant's does not exist either."""
    kept, id = conversations(client), new_conversation_id()
    await kept.create("alice", id, {}, {})
    before = await client.keys()
    for tenant, name in (("alice", unknown), ("bob", id)):
        for call in (
            kept.read(tenant, name),
            kept.items(tenant, name),
            kept.update(tenant, name, {}),
            kept.append(tenant, name, said("x")),
            kept.remove(tenant, name, "msg_x"),
            kept.delete(tenant, name),
        ):
            with pytest.raises(NotFound):
                await call
    assert await client.keys() == before


async def test_only_items_can_be_removed(client: Redis) -> None:
    """Not what else the hash holds."""
    kept, id = conversations(client), new_conversation_id()
    await kept.create("alice", id, {}, said("a"))
    for name in ("head", "last", "msg_b"):
        with pytest.raises(NotFound):
            await kept.remove("alice", id, name)
    await kept.remove("alice", id, "msg_a")
    assert len(await kept.items("alice", id)) == 0


async def test_another_secret_reads_nothing(client: Redis) -> None:
    kept, id = conversations(client), new_conversation_id()
    made = await kept.create("alice", id, {"a": "b"}, said("a"))
    assert await kept.read("alice", id) == made
    stranger = conversations(client, b"x" * 32)
    with pytest.raises(NotFound):
        await stranger.read("alice", id)
    with pytest.raises(NotFound):
        (await stranger.items("alice", id))["msg_a"]


async def test_a_full_one_takes_only_what_a_running_turn_brings(client: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    """By their number or by their bytes."""
    kept, id = conversations(client), new_conversation_id()
    await kept.create("alice", id, {}, said("a", "b"))
    for bound in ("MAX_ITEMS", "MAX_BYTES"):
        with monkeypatch.context() as patch:
            patch.setattr(module, bound, 2)
            with pytest.raises(Conflict):
                await kept.append("alice", id, said("c"))
            assert (await kept.items("alice", id)).full
            await kept.append("alice", id, said(bound), ended=True)
    await kept.append("alice", id, said("c"))
    assert [message.content for message in (await kept.items("alice", id)).values()] == [
        "a",
        "b",
        "MAX_ITEMS",
        "MAX_BYTES",
        "c",
    ]


@pytest.mark.parametrize("seed", range(3))
async def test_the_books_are_what_redis_holds(client: Redis, seed: int) -> None:
    """Whatever is made, added, changed, removed, deleted, too much or too old."""
    chance = random.Random(seed)
    kept = conversations(client, max_stored_per_tenant=6, max_stored_bytes_per_tenant=4 * 1024 * 1024)
    ids = [new_conversation_id() for _ in range(9)]
    alive: set[str] = set()
    for step in range(200):
        id = chance.choice(ids)
        try:
            match chance.choice(["create", "append", "append", "append", "update", "remove", "delete", "age"]):
                case "create" if id not in alive:
                    await kept.create("alice", id, {}, said(f"{step}"))
                case "append":
                    await kept.append("alice", id, {f"msg_{step}": Message("user", "x" * chance.randrange(400_000))})
                case "update":
                    await kept.update("alice", id, {"step": f"{step}"})
                case "remove":
                    names = list(await kept.items("alice", id))
                    await kept.remove("alice", id, chance.choice(names) if names else "msg_0")
                case "delete":
                    await kept.delete("alice", id)
                case "age":
                    await client.zadd(INDEX_KEY.format(tenant="alice"), {id: 1}, xx=True)
                    await client.delete(CONVERSATION_KEY.format(tenant="alice", id=id))
                case _:
                    pass
        except (NotFound, Conflict):
            pass
        alive = await books(client)


async def books(client: Redis) -> set[str]:
    """Check the index and the bytes against the conversations that are there; return their ids."""
    prefix = CONVERSATION_KEY.format(tenant="alice", id="")
    sizes = {}
    async for key in client.scan_iter(match=prefix.replace("{", "[{]") + "*"):
        fields = await client.hgetall(key)  # type: ignore[misc]
        sizes[key.decode().removeprefix(prefix)] = sum(len(fields[name]) for name in fields if name != b"last")
        assert 0 < await client.pttl(key) <= 86_400_000
    noted = {
        key.decode(): int(value) for key, value in (await client.hgetall(BYTES_KEY.format(tenant="alice"))).items()
    }  # type: ignore[misc]
    indexed = {key.decode() for key in await client.zrange(INDEX_KEY.format(tenant="alice"), 0, -1)}
    assert noted.pop("", 0) == sum(noted.values())
    assert sizes.keys() <= noted.keys() == indexed  # what has expired is forgotten at the next write
    assert all(noted[id] == size for id, size in sizes.items())
    assert len(sizes) <= 6 and (len(sizes) == 1 or sum(sizes.values()) <= 4 * 1024 * 1024)
    return set(sizes)


class TestKeep:
    """A turn that has ended while Redis does not answer."""

    async def test_is_added_once_redis_answers(self, redis_url: str, client: Redis, monkeypatch: Any) -> None:
        kept, id = conversations(client, bytes(32)), new_conversation_id()
        await kept.create("alice", id, {}, {})
        monkeypatch.setattr("gateway.turns.context.RETRY", 0.01)
        failures = iter([Unavailable("no")] * 3)
        append = Conversations.append

        async def hindered(*arguments: Any, **options: Any) -> None:
            for failure in failures:
                raise failure
            await append(*arguments, **options)

        monkeypatch.setattr(Conversations, "append", hindered)
        assert await context(client).keep(answered(id)) is None
        assert [message.content for message in (await kept.items("alice", id)).values()] == ["why?", "because"]

    async def test_fails_if_it_stays_away(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The client is told that the conversation is as it was."""
        monkeypatch.setattr("gateway.turns.context.PATIENCE", 0.3)
        error = await context().keep(answered(new_conversation_id()))
        assert isinstance(error, Unavailable)


def answered(id: str) -> Turn:
    asked = TurnRequest(model="m", messages=(Message("user", "why?"),), conversation=id)
    turn = Turn("resp_1", Principal("alice", "key"), asked, (Message("user", "earlier"),), 1.0)
    turn.append(Routed(tier="small", model="m", replica="small-0", reason="requested", complexity=None))
    turn.append(TextDelta("because"))
    return turn
