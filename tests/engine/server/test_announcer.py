"""An engine's lease in a real Redis."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
from redis.asyncio import Redis

from engine.registration import INDEX_KEY, LEASE_KEY, LIFETIME, Lease, opened
from engine.server import announcer as announcer_module
from engine.server.announcer import Announcer, read_key
from engine.tls import Certificate
from tests.engine.test_registration import KEY, LEASE

pytestmark = pytest.mark.anyio

AT = LEASE_KEY.format(pool="small", id=LEASE.id)
INDEX = INDEX_KEY.format(pool="small")


@pytest.fixture
async def redis(redis_url: str) -> AsyncIterator[Redis]:
    async with Redis.from_url(redis_url) as redis:
        await redis.flushall()
        yield redis


async def test_a_lease_is_there_while_the_engine_serves(
    redis: Redis, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(announcer_module, "RENEWAL_SECONDS", 0.01)
    lease = LEASE

    async def told() -> str | None:
        value = await redis.get(AT)
        return None if value is None else opened(value, KEY, pool="small", id=LEASE.id, now=LEASE.time).state

    async with Announcer(redis_url, KEY).announced(lambda: lease):
        async with asyncio.timeout(20):
            for state in ("ready", "draining"):
                lease = msgspec.structs.replace(LEASE, state=state)
                while await told() != state:  # noqa: ASYNC110  Redis has no event for it
                    await asyncio.sleep(0.01)
        assert 0 < await redis.pttl(AT) <= 1000 * LIFETIME
        assert await redis.zrange(INDEX, 0, -1) == [LEASE.id.encode()]
        assert await redis.ttl(INDEX) > 0
    assert not await redis.exists(AT, INDEX)


async def test_an_engine_costs_little_more_than_one_command_a_second(
    redis: Redis, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A write a second, and five times less often its entry in the index."""
    assert (announcer_module.RENEWAL_SECONDS, announcer_module.INDEX_SECONDS) == (1, 5)
    monkeypatch.setattr(announcer_module, "RENEWAL_SECONDS", 0.01)
    monkeypatch.setattr(announcer_module, "INDEX_SECONDS", 3600.0)

    async def calls(name: str) -> int:
        return int((await redis.info("commandstats")).get(f"cmdstat_{name}", {"calls": 0})["calls"])

    await redis.config_resetstat()
    async with Announcer(redis_url, KEY).announced(lambda: LEASE), asyncio.timeout(20):
        while await calls("set") < 10:  # noqa: ASYNC110  Redis has no event for it
            await asyncio.sleep(0.01)
        assert await calls("zadd") == 1
        monkeypatch.setattr(announcer_module, "INDEX_SECONDS", 0.0)
        while await calls("zadd") < 3:  # noqa: ASYNC110  Redis has no event for it
            await asyncio.sleep(0.01)


async def test_without_redis_the_engine_serves_on(
    redis: Redis, redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is told once, and the index has it again as soon as Redis does."""
    monkeypatch.setattr(announcer_module, "RENEWAL_SECONDS", 0.01)
    tries = 0

    def lease() -> Lease:
        nonlocal tries
        tries += 1
        return LEASE

    async with Announcer(f"unix://{tmp_path}/none.sock", KEY).announced(lease), asyncio.timeout(20):
        while tries < 4:  # noqa: ASYNC110  nothing announces it
            await asyncio.sleep(0.01)
    assert [record.getMessage() for record in caplog.records if "not announced" in record.getMessage()] == [
        "not announced: Redis does not answer (ConnectionError)"
    ]


async def test_what_nobody_expected_ends_no_renewal(
    redis: Redis, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An engine whose lease could not be made once announces itself with the next."""
    monkeypatch.setattr(announcer_module, "RENEWAL_SECONDS", 0.01)
    leases = iter([TypeError("none"), *[LEASE] * 10_000])

    def lease() -> Lease:
        if isinstance(given := next(leases), Exception):
            raise given
        return given

    async with Announcer(redis_url, KEY).announced(lease), asyncio.timeout(20):
        while not await redis.exists(AT):  # noqa: ASYNC110  Redis has no event for it
            await asyncio.sleep(0.01)


async def test_an_option_that_nobody_knows_ends_no_engine() -> None:
    async with Announcer("redis://127.0.0.1:1?nothing=1", KEY).announced(lambda: LEASE):
        await asyncio.sleep(0.05)


@pytest.mark.parametrize(
    "url", ["redis://:se/cret@host", "rediss://u:se#cret@host", "redis://u:se?cret@host", "se://x"]
)
def test_an_address_that_cannot_be_read_is_not_told(url: str) -> None:
    """It may hold a password, and the message goes to the log."""
    with pytest.raises(ValueError, match="--register: ") as refused:
        Announcer(url, KEY)
    assert "se" not in str(refused.value).replace("sentinel", "")


def test_certificates_that_are_of_no_use_are_refused(tmp_path: Path) -> None:
    files = Certificate(str(tmp_path / "none.pem"))
    for url, says in (("rediss://host", "none.pem"), ("redis://host", "TLS"), ("cluster://host", "TLS")):
        with pytest.raises(ValueError, match=f"--register: .*{says}"):
            Announcer(url, KEY, files)


def test_a_key_is_read(tmp_path: Path) -> None:
    file = tmp_path / "engines.key"
    file.write_text(KEY.hex() + "\n")
    assert read_key(file) == KEY
    for wrong in ("", "zz", KEY.hex()[2:]):
        file.write_text(wrong)
        with pytest.raises(ValueError, match="64 hex digits"):
            read_key(file)
