"""What Redis keeps of a turn, and who may change it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from redis.asyncio import Redis

from gateway.access.identity import Principal
from gateway.errors import RateLimited
from gateway.protocol.requests import Message, TurnRequest
from gateway.protocol.stream import Finished, Routed, TextDelta, TokenUsage
from gateway.storage.seal import BrokenSeal, Seal
from gateway.turns.creations import CLAIM_KEY
from gateway.turns.mailbox import INBOX_KEY
from gateway.turns.messages import decode_record, encode
from gateway.turns.records import INDEX_KEY, MAX_RECORD, RECORD_KEY, RecordState, TurnRecords, record_of, restore
from gateway.turns.turn import Turn
from tests.conftest import redis_server
from tests.gateway.conftest import eventually

pytestmark = pytest.mark.anyio

ALICE = Principal("alice", "key")
ROUTED = Routed(tier="small", model="m", replica="small-0", reason="requested", complexity=None)
SECRET = b"s" * 32


@pytest.fixture
async def client(redis_url: str) -> AsyncIterator[Redis]:
    async with Redis.from_url(redis_url) as client:
        await client.flushall()
        yield client


def records(client: Redis, gateway: str = "gw_1", **changes: float) -> TurnRecords:
    settings = {"ttl": 60.0, "max_per_tenant": 100, "max_bytes_per_tenant": 1 << 30, **changes}
    return TurnRecords(client, Seal(SECRET), gateway, **settings)  # type: ignore[arg-type]


def turn(text: str = "hello", *, ended: bool = True, id: str = "resp_1") -> Turn:
    made = Turn(id, ALICE, TurnRequest(model="m", messages=(Message("user", "why?"),)), (), 1.0, 1)
    made.append(ROUTED)
    made.append(TextDelta(text, (1, 2)))
    if ended:
        made.append(Finished("stop", TokenUsage(1, 0, 2)))
    return made


async def written(kept: TurnRecords) -> None:
    """Everything queued has been written."""
    writer = asyncio.create_task(kept.run())
    await eventually(lambda: not kept.pending)
    writer.cancel()
    await asyncio.gather(writer, return_exceptions=True)


async def test_what_was_kept_is_read(client: Redis) -> None:
    """The same log, view and conversation, by another gateway with the same secret."""
    kept, made = records(client), turn()
    kept.keep(made)
    await written(kept)
    found = await records(client, "gw_2").read("alice", "resp_1")
    assert found.state is RecordState.ENDED
    assert found.record is not None
    again = restore("resp_1", found.record)
    assert again.view.response() == made.view.response()
    assert again.log.read(-1) != [] and [again.view.event(entry) for entry in again.log.read(-1)] == [
        made.view.event(entry) for entry in made.log.read(-1)
    ]
    assert again.conversation + again.answer == made.conversation + made.answer


async def test_another_secret_reads_nothing(client: Redis) -> None:
    """As if nothing were kept."""
    kept = records(client)
    kept.keep(turn())
    await written(kept)
    stranger = TurnRecords(client, Seal(b"x" * 32), "gw_2", ttl=60, max_per_tenant=9, max_bytes_per_tenant=1 << 20)
    assert (await stranger.read("alice", "resp_1")).record is None


async def test_an_error_keeps_its_kind() -> None:
    """Status, code and what comes with it."""
    made = turn(ended=False)
    made.append(Finished("error", TokenUsage(), RateLimited("slow down", retry_after=7, param="input")))
    again = restore("resp_1", decode_record(encode(record_of(made))))
    error = again.log.finished.error if again.log.finished else None
    assert isinstance(error, RateLimited)
    assert (error.status, error.body(), error.headers, error.retry_after) == (
        429,
        {"message": "slow down", "type": "rate_limit_error", "param": "input", "code": "rate_limit_exceeded"},
        {"retry-after": "7"},
        7,
    )


class TestFence:
    """A turn ends once."""

    async def test_a_lost_turn_stays_lost_until_its_gateway_says_how_it_ended(self, client: Redis) -> None:
        """Of two gateways that find it lost one may say so; its own was only cut off."""
        owner, finders = records(client), (records(client, "gw_2"), records(client, "gw_3"))
        owner.keep(turn("hel", ended=False))
        await written(owner)
        said = [await finder.lose(turn("hel")) for finder in finders]
        assert said == [True, False]
        found = await owner.read("alice", "resp_1")
        assert found.state is RecordState.LOST
        assert found.record is not None and restore("resp_1", found.record).log.text == "hel"
        owner.keep(turn("hello"))
        await written(owner)
        found = await owner.read("alice", "resp_1")
        assert found.state is RecordState.ENDED
        assert found.record is not None and restore("resp_1", found.record).log.text == "hello"

    @pytest.mark.parametrize("kept", [False, True])
    async def test_what_has_ended_or_was_never_kept_cannot_be_lost(self, client: Redis, kept: bool) -> None:
        """Only a checkpoint is proof that it ran."""
        owner = records(client)
        if kept:
            owner.keep(turn())
            await written(owner)
        assert not await owner.lose(turn("x"))
        assert (await owner.read("alice", "resp_1")).state is (RecordState.ENDED if kept else None)

    @pytest.mark.parametrize("late", [False, True])
    async def test_a_deleted_turn_stays_deleted(self, client: Redis, late: bool) -> None:
        """Also if it is written late; nothing of its text is left."""
        owner = records(client)
        if not late:
            owner.keep(turn())
            await written(owner)
        assert await records(client, "gw_2").delete("alice", "resp_1") is not late
        owner.keep(turn())
        await written(owner)
        assert await client.hkeys(RECORD_KEY.format(tenant="alice", id="resp_1")) == [b"state"]
        assert (await owner.read("alice", "resp_1")).state is RecordState.DELETED


async def test_redis_being_away_delays_what_is_kept(caplog: pytest.LogCaptureFixture) -> None:
    """Until it is back, empty."""
    server = redis_server()
    with server:
        async with Redis.from_url(server.url) as client:
            kept = records(client)
            kept.keep(turn())
            await written(kept)
            server.stop()
            writer = asyncio.create_task(kept.run())
            kept.keep(turn(id="resp_2"))
            await eventually(lambda: "responses not stored yet" in caplog.text)
            assert kept.pending == 1
            server.start()
            await eventually(lambda: not kept.pending)
            writer.cancel()
            await asyncio.gather(writer, return_exceptions=True)
            assert (await kept.read("alice", "resp_2")).state is RecordState.ENDED


async def test_what_is_too_large_is_not_kept(client: Redis) -> None:
    """It costs Redis nothing."""
    kept = records(client)
    kept.keep(turn("x" * MAX_RECORD))
    await written(kept)
    assert await client.dbsize() == 0


def test_a_seal_holds_for_one_thing_only() -> None:
    """Nothing can be moved, changed or cut."""
    seal = Seal(SECRET)
    sealed = seal.seal(b"text", "here")
    assert Seal(SECRET).open(sealed, "here") == b"text"
    for broken, context in ((sealed, "there"), (sealed[:-1], "here"), (b"", "here"), (sealed[:28] + b"x" * 20, "here")):
        with pytest.raises(BrokenSeal):
            seal.open(broken, context)
    assert seal.seal(b"text", "here") != sealed


def test_the_keys_are_documented() -> None:
    """In docs/redis-keys.md."""
    page = Path("docs/redis-keys.md").read_text("utf-8")
    names = {"tenant": "<tenant>", "id": "<response id>", "digest": "<digest>"}
    for key in (RECORD_KEY, INDEX_KEY, CLAIM_KEY):
        assert f"`{key.format(**names)}`" in page
    assert f"`{INBOX_KEY.format(id='<gateway id>')}`" in page
