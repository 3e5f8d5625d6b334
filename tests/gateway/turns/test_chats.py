"""What Redis keeps of the chat page's conversations: whole changes, in order, within bounds, nothing in clear."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import AsyncIterator

import pytest
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.crc import key_slot

from gateway.config.chat import ChatSettings
from gateway.errors import Conflict, NotFound, PreconditionFailed, Unavailable
from gateway.protocol.chats import ChatTurnWrite, ChatWrite
from gateway.storage.seal import Seal
from gateway.turns import chats as module
from gateway.turns.chats import CHAT_KEY, INDEX_KEY, RATE_KEY, Chats, Owner
from tests.redis_bytes import dumped

pytestmark = pytest.mark.anyio

SECRET = b"s" * 32
KEPT = ChatSettings()


@pytest.fixture
async def client(redis_url: str) -> AsyncIterator[Redis]:
    async with Redis.from_url(redis_url) as client:
        await client.flushall()
        yield client


@pytest.fixture
def kept(client: Redis) -> Chats:
    return Chats(client, SECRET)


@pytest.fixture
def ann(kept: Chats) -> Owner:
    return kept.owner("demo", "ann")


def chat(*turns: str, title: str = "A title", updated_ms: int = 0, text: str = "") -> ChatWrite:
    said = [ChatTurnWrite(turn, f"asked {turn}", text or f"said {turn}") for turn in turns]
    return ChatWrite(title, updated_ms, said)


async def turns(kept: Chats, owner: Owner, id: str) -> list[str]:
    return [turn.id for turn in (await kept.read(owner, id)).turns]


async def test_turns_stay_in_the_order_in_which_they_came(kept: Chats, ann: Owner) -> None:
    """Those that change keep their place, and those that are not sent again stay."""
    first = await kept.write(ann, "c", 0, chat("b", "a"), KEPT)
    second = await kept.write(ann, "c", first, chat("c"), KEPT)
    await kept.write(ann, "c", second, chat("a", text="changed"), KEPT)
    found = await kept.read(ann, "c")
    assert [(turn.id, turn.text) for turn in found.turns] == [("b", "said b"), ("a", "changed"), ("c", "said c")]


async def test_writers_at_once_lose_nothing(kept: Chats, ann: Owner) -> None:
    """Each reads again until its change is meant for what is there; nobody's turn is overwritten."""
    await kept.write(ann, "c", 0, chat("first"), KEPT)

    async def add(turn: str) -> int:
        for attempt in range(100):
            revision = (await kept.read(ann, "c")).revision
            try:
                await kept.write(ann, "c", revision, chat(turn), KEPT)
            except PreconditionFailed:
                continue
            return attempt
        raise AssertionError("never written")

    attempts = await asyncio.gather(*(add(f"turn {number}") for number in range(10)))
    assert sum(attempts) > 0
    assert sorted(await turns(kept, ann, "c")) == ["first", *(f"turn {number}" for number in range(10))]


async def test_a_revision_never_comes_twice(kept: Chats, ann: Owner) -> None:
    """Not of a conversation that is made anew either: who has read the old one is told."""
    revision = await kept.write(ann, "c", 0, chat("a"), KEPT)
    with pytest.raises(PreconditionFailed, match=f'"{revision}"'):
        await kept.write(ann, "c", 0, chat("b"), KEPT)
    await kept.delete(ann, "c")
    with pytest.raises(NotFound):
        await kept.write(ann, "c", revision, chat("b"), KEPT)
    await kept.write(ann, "c", 0, chat("c"), KEPT)
    with pytest.raises(PreconditionFailed):
        await kept.write(ann, "c", revision, chat("b"), KEPT)
    assert await turns(kept, ann, "c") == ["c"]


async def test_what_is_anothers_is_not_there(kept: Chats, ann: Owner) -> None:
    """Of another user, of another tenant, or sealed with another secret."""
    revision = await kept.write(ann, "c", 0, chat("a"), KEPT)
    stranger = Chats(kept._redis, b"x" * 32)
    for chats, owner in ((kept, kept.owner("demo", "bob")), (kept, kept.owner("other", "ann")), (stranger, ann)):
        with pytest.raises(NotFound):
            await chats.read(owner, "c")
        assert await chats.entries(owner) == []
        assert await chats.search(owner, ["asked"]) == ([], True)
    bob = kept.owner("demo", "bob")
    with pytest.raises(NotFound):
        await kept.write(bob, "c", revision, chat("b"), KEPT)
    await kept.delete(bob, "c")
    assert await turns(kept, ann, "c") == ["a"]


async def test_a_value_in_another_place_is_not_believed(kept: Chats, ann: Owner, client: Redis) -> None:
    """As if whoever may write to Redis gave somebody the conversation of another user."""
    await kept.write(ann, "c", 0, chat("a"), KEPT)
    bob = kept.owner("demo", "bob")
    source, target = (CHAT_KEY.format(tenant="demo", owner=owner.digest, id="c") for owner in (ann, bob))
    await client.copy(source, target)
    with pytest.raises(NotFound):
        await kept.read(bob, "c")


async def test_the_newest_comes_first(kept: Chats, ann: Owner) -> None:
    for number, time in enumerate((5, 9, 7)):
        await kept.write(ann, f"c{number}", 0, chat("a", updated_ms=time), KEPT)
    assert [entry.id for entry in await kept.entries(ann)] == ["c1", "c2", "c0"]


async def test_there_are_bounds(kept: Chats, ann: Owner, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of their number, of turns and bytes of one, and of all together. What makes nothing larger is taken all the
    same."""
    settings = ChatSettings(max_bytes_per_user=10_000)
    revision = await kept.write(ann, "c1", 0, chat("a", text="x" * 9_000), settings)
    with pytest.raises(Conflict, match="10,000 bytes") as full:
        await kept.write(ann, "c2", 0, chat("a", text="x" * 1_000), settings)
    assert full.value.code == "chats_full"
    smaller = ChatSettings(max_bytes_per_user=100)
    revision = await kept.write(ann, "c1", revision, chat("a", text="y" * 9_000), smaller)
    monkeypatch.setattr(module, "MAX_CHATS", 1)
    with pytest.raises(Conflict, match="1 conversations") as full:
        await kept.write(ann, "c2", 0, chat("a"), KEPT)
    assert full.value.code == "chats_full"
    monkeypatch.setattr(module, "MAX_CHAT_BYTES", 10_000)
    with pytest.raises(Conflict, match="a conversation may have") as full:
        await kept.write(ann, "c1", revision, chat("b", text="x" * 1_000), KEPT)
    assert full.value.code == "chat_full"
    monkeypatch.setattr(module, "MAX_TURNS", 1)
    with pytest.raises(Conflict, match="1 turns") as full:
        await kept.write(ann, "c1", revision, chat("b"), KEPT)
    assert full.value.code == "chat_full"
    await kept.write(ann, "c1", revision, chat("a"), KEPT)
    assert [entry.id for entry in await kept.entries(ann)] == ["c1"]
    await kept.delete(ann, "c1")
    await kept.write(ann, "c2", 0, chat("a"), KEPT)


@pytest.mark.parametrize("seed", range(3))
async def test_the_books_are_what_redis_holds(kept: Chats, ann: Owner, client: Redis, seed: int) -> None:
    """Whatever is written, written again, deleted, or has expired."""
    chance = random.Random(seed)
    index = INDEX_KEY.format(tenant="demo", owner=ann.digest)
    for _ in range(60):
        id = chance.choice("abc")
        revision = next((entry.revision for entry in await kept.entries(ann) if entry.id == id), 0)
        match chance.choice(["write", "write", "write", "delete", "expire"]):
            case "write":
                turn, text = chance.choice("tuv"), "x" * chance.randrange(1000)
                await kept.write(ann, id, revision, chat(turn, text=text), KEPT)
            case "delete" if revision:
                await kept.delete(ann, id)
            case "expire":
                await client.delete(CHAT_KEY.format(tenant="demo", owner=ann.digest, id=id))
            case _:
                pass
    await kept.write(ann, "last", 0, chat("a"), KEPT)  # forgets what has expired
    noted = {id.decode(): int(size) for id, size in (await client.hgetall(index)).items()}  # type: ignore[misc]
    sizes = {}
    for id in noted:
        fields: dict[bytes, bytes] = await client.hgetall(CHAT_KEY.format(tenant="demo", owner=ann.digest, id=id))  # type: ignore[misc]
        sizes[id] = sum(int(value[10:20]) for name, value in fields.items() if name not in (b"revision", b"last"))
    assert noted == sizes


async def test_they_live_as_long_as_the_configuration_says(kept: Chats, ann: Owner, client: Redis) -> None:
    await kept.write(ann, "long", 0, chat("a"), ChatSettings(keep=1000.0))
    await kept.write(ann, "short", 0, chat("a"), ChatSettings(keep=0.001))
    while [entry.id for entry in await kept.entries(ann)] != ["long"]:  # noqa: ASYNC110  only Redis knows
        await asyncio.sleep(0.005)
    for key in await client.keys("*"):
        assert 900_000 < await client.pttl(key) <= 1_000_000


async def test_found_by_words_of_title_and_turns(kept: Chats, ann: Owner, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of them, in any case; a search without time for all says so."""
    await kept.write(ann, "fruit", 0, chat("a", title="Fruit", text="Bananas are BERRIES.", updated_ms=2), KEPT)
    await kept.write(ann, "bread", 0, chat("a", title="Bread", text="Of flour.", updated_ms=1), KEPT)
    for words, found in (
        (["fruit", "berries"], ["fruit"]),
        (["FLOUR"], ["bread"]),
        (["asked"], ["fruit", "bread"]),
        (["fruit", "flour"], []),
    ):
        entries, complete = await kept.search(ann, words)
        assert ([entry.id for entry in entries], complete) == (found, True)
    monkeypatch.setattr(module, "SEARCH_SECONDS", -1.0)
    assert await kept.search(ann, ["asked"]) == ([], False)


async def test_the_event_loop_opens_nothing(kept: Chats, ann: Owner, monkeypatch: pytest.MonkeyPatch) -> None:
    """Titles of a thousand conversations would hold up all who stream."""
    threads: set[int] = set()
    opens = Seal.open

    def noted(self: Seal, sealed: bytes, context: str) -> bytes:
        threads.add(threading.get_ident())
        return opens(self, sealed, context)

    monkeypatch.setattr(Seal, "open", noted)
    await kept.write(ann, "c", 0, chat("a"), KEPT)
    await kept.entries(ann)
    await kept.read(ann, "c")
    await kept.search(ann, ["asked"])
    assert threads and threading.get_ident() not in threads


async def test_nothing_is_in_clear(kept: Chats, ann: Owner, client: Redis, redis_url: str) -> None:
    """In what Redis writes to disk: neither words nor titles, settings, folders, ids of turns or the user's name."""
    secret = "canary7f3a"
    turn = ChatTurnWrite(secret, secret, secret, response_id=secret, data={secret: secret})
    await kept.write(ann, "c", 0, ChatWrite(secret, 0, [turn], secret, {secret: secret}, folder=secret), KEPT)
    await kept.admit(kept.owner("demo", secret))
    await kept.write(kept.owner("demo", secret), "c", 0, chat("a"), KEPT)
    assert secret.encode() not in await asyncio.to_thread(dumped, redis_url)
    await client.set("control", secret)
    assert secret.encode() in await asyncio.to_thread(dumped, redis_url)


async def test_all_keys_of_a_user_lie_in_one_slot() -> None:
    keys = [each.format(tenant="demo", owner="o", id="c") for each in (CHAT_KEY, INDEX_KEY, RATE_KEY)]
    assert len({key_slot(key.encode()) for key in keys}) == 1


async def test_without_redis_all_is_unavailable() -> None:
    kept = Chats(Redis(host="127.0.0.1", port=1, retry=Retry(NoBackoff(), 0)), SECRET)
    owner = kept.owner("demo", "ann")
    for call in (
        kept.admit(owner),
        kept.entries(owner),
        kept.read(owner, "c"),
        kept.write(owner, "c", 0, chat("a"), KEPT),
        kept.delete(owner, "c"),
        kept.search(owner, ["a"]),
    ):
        with pytest.raises(Unavailable):
            await call
