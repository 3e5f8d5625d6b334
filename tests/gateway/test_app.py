"""How a gateway's parts begin and end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import NoReturn, cast
from unittest.mock import AsyncMock

import msgspec
import pytest
from redis.asyncio import Redis

from engine.adapters.registry import RegistryError
from gateway import app
from gateway.access.identity import secret
from gateway.app import running
from gateway.config.configuration import Configuration
from gateway.config.settings import AdapterSettings, PoolSettings, RedisSettings, Settings, SettingsError, demo_settings
from gateway.registration.registrar import Registrar
from tests.conftest import redis_server
from tests.gateway.conftest import eventually

pytestmark = pytest.mark.anyio


@pytest.fixture
async def empty(redis_url: str) -> str:
    """The address of a Redis in which no gateway has left a secret."""
    async with Redis.from_url(redis_url) as redis:
        await redis.flushall()
    return redis_url


def settings(redis_url: str, model: Path, data: Path, registry: str = "") -> Settings:
    """Of a gateway whose engine is not there."""
    return msgspec.structs.replace(
        demo_settings(),
        redis=RedisSettings(url=redis_url, data=str(data)),
        pools=[PoolSettings(tier="small", name="tiny", model=str(model), engines=[f"unix://{data}/none.sock"])],
        adapters=AdapterSettings(registry=registry),
    )


async def fault(*_: object, **__: object) -> NoReturn:
    raise LookupError("a fault")


@pytest.mark.parametrize("failing", ["adapters", "registrar"])
async def test_a_part_that_fails_to_start_leaves_nothing_running(
    failing: str, empty: str, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if failing == "registrar":
        monkeypatch.setattr(Registrar, "start", AsyncMock(side_effect=FileNotFoundError))
    configured = settings(empty, model, tmp_path, "nosuch://bucket" if failing == "adapters" else "")
    before = asyncio.all_tasks()
    with pytest.raises(RegistryError if failing == "adapters" else FileNotFoundError):
        async with running(Configuration(configured)):
            pass
    assert asyncio.all_tasks() == before
    assert list((tmp_path / "usage").iterdir()) == []  # the ledger has left its journal


async def test_ending_leaves_nothing_running(empty: str, model: Path, tmp_path: Path) -> None:
    before = asyncio.all_tasks()
    async with running(Configuration(settings(empty, model, tmp_path))):
        assert asyncio.all_tasks() > before
    assert asyncio.all_tasks() == before


async def test_ending_ends_while_redis_hangs(model: Path, tmp_path: Path) -> None:
    with redis_server() as url:
        async with Redis.from_url(url) as other:
            before = asyncio.all_tasks()
            async with asyncio.timeout(60):
                async with running(Configuration(settings(url, model, tmp_path))):
                    await other.client_pause(3_600_000)
            assert asyncio.all_tasks() == before


@pytest.mark.parametrize("first", [True, False])
async def test_it_starts_while_redis_is_full(first: bool, model: Path, tmp_path: Path) -> None:
    """As it goes on while Redis is full; with the secret of the others, where one of them has left it."""
    with redis_server() as url:
        if not first:
            async with running(Configuration(settings(url, model, tmp_path))):
                pass
        async with Redis.from_url(url) as other:
            await other.config_set("maxmemory", 1)
            async with running(Configuration(settings(url, model, tmp_path))) as gateway:
                assert gateway.comparison.same is (None if first else True)
            if not first:
                with pytest.raises(SettingsError, match="another secret"):
                    async with running(Configuration(settings(url, model, tmp_path / "second"))):
                        pass


@contextlib.asynccontextmanager
async def slow_at_the_secret(url: str, folder: Path, seconds: float) -> AsyncIterator[str]:
    """The address of a proxy of Redis that greets at once, but holds up what compares the secret."""
    lines: list[asyncio.Task[None]] = []

    async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):  # it has been cut
            while data := await reader.read(65_536):
                if secret.FINGERPRINT_KEY.encode() in data:
                    await asyncio.sleep(seconds)
                writer.write(data)
        writer.close()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        lines.append(cast("asyncio.Task[None]", asyncio.current_task()))
        to, back = await asyncio.open_unix_connection(url.removeprefix("unix://"))
        try:
            async with asyncio.TaskGroup() as ways:
                ways.create_task(pass_on(reader, back))
                ways.create_task(pass_on(to, writer))
        finally:
            for end in (writer, back):
                end.close()
                with contextlib.suppress(OSError):
                    await end.wait_closed()

    path = str(folder / "proxy.sock")
    async with await asyncio.start_unix_server(connected, path):
        yield f"unix://{path}"
        for line in lines:
            line.cancel()
        await asyncio.gather(*lines, return_exceptions=True)


async def test_another_secret_is_refused_also_by_a_slow_redis(empty: str, model: Path, tmp_path: Path) -> None:
    """It takes many times as long as a turn's command may."""
    async with running(Configuration(settings(empty, model, tmp_path / "first"))):
        pass
    async with slow_at_the_secret(empty, tmp_path, seconds=0.5) as url:
        with pytest.raises(SettingsError, match="another secret"):
            async with running(Configuration(settings(url, model, tmp_path / "second"))):
                pass


async def test_a_start_waits_for_redis_only_so_long_and_says_so(
    empty: str, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(app, "READ_TIMEOUT", 0.5)
    monkeypatch.setattr(secret, "NOTICE", 0.1)
    async with slow_at_the_secret(empty, tmp_path, seconds=3600) as url, asyncio.timeout(60):
        with caplog.at_level(logging.WARNING, "roundhouse.identity"):
            async with running(Configuration(settings(url, model, tmp_path))):
                assert [record.getMessage() for record in caplog.records if record.name == "roundhouse.identity"] == [
                    "the start waits for Redis, to compare the secret with that of other gateways",
                    "Redis does not answer or is full: the secret is not compared with that of other gateways yet",
                ]


async def test_failing_to_look_at_the_configuration_s_file_is_counted_and_tried_again(
    empty: str, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.app.WATCH_SECONDS", 0.001)
    monkeypatch.setattr(Configuration, "look", fault)
    configuration = Configuration(settings(empty, model, tmp_path), file=tmp_path / "roundhouse.toml")
    async with running(configuration) as gateway:
        registry = gateway.metrics.registry
        await eventually(
            lambda: (
                (registry.get_sample_value("roundhouse_background_failures_total", {"work": "configuration"}) or 0) > 1
            )
        )
