"""The installation's secret."""

from __future__ import annotations

import base64
import stat
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from redis.asyncio import Redis

from gateway.access.identity.secret import FINGERPRINT_KEY, check, derive, installation_secret
from gateway.config.settings import RedisSettings, Settings, SettingsError

SECRET = bytes(range(32))


@pytest.fixture
async def redis(redis_url: str) -> AsyncIterator[Redis]:
    client = Redis.from_url(redis_url)
    await client.flushdb()
    yield client
    await client.aclose()


def settings(folder: Path) -> Settings:
    return Settings(redis=RedisSettings(data=str(folder)))


def test_it_is_made_once_and_only_its_owner_may_read_it(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    secret = installation_secret(settings(folder), {})
    assert len(secret) == 32
    assert installation_secret(settings(folder), {}) == secret == (folder / "secret").read_bytes()
    assert stat.S_IMODE((folder / "secret").stat().st_mode) == 0o600
    assert [path.name for path in folder.iterdir()] == ["secret"]


def test_two_processes_that_start_at_once_get_the_same(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        secrets = set(pool.map(lambda _: installation_secret(settings(tmp_path), {}), range(32)))
    assert len(secrets) == 1


@pytest.mark.parametrize("text", [SECRET.hex(), base64.urlsafe_b64encode(SECRET).decode().rstrip("=")])
def test_the_environment_goes_first(tmp_path: Path, text: str) -> None:
    assert installation_secret(settings(tmp_path), {"ROUNDHOUSE_SECRET": text}) == SECRET
    assert not (tmp_path / "secret").exists()


@pytest.mark.parametrize("text", ["password", "0" * 63, "0" * 65, "g" * 64, "é" * 43])
def test_another_form_is_refused_and_not_repeated(tmp_path: Path, text: str) -> None:
    with pytest.raises(SettingsError, match="ROUNDHOUSE_SECRET") as caught:
        installation_secret(settings(tmp_path), {"ROUNDHOUSE_SECRET": text})
    assert text not in str(caught.value)


def test_a_file_that_others_can_read_is_refused(tmp_path: Path) -> None:
    installation_secret(settings(tmp_path), {})
    (tmp_path / "secret").chmod(0o640)
    with pytest.raises(SettingsError, match="chmod 600"):
        installation_secret(settings(tmp_path), {})


def test_a_damaged_file_is_refused_and_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(b"short")
    (tmp_path / "secret").chmod(0o600)
    with pytest.raises(SettingsError, match="32 bytes"):
        installation_secret(settings(tmp_path), {})
    assert (tmp_path / "secret").read_bytes() == b"short"


def test_purposes_do_not_share_a_secret() -> None:
    assert len({SECRET, derive(SECRET, "a"), derive(SECRET, "b")}) == 3


@pytest.mark.anyio
async def test_gateways_of_one_redis_must_share_it(redis: Redis) -> None:
    assert await check(redis, SECRET)
    assert await check(redis, SECRET)
    assert await check(redis, bytes(32)) is False
    assert await check(redis, SECRET)
    assert SECRET not in await redis.get(FINGERPRINT_KEY)


@pytest.mark.anyio
async def test_without_redis_nothing_can_be_compared() -> None:
    client = Redis.from_url("unix:///nonexistent/redis.sock")
    assert await check(client, SECRET) is None
    await client.aclose()


def test_the_fingerprint_is_documented() -> None:
    assert f"`{FINGERPRINT_KEY}`" in Path("docs/redis-keys.md").read_text("utf-8")
