"""`roundhouse tenant export` and `import`: a tenant moves from one cell, which is a Redis, to another."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from redis.asyncio import Redis

from gateway.access.directory.store import Directory
from gateway.access.identity.secret import derive, installation_secret
from gateway.cli.root import main
from gateway.config.settings import Settings, load
from gateway.limits.counters import Amounts
from gateway.limits.limiter import Limiter
from gateway.protocol.prompts import PromptWrite
from gateway.records.api_keys import digest
from gateway.records.directory import Key, Route, Target, Tenant, User
from gateway.records.quota import LimitSubject, Quota
from gateway.turns.prompts import Prompts
from tests.conftest import redis_server

pytestmark = pytest.mark.anyio

SUBJECTS = (LimitSubject("tenant", Quota(spend_per_month=1000)),)
KEY = "rh_of-acme"
PROMPTS = ["prompt_1", "prompt_2"]


@pytest.fixture(scope="module")
def other_url() -> Iterator[str]:
    """The other cell's Redis."""
    with redis_server() as url:
        yield url


@pytest.fixture
async def old(redis_url: str, other_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Redis]:
    """A cell in which acme has two users, 250 keys and a budget, of which it has spent 300."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ROUNDHOUSE_SECRET", "5" * 64)
    secret = installation_secret(load(None))
    async with Redis.from_url(redis_url) as redis, Redis.from_url(other_url) as other:
        await redis.flushall()
        await other.flushall()
        directory = Directory(redis, secret=secret)
        for name in ("acme", "neighbour"):
            await directory.write(Tenant(name=name, quota=SUBJECTS[0].quota, weight=2.0), actor="test")
        for number in range(2):
            user = User(id=f"user_{number}", tenant="acme", subject=f"anna-{number}")
            await directory.write(user, actor="test")
        await directory.write(Key(id="key_a", tenant="acme", user="user_1", digest=digest(KEY, secret)), actor="test")
        for number in range(249):
            await directory.write(Key(id=f"key_{number}", tenant="acme", digest=f"{number:064x}"), actor="test")
        route = Route(name="acme:a", targets=[Target(model="small", weight=1)], tenant="acme")
        await directory.write(route, actor="test")
        for id in PROMPTS:
            await library(redis).create("acme", id, PromptWrite(id, "b"))
        limiter = Limiter(redis, Settings())
        amounts = Amounts(requests=1, turns=1, spend=500)
        await limiter.settle(await limiter.reserve("acme", "t1", amounts, SUBJECTS), Amounts(spend=300))
        await limiter.reserve("acme", "t2", amounts, SUBJECTS)  # still runs
        yield redis


def library(redis: Redis) -> Prompts:
    return Prompts(redis, derive(installation_secret(load(None)), "prompts"))


def roundhouse(url: str, *words: str) -> Result:
    return CliRunner().invoke(main, words, env={"ROUNDHOUSE_REDIS_URL": url})


async def command(url: str, *words: str, fails: bool = False) -> str:
    """In a thread: the command has a loop of its own."""
    done = await asyncio.to_thread(roundhouse, url, *words)
    assert (done.exit_code != 0) is fails, done.output
    return done.output


async def test_users_keys_and_spend_are_there_and_the_neighbour_is_not(
    old: Redis, redis_url: str, other_url: str
) -> None:
    assert "2 users and 250 keys" in await command(redis_url, "tenant", "export", "acme", "acme.json")
    assert Path("acme.json").stat().st_mode & 0o077 == 0  # noqa: ASYNC240
    assert "2 users and 250 keys" in await command(other_url, "tenant", "import", "acme.json")
    async with Redis.from_url(other_url) as redis:
        secret = installation_secret(load(None))
        directory = Directory(redis, secret=secret)
        tenant = await directory.get(Tenant, "acme")
        assert tenant is not None and (tenant.weight, tenant.quota) == (2.0, SUBJECTS[0].quota)
        key = await directory.key_by_digest(digest(KEY, secret))
        assert key is not None and (key.id, key.user) == ("key_a", "user_1")
        assert await directory.get(Tenant, "neighbour") is None
        assert [route.name for route in (await directory.page(Route, tenant="acme")).records] == ["acme:a"]
        [reading] = (await Limiter(redis, Settings()).read("acme", SUBJECTS)).readings
        assert reading.remaining == 700
        assert await redis.zscore("rh1:limit-tenants", "acme") is not None
        assert [prompt.id for prompt in await library(redis).all_of("acme")] == PROMPTS
    assert "the log is whole" in await command(other_url, "audit", "verify")


async def test_an_import_may_be_repeated_and_changes_nothing_then(old: Redis, redis_url: str, other_url: str) -> None:
    """A key that was revoked here stays so, so does a prompt that was deleted, and what was spent here stays spent."""
    await command(redis_url, "tenant", "export", "acme", "acme.json")
    await command(other_url, "tenant", "import", "acme.json")
    await command(other_url, "key", "revoke", "key_7")
    async with Redis.from_url(other_url) as redis:
        first = await library(redis).read("acme", PROMPTS[0])
        await library(redis).delete("acme", first.id, first.revision)
        limiter = Limiter(redis, Settings())
        spend = Amounts(requests=1, turns=1, spend=100)
        await limiter.settle(await limiter.reserve("acme", "t3", spend, SUBJECTS), spend)
        await command(other_url, "tenant", "import", "acme.json")
        assert await Directory(redis, secret=installation_secret(load(None))).get(Key, "key_7") is None
        [reading] = (await limiter.read("acme", SUBJECTS)).readings
        assert reading.remaining == 600
        assert [prompt.id for prompt in await library(redis).all_of("acme")] == PROMPTS[1:]


async def test_a_tenant_that_is_there_is_refused(old: Redis, redis_url: str, other_url: str) -> None:
    await command(redis_url, "tenant", "export", "acme", "acme.json")
    await command(other_url, "tenant", "add", "acme", "--weight", "3")
    said = await command(other_url, "tenant", "import", "acme.json", fails=True)
    assert "the tenant 'acme' exists already" in said
    assert json.loads(await command(other_url, "key", "list", "--tenant", "acme", "--json")) == []


async def test_another_secret_is_refused(
    old: Redis, redis_url: str, other_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Digests of keys are made with it."""
    await command(redis_url, "tenant", "export", "acme", "acme.json")
    monkeypatch.setenv("ROUNDHOUSE_SECRET", "6" * 64)
    assert "another secret" in await command(other_url, "tenant", "import", "acme.json", fails=True)


async def test_files_that_are_not_written_or_read(old: Redis, redis_url: str, other_url: str) -> None:
    Path("acme.json").write_text("{}")  # noqa: ASYNC240
    said = await command(redis_url, "tenant", "export", "acme", "acme.json", fails=True)
    assert "it is not overwritten" in said
    assert "is no exported tenant" in await command(other_url, "tenant", "import", "acme.json", fails=True)
    assert "no tenant 'nobody'" in await command(redis_url, "tenant", "export", "nobody", "n.json", fails=True)
    Path("roundhouse.toml").write_text('[[tenants]]\nname = "fixed"\n')  # noqa: ASYNC240
    assert "copy its [[tenants]] table" in await command(redis_url, "tenant", "export", "fixed", "f.json", fails=True)
    assert not Path("f.json").exists()  # noqa: ASYNC240
