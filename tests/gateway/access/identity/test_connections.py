"""Who is calling, over real sockets: revocation while a WebSocket is open, slowed addresses, proxies, secrets."""

from __future__ import annotations

from pathlib import Path

import httpx2
import msgspec
import pytest
from redis.asyncio import Redis
from websockets.exceptions import InvalidStatus

from gateway.access.identity.secret import FINGERPRINT_KEY, installation_secret
from gateway.app import running
from gateway.config.configuration import Configuration
from gateway.config.settings import PoolSettings, RedisSettings, demo_settings
from gateway.records.api_keys import new_key
from gateway.records.directory import Key, Tenant
from gateway.records.section import SettingsError
from tests.gateway.conftest import KEY, Serve, Served, receive, send, until_end

pytestmark = pytest.mark.anyio


async def new_caller(served: Served) -> str:
    """A key of a new tenant."""
    text, digest = new_key(installation_secret(served.gateway.settings))
    await served.gateway.directory.write(Tenant(name="acme"), actor="test")
    await served.gateway.directory.write(Key(id="k", tenant="acme", digest=digest), actor="test")
    return text


async def test_a_revoked_key_starts_no_more_turns_on_an_open_socket(serve: Serve) -> None:
    async with serve() as served:
        key = await new_caller(served)
        async with served.connect(key) as socket:
            await send(socket, type="response.create", model="auto", input="hello", max_output_tokens=2)
            events = await until_end(lambda: receive(socket))
            assert events[-1]["type"] in ("response.completed", "response.incomplete")
            await served.gateway.directory.delete(Key, "k", actor="test")
            await served.gateway.view.refresh()
            await send(socket, type="response.create", model="auto", input="hello", max_output_tokens=2)
            [refusal] = await until_end(lambda: receive(socket))
            assert (refusal["type"], refusal["error"]["code"]) == ("error", "invalid_api_key")
        with pytest.raises(InvalidStatus) as caught:
            async with served.connect(key):
                pass
        assert caught.value.response.status_code == 401
        await served.settle()


@pytest.mark.parametrize("loss", ["deleted", "without the scope"])
async def test_a_revoked_key_shows_and_cancels_nothing_on_an_open_socket(serve: Serve, loss: str) -> None:
    """Also of turns that were its own: whoever holds it may be a thief by now."""
    async with serve() as served:
        key = await new_caller(served)
        async with served.connect(key) as socket:
            await send(socket, type="response.create", model="auto", input="hello", max_output_tokens=2)
            ended = (await until_end(lambda: receive(socket)))[0]["response"]["id"]
            await send(
                socket, type="response.create", model="auto", input="more", ignore_eos=True, max_output_tokens=900
            )
            running = (await receive(socket))["response"]["id"]
            directory = served.gateway.directory
            if loss == "deleted":
                await directory.delete(Key, "k", actor="test")
            else:
                stored = await directory.get(Key, "k")
                assert stored is not None
                await directory.write(msgspec.structs.replace(stored, scopes=["models"]), actor="test")
            await served.gateway.view.refresh()
            code = "invalid_api_key" if loss == "deleted" else "insufficient_scope"
            for event in (
                {"type": "response.cancel", "response_id": running},
                {"type": "response.resume", "response_id": ended, "starting_after": 0, "stream_id": "again"},
            ):
                await send(socket, **event)
                while (refusal := await receive(socket))["type"] != "error":
                    assert refusal.get("stream_id") is None
                assert refusal["error"]["code"] == code
            assert served.gateway.turns.running == 1
        await served.settle()


async def ask(served: Served, key: str, **headers: str) -> httpx2.Response:
    async with httpx2.AsyncClient(headers={"authorization": f"Bearer {key}", **headers}, verify=False) as client:
        return await client.get(f"{served.base_url}/models")


async def test_guessing_is_answered_with_429(serve: Serve) -> None:
    async with serve(server={"failed_keys_per_minute": 3}) as served:
        statuses = [(await ask(served, f"guess-{number}")).status_code for number in range(4)]
        assert statuses == [401, 401, 401, 429]
        refusal = await ask(served, KEY)
        assert refusal.status_code == 429
        assert refusal.json()["error"]["code"] == "too_many_failures"
        assert 1 <= int(refusal.headers["retry-after"]) <= 20


async def test_guessing_tickets_is_slowed_too(serve: Serve) -> None:
    async with serve(server={"failed_keys_per_minute": 3}) as served:
        statuses = []
        for number in range(4):
            with pytest.raises(InvalidStatus) as caught:
                async with served.connect(None, subprotocols=[f"roundhouse.ticket.{number:043}"]):
                    pass
            statuses.append(caught.value.response.status_code)
        assert statuses == [401, 401, 401, 429]


async def test_a_proxys_clients_are_told_apart_if_it_is_trusted(serve: Serve) -> None:
    proxied = {"failed_keys_per_minute": 1, "trusted_proxies": ["127.0.0.1"]}
    async with serve(server=proxied) as served:
        assert (await ask(served, "guess", **{"x-forwarded-for": "192.0.2.1"})).status_code == 401
        assert (await ask(served, KEY, **{"x-forwarded-for": "192.0.2.1"})).status_code == 429
        assert (await ask(served, KEY, **{"x-forwarded-for": "192.0.2.2"})).status_code == 200


async def test_anyone_elses_forwarded_header_is_not_believed(serve: Serve) -> None:
    async with serve(server={"failed_keys_per_minute": 1}) as served:
        assert (await ask(served, "guess", **{"x-forwarded-for": "192.0.2.1"})).status_code == 401
        assert (await ask(served, KEY, **{"x-forwarded-for": "192.0.2.2"})).status_code == 429


async def test_a_gateway_with_another_secret_does_not_start(redis_url: str, model: Path, tmp_path: Path) -> None:
    settings = msgspec.structs.replace(
        demo_settings(),
        redis=RedisSettings(url=redis_url, timeout=5.0, data=str(tmp_path)),
        pools=[PoolSettings(tier="small", name="tiny", model=str(model), engines=[f"unix://{tmp_path}/none.sock"])],
    )
    async with Redis.from_url(redis_url) as redis:
        await redis.flushall()
        await redis.set(FINGERPRINT_KEY, "0" * 64)
        with pytest.raises(SettingsError, match="ROUNDHOUSE_SECRET"):
            async with running(Configuration(settings)):
                pass
        await redis.flushall()
        async with running(Configuration(settings)):
            assert await redis.get(FINGERPRINT_KEY)
