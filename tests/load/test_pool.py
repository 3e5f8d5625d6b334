"""Connections are used again, and bounded."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from load.bodies import request_body
from load.connections.address import Address
from load.connections.http import RequestRefused
from load.connections.pool import ChannelPool
from load.transcript import ResponsesTranscript
from tests.load.answering import AnsweringServer
from tests.load.samples import planned

pytestmark = pytest.mark.anyio
HEADERS = {"a": {"Authorization": "Bearer first-key"}, "b": {"Authorization": "Bearer second-key"}}


async def turn(
    pool: ChannelPool, tenant: str = "a", model: str = "good", seen: Callable[[], None] = lambda: None
) -> None:
    channel = await pool.take("responses", tenant)
    try:
        body = request_body(planned(protocol="responses", model=model), {})
        await channel.ask(body, ResponsesTranscript(), seen)
    finally:
        pool.give_back("responses", tenant, channel)


async def test_a_connection_serves_one_turn_after_the_other(answering: tuple[AnsweringServer, str]) -> None:
    server, url = answering
    pool = ChannelPool(Address.parse(url), HEADERS, 8)
    for _ in range(3):
        await turn(pool)
    assert server.connections == 1
    pool.close()


async def test_turns_at_the_same_time_have_connections_of_their_own_up_to_the_bound(
    answering: tuple[AnsweringServer, str],
) -> None:
    server, url = answering
    pool = ChannelPool(Address.parse(url), HEADERS, 3)
    await asyncio.gather(*(turn(pool) for _ in range(9)))
    assert (server.connections, server.most_open) == (3, 3)
    assert len(server.bodies) == 9
    pool.close()


async def test_tenants_share_no_connection_and_idle_ones_make_room(answering: tuple[AnsweringServer, str]) -> None:
    server, url = answering
    pool = ChannelPool(Address.parse(url), HEADERS, 1)
    for tenant in ("a", "b", "a"):
        await turn(pool, tenant)
    assert server.connections == 3
    assert server.keys == ["first-key", "second-key", "first-key"]
    pool.close()


async def test_a_turn_that_broke_off_leaves_no_connection_behind(answering: tuple[AnsweringServer, str]) -> None:
    server, url = answering
    pool = ChannelPool(Address.parse(url), HEADERS, 1)
    begun = asyncio.Event()
    breaking_off = asyncio.create_task(turn(pool, model="patient", seen=begun.set))
    await begun.wait()
    breaking_off.cancel()
    await turn(pool)
    assert server.connections == 2
    pool.close()


async def test_a_connection_that_cannot_be_opened_gives_its_place_back() -> None:
    pool = ChannelPool(Address("127.0.0.1", 1, False, "/v1"), HEADERS, 1)
    for _ in range(3):
        with pytest.raises(OSError, match=r"[Cc]onnect"):
            await turn(pool)


async def test_a_server_without_a_websocket_refuses(answering: tuple[AnsweringServer, str]) -> None:
    _, url = answering
    pool = ChannelPool(Address.parse(url + "/elsewhere"), HEADERS, 1)
    with pytest.raises(RequestRefused):
        await turn(pool)
