"""How many bytes of a tenant's turns Redis keeps, and that the books about them are right."""

from __future__ import annotations

import random

import pytest
from redis.asyncio import Redis

from gateway.turns.records import BYTES_KEY, INDEX_KEY, RECORD_KEY, RecordState
from tests.gateway.turns.test_records import client, records, turn, written

__all__ = ["client"]

pytestmark = pytest.mark.anyio


async def kept_bytes(client: Redis) -> dict[str, int]:
    """Sealed bytes of each turn that is there."""
    prefix = RECORD_KEY.format(tenant="alice", id="")
    found = {}
    async for key in client.scan_iter(match=prefix.replace("{", "[{]") + "*"):
        data = await client.hget(key, "data")  # type: ignore[misc]
        if data is not None:
            found[key.decode().removeprefix(prefix)] = len(data)
    return found


async def test_the_oldest_go_when_there_are_too_many_bytes(client: Redis) -> None:
    kept = records(client, max_bytes_per_tenant=25_000)
    for number in range(6):
        kept.keep(turn("x" * 8_000, id=f"resp_{number}"))
        await written(kept)
    sizes = await kept_bytes(client)
    assert sorted(sizes) == ["resp_4", "resp_5"] and sum(sizes.values()) <= 25_000
    assert (await kept.read("alice", "resp_3")).state is None
    assert (await kept.read("alice", "resp_5")).state is RecordState.ENDED


async def test_one_that_is_larger_than_all_may_be_is_kept_alone(client: Redis) -> None:
    """Or nobody could read it; the next takes its place."""
    kept = records(client, max_bytes_per_tenant=1_000)
    for id in ("resp_1", "resp_2"):
        kept.keep(turn("x" * 8_000, id=id))
        await written(kept)
    assert list(await kept_bytes(client)) == ["resp_2"]


@pytest.mark.parametrize("seed", range(3))
async def test_the_books_are_what_redis_holds(client: Redis, seed: int) -> None:
    """Whatever is written again, deleted, lost, too much or too old."""
    chance = random.Random(seed)
    kept = records(client, max_per_tenant=12, max_bytes_per_tenant=40_000)
    for step in range(150):
        id = f"resp_{chance.randrange(30)}"
        match chance.choice(["run", "end", "end", "delete", "lose", "age"]):
            case "delete":
                await kept.delete("alice", id)
            case "lose":
                await kept.lose(turn("y" * chance.randrange(6_000), id=id))
            case "age":  # its record has lived as long as it may
                index = INDEX_KEY.format(tenant="alice")
                if await client.zscore(index, id) is not None:
                    await client.zadd(index, {id: 0})
                    await client.delete(RECORD_KEY.format(tenant="alice", id=id))
                    kept.keep(turn(id=f"resp_after_{step}"))
                    await written(kept)
            case state:
                kept.keep(turn("x" * chance.randrange(9_000), ended=state == "end", id=id))
                await written(kept)
        held = await kept_bytes(client)
        books = {
            name.decode(): int(size) for name, size in (await client.hgetall(BYTES_KEY.format(tenant="alice"))).items()
        }  # type: ignore[misc]
        assert books.pop("", 0) == sum(held.values()) <= 40_000
        assert books == held and len(held) <= 12
        index = await client.zrange(INDEX_KEY.format(tenant="alice"), 0, -1)
        assert {member.decode() for member in index} == set(held)
