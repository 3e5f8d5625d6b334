"""Idempotency keys: what they stand for, and what becomes of them without Redis."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from redis.asyncio import Redis

from gateway.access.identity import Principal
from gateway.errors import Conflict, InvalidRequest
from gateway.protocol.requests import Message, TurnRequest
from gateway.turns.creations import Creations
from tests.conftest import redis_server

pytestmark = pytest.mark.anyio

ALICE = Principal("alice", "key")
SECRET = b"s" * 32


def request(text: str = "hello", **fields: Any) -> TurnRequest:
    return TurnRequest(model="auto", messages=(Message("user", text),), **fields)


@pytest.fixture
async def client(redis_url: str) -> AsyncIterator[Redis]:
    async with Redis.from_url(redis_url) as client:
        await client.flushall()
        yield client


async def test_the_first_one_takes_a_key(client: Redis) -> None:
    """Of two gateways; the other one is told whose it is."""
    one, other = Creations(client, SECRET, 60), Creations(client, SECRET, 60)
    claim = one.claim(ALICE, "k", request())
    assert claim == other.claim(ALICE, "k", request())
    taken = await asyncio.gather(one.take(claim, "resp_1"), other.take(claim, "resp_2"))
    assert sorted(taken, key=str) in ([None, "resp_1"], [None, "resp_2"])
    winner = next(id for id in taken if id)
    assert await one.take(claim, "resp_3") == await other.take(claim, "resp_4") == winner


@pytest.mark.parametrize(
    "whose", [Principal("bob", "key"), Principal("alice", "other"), Principal("alice", "key", "u")]
)
async def test_a_key_is_its_callers(client: Redis, whose: Principal) -> None:
    """Of this tenant, key and user."""
    creations = Creations(client, SECRET, 60)
    assert await creations.take(creations.claim(ALICE, "k", request()), "resp_1") is None
    assert await creations.take(creations.claim(whose, "k", request("other")), "resp_2") is None


async def test_the_order_of_a_body_does_not_matter_but_its_values_do(client: Redis) -> None:
    """Metadata in another order is the same request."""
    creations = Creations(client, SECRET, 60)
    first = creations.claim(ALICE, "k", request(metadata={"a": "1", "b": "2"}))
    assert first == creations.claim(ALICE, "k", request(metadata={"b": "2", "a": "1"}))
    await creations.take(first, "resp_1")
    with pytest.raises(Conflict):
        await creations.take(creations.claim(ALICE, "k", request(metadata={"a": "1"})), "resp_2")


async def test_a_key_is_given_back_by_its_turn_only(client: Redis) -> None:
    """Another one's release changes nothing."""
    creations = Creations(client, SECRET, 60)
    claim = creations.claim(ALICE, "k", request())
    await creations.take(claim, "resp_1")
    await creations.release(claim, "resp_2")
    assert await creations.take(claim, "resp_3") == "resp_1"
    await creations.release(claim, "resp_1")
    assert await creations.take(claim, "resp_3") is None


async def test_without_redis_a_key_holds_within_one_gateway() -> None:
    """And nothing waits for it."""
    with redis_server() as url:
        client = Redis.from_url(url)
    async with client:
        creations = Creations(client, SECRET, 60)
        claim = creations.claim(ALICE, "k", request())
        taken = await asyncio.gather(*(creations.take(claim, f"resp_{index}") for index in range(5)))
        assert taken.count(None) == 1
        assert len(set(taken)) == 2


@pytest.mark.parametrize("key", ["", "x" * 256, "a\nb"])
async def test_a_key_is_short_and_printable(client: Redis, key: str) -> None:
    """Anything else is refused by name."""
    with pytest.raises(InvalidRequest) as refused:
        Creations(client, SECRET, 60).claim(ALICE, key, request())
    assert refused.value.param == "idempotency_key"


async def test_neither_key_nor_body_can_be_read_in_redis(client: Redis) -> None:
    """Digests stand for them."""
    creations = Creations(client, SECRET, 60)
    await creations.take(creations.claim(ALICE, "client-name", request("canary")), "resp_1")
    [name] = await client.keys()
    kept = name + (await client.get(name) or b"")
    assert b"client-name" not in kept and b"canary" not in kept
    assert 0 < await client.ttl(name) <= 60
