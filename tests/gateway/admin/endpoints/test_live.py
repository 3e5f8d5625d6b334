"""The live stream of the admin API."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest
from starlette.requests import Request

from gateway.admin.call import Call, admit
from gateway.admin.endpoints import live
from gateway.admin.endpoints.live import LiveStreams
from gateway.admin.kit.endpoints import Endpoint
from gateway.errors import RateLimited, Unavailable
from tests.gateway.admin.conftest import ADMIN, CHAT, Administer, problem
from tests.gateway.conftest import eventually

pytestmark = pytest.mark.anyio


async def events(client: httpx2.AsyncClient, count: int) -> AsyncIterator[tuple[str, dict[str, Any]]]:
    async with client.stream("GET", "/live", params={"events": count}) as response:
        assert response.status_code == 200
        assert response.headers["content-type"].startswith("text/event-stream")
        name = ""
        async for line in response.aiter_lines():
            field, _, value = line.partition(": ")
            name = value if field == "event" else name
            if field == "data":
                yield name, json.loads(value)


async def test_operators_see_all_and_admins_their_own(administer: Administer) -> None:
    """What `roundhouse top` shows, as often as was asked for."""
    async with administer() as api:
        async with api.client(CHAT) as chat:
            body = {"model": "small", "input": "hi", "max_output_tokens": 2}
            assert (await chat.post(f"{api.served.url}/v1/responses", json=body)).status_code == 200
        async for name, seen in events(api.operator, 20):
            assert name == "snapshot"
            if any(tenant["name"] == "acme" and tenant["minute"]["turns"] for tenant in seen["tenants"]):
                break
        else:
            raise AssertionError("the turn was never seen")
        assert [gateway["id"] for gateway in seen["gateways"]] == [api.served.gateway.presence.id]
        assert [replica["up"] for replica in seen["replicas"]] == [True]
        assert seen["minute"]["turns"] == 1
        [(_, own)] = [each async for each in events(api.acme, 1)]
        assert (own["minute"]["turns"], own["replicas"], own["gateways"], own["connections"]) == (1, [], [], None)
        [(_, others)] = [each async for each in events(api.other, 1)]
        assert (others["tenants"], others["minute"]["turns"]) == ([], 0)


async def test_a_stream_ends_with_its_client_and_its_key(
    administer: Administer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And counts no longer then."""
    monkeypatch.setattr(live, "MOST_OF_TENANT", 1)
    streams = LiveStreams()
    monkeypatch.setattr(live, "LiveStreams", lambda: streams)
    async with administer() as api:
        made = (await api.operator.post("/tenants/acme/keys", json={"scopes": ADMIN})).json()
        async with api.client(made["key"]) as fleeting:
            stream = events(fleeting, 600)
            await anext(stream)
            problem(await api.acme.get("/live"), 429, "too_many_streams")
            await api.operator.delete(f"/tenants/acme/keys/{made['record']['id']}", headers={"if-match": "*"})
            async with asyncio.timeout(30):
                assert all([name == "snapshot" async for name, _ in stream])
        await eventually(lambda: streams.open == 0)
        stream = events(api.acme, 600)
        await anext(stream)
        assert streams.open == 1
        await stream.aclose()
        await eventually(lambda: streams.open == 0)


async def test_while_redis_does_not_answer_a_stream_says_so_and_goes_on(
    administer: Administer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if it is the session or key that cannot be looked up."""
    errors: list[Exception] = [Unavailable("sessions cannot be checked")]

    async def failing(endpoint: Endpoint, request: Request) -> Call:
        if errors:
            raise errors.pop()
        return await admit(endpoint, request)

    async with administer() as api:
        monkeypatch.setattr(live, "admit", failing)
        assert [name async for name, _ in events(api.operator, 3)] == ["snapshot", "problem", "snapshot"]


def test_streams_are_counted_apart_and_together() -> None:
    """Nobody is let in beyond either number, and who leaves makes room."""
    streams = LiveStreams()
    for _ in range(2):
        streams.enter("acme", 2)
    with pytest.raises(RateLimited):
        streams.enter("acme", 2)
    for _ in range(live.MOST - 2):
        streams.enter("operators", live.MOST)
    with pytest.raises(RateLimited):
        streams.enter("operators", live.MOST)
    streams.leave("acme")
    streams.enter("acme", 2)
    assert streams.open == live.MOST
