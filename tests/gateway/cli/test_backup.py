"""`roundhouse backup` and `restore`: what is in the file, what is refused, and that all of it comes back."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from redis.asyncio import Redis

from gateway.access.directory.schema import HEAD_KEY
from gateway.access.directory.store import Directory
from gateway.billing.store import LedgerStore, Numbered
from gateway.cli import backup_keys
from gateway.cli.backup_file import BackupHeader, BackupWriter, DamagedBackup, KeyFrame, PartFrame, read
from gateway.cli.root import main
from gateway.config.settings import Settings, TurnSettings, UsageSettings
from gateway.limits.limiter import Limiter
from gateway.processes.redis_server import claim
from gateway.protocol.prompts import PromptWrite
from gateway.protocol.requests import Message
from gateway.records.directory import Key, Tenant
from gateway.records.quota import Amounts, LimitSubject, Quota
from gateway.storage.presence import Presence
from gateway.storage.seal import Seal
from gateway.turns.conversations import Conversations
from gateway.turns.prompts import Prompts
from tests.conftest import redis_server
from tests.gateway.billing.test_ledger import entry
from tests.redis_topologies import cluster, cluster_url

pytestmark = pytest.mark.anyio

SECRET = "5" * 64
SUBJECTS = (LimitSubject("tenant", Quota(spend_per_day=1000)),)
AMOUNTS = Amounts(requests=1, turns=1, spend=500)


@pytest.fixture(scope="module")
def second() -> Iterator[str]:
    """Another server."""
    with redis_server() as url:
        yield url


@pytest.fixture(autouse=True)
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ROUNDHOUSE_SECRET", SECRET)


@pytest.fixture
async def redis(redis_url: str, second: str) -> AsyncIterator[Redis]:
    """A server with something of each family, and heartbeats and caches, which are in no backup."""
    async with Redis.from_url(second) as other:
        await other.flushall()
    async with Redis.from_url(redis_url) as redis:
        await redis.flushall()
        await filled(redis)
        yield redis


async def filled(redis: Redis) -> None:
    directory = Directory(redis, secret=bytes.fromhex(SECRET))
    await directory.write(Tenant(name="acme"), actor="test")
    for number in range(70):
        await directory.write(Key(id=f"key_{number}", tenant="acme", digest=f"{number:064x}"), actor="test")
    entries = [Numbered(number, entry(number)) for number in range(1, 200)]
    await LedgerStore(redis, UsageSettings()).write("writer", entries)
    limiter = Limiter(redis, Settings())
    ended = await limiter.reserve("acme", "t1", AMOUNTS, SUBJECTS)
    await limiter.settle(ended, Amounts(spend=300))
    await limiter.reserve("acme", "t2", AMOUNTS, SUBJECTS)  # runs, and never ends
    conversations = Conversations(redis, Seal(b"k" * 32), TurnSettings())
    await conversations.create("acme", "conv_" + "1" * 32, {}, {"a": Message(role="user", content="Hello")})
    await Prompts(redis, b"k" * 32).create("acme", "prompt_1", PromptWrite("a", "b"))
    await redis.hset("rh1:resp:{acme}:1", "text", "cached")  # type: ignore[misc]


def roundhouse(url: str, *words: str) -> Result:
    return CliRunner().invoke(main, words, env={"ROUNDHOUSE_REDIS_URL": url})


async def command(url: str, *words: str) -> Result:
    """In a thread: the command has a loop of its own."""
    return await asyncio.to_thread(roundhouse, url, *words)


async def contents(redis: Redis) -> dict[bytes, Any]:
    found: dict[bytes, Any] = {}
    for node in await backup_keys.nodes(redis):
        async for key in node.scan_iter():
            match (await node.type(key)).decode():
                case "hash":
                    found[key] = await node.hgetall(key)  # type: ignore[misc]
                case "zset":
                    found[key] = await node.zrange(key, 0, -1, withscores=True)
                case "stream":
                    found[key] = await node.xrange(key)
                case _:
                    found[key] = await node.get(key)
    return found


async def test_everything_comes_back_and_nothing_else(redis: Redis, redis_url: str, second: str) -> None:
    done = await command(redis_url, "backup", "all.backup", "--all")
    assert done.exit_code == 0, done.output
    assert Path("all.backup").stat().st_mode & 0o077 == 0  # noqa: ASYNC240
    done = await command(second, "restore", "all.backup")
    assert done.exit_code == 0, done.output
    async with Redis.from_url(second) as other:
        before, after = await contents(redis), await contents(other)
        assert int(before.pop(b"rh1:backup")) == pytest.approx((await redis.time())[0], abs=60)
        spent = b"rh1:limit:{acme}"
        for key in (b"rh1:resp:{acme}:1", b"rh1:limit-held:{acme}", b"rh1:limit-lease:{acme}", spent):
            before.pop(key)
        assert after.pop(spent)[b"tenant"].split()[1:9] == [b"0"] * 8
        assert before == after
        assert await other.pttl("rh1:conversation:{acme}:conv_" + "1" * 32) > 0
        limiter = Limiter(other, Settings())
        [reading] = (await limiter.read("acme", SUBJECTS)).readings
        assert reading.remaining == 700
        directory = Directory(other, secret=bytes.fromhex(SECRET))
        assert await directory.key_by_digest(f"{7:064x}") is not None
        await directory.write(Tenant(name="new"), actor="test")
    for words in (("audit", "verify"), ("usage", "verify", "--from", "2026-11-20", "--to", "2026-11-25")):
        done = await command(second, *words)
        assert done.exit_code == 0, done.output
    report = ("usage", "--json", "--from", "2026-11-20", "--to", "2026-11-25", "--by", "model")
    one, two = [json.loads((await command(url, *report)).stdout) for url in (redis_url, second)]
    assert one == two and one["total"]["turns"] == 199


async def test_without_all_no_text_is_copied(redis: Redis, redis_url: str) -> None:
    assert (await command(redis_url, "backup", "some.backup")).exit_code == 0
    names = {frame.name for _, frame in read(Path("some.backup")) if isinstance(frame, KeyFrame)}
    assert not [name for name in names if name.startswith((b"rh1:conversation", b"rh1:resp", b"rh1:limit-held"))]
    assert b"rh1:{directory}:audit" in names and b"rh1:usage-day:{acme}:20261122" in names


async def test_a_backup_of_a_server_becomes_a_cluster(redis: Redis, redis_url: str) -> None:
    assert (await command(redis_url, "backup", "all.backup", "--all")).exit_code == 0
    with cluster() as nodes:
        done = await command(cluster_url(nodes), "restore", "all.backup")
        assert done.exit_code == 0, done.output
        done = await command(cluster_url(nodes), "backup", "again.backup", "--all")
        assert done.exit_code == 0, done.output
    held = [
        {frame.name for _, frame in read(Path(name)) if isinstance(frame, KeyFrame)}
        for name in ("all.backup", "again.backup")
    ]
    assert held[0] == held[1]


async def test_what_exists_is_not_overwritten(redis: Redis, redis_url: str) -> None:
    Path("old.backup").write_text("precious")  # noqa: ASYNC240
    done = await command(redis_url, "backup", "old.backup")
    assert done.exit_code == 1 and "old.backup exists; it is not overwritten" in done.output
    assert Path("old.backup").read_text() == "precious"  # noqa: ASYNC240


async def test_a_redis_that_is_not_empty_is_refused_unless_forced(redis: Redis, redis_url: str, second: str) -> None:
    assert (await command(redis_url, "backup", "some.backup")).exit_code == 0
    async with Redis.from_url(second) as other:
        await Directory(other, secret=bytes.fromhex(SECRET)).write(Tenant(name="old"), actor="test")
        done = await command(second, "restore", "some.backup")
        assert done.exit_code == 1 and "not empty" in done.output
        done = await command(second, "restore", "some.backup", "--force")
        assert done.exit_code == 0, done.output
        directory = Directory(other, secret=bytes.fromhex(SECRET))
        assert await directory.get(Tenant, "old") is None and await directory.get(Tenant, "acme") is not None


async def test_nothing_is_deleted_under_a_living_gateway_unless_told(redis: Redis, redis_url: str, second: str) -> None:
    assert (await command(redis_url, "backup", "some.backup")).exit_code == 0
    async with Redis.from_url(second) as other:
        gateway = Presence(other)
        await gateway.beat()
        await Directory(other, secret=bytes.fromhex(SECRET)).write(Tenant(name="old"), actor="test")
        before = await contents(other)
        done = await command(second, "restore", "some.backup", "--force")
        assert done.exit_code == 1 and f"1 gateways use this Redis ({gateway.id})" in done.output
        assert await contents(other) == before
        done = await command(second, "restore", "some.backup", "--force", "--with-gateways")
        assert done.exit_code == 0, done.output
        assert await Directory(other, secret=bytes.fromhex(SECRET)).get(Tenant, "old") is None


async def test_another_installation_s_backup_is_refused(
    redis: Redis, redis_url: str, second: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (await command(redis_url, "backup", "some.backup")).exit_code == 0
    monkeypatch.setenv("ROUNDHOUSE_SECRET", "6" * 64)
    done = await command(second, "restore", "some.backup")
    assert done.exit_code == 1 and "another secret" in done.output
    async with Redis.from_url(second) as other:
        assert await other.dbsize() == 0


@pytest.mark.parametrize(("part", "how"), [(0.0, "flipped"), (0.3, "cut"), (0.3, "flipped"), (1.0, "cut")])
async def test_a_damaged_file_is_refused_before_anything_is_written(
    redis: Redis, redis_url: str, second: str, part: float, how: str
) -> None:
    assert (await command(redis_url, "backup", "some.backup")).exit_code == 0
    file = Path("some.backup")
    data = bytearray(file.read_bytes())  # noqa: ASYNC240
    place = int(part * (len(data) - 1))
    if how == "cut":
        del data[place:]
    else:
        data[place] ^= 1
    file.write_bytes(data)  # noqa: ASYNC240
    done = await command(second, "restore", "some.backup")
    assert done.exit_code == 1 and "some.backup: " in done.output
    async with Redis.from_url(second) as other:
        assert await other.dbsize() == 0


async def test_a_directory_that_changes_meanwhile_is_copied_again(redis: Redis, tmp_path: Path) -> None:
    """What is in the file is the directory of one moment."""
    directory, changed = Directory(redis, secret=bytes.fromhex(SECRET)), 0
    pending: list[asyncio.Task[Any]] = []

    def copied(family: str) -> None:
        nonlocal changed
        if changed < 3:
            changed += 1
            pending.append(asyncio.create_task(directory.write(Tenant(name=f"late-{changed}"), actor="test")))

    with BackupWriter(tmp_path / "busy.backup") as out:
        out.write(BackupHeader(created=0, fingerprint="", families=[], adapters={}))
        await backup_keys.copy_all(redis, out, ["directory"], copied)
        out.end()
    assert len(pending) == 3
    fields: dict[bytes, dict[bytes, bytes]] = {}
    name = b""
    for _, frame in read(tmp_path / "busy.backup"):
        if isinstance(frame, KeyFrame):
            name = frame.name
        elif isinstance(frame, PartFrame):
            fields.setdefault(name, {}).update(zip(frame.items[::2], frame.items[1::2], strict=True))
    assert fields[HEAD_KEY.encode()] == await redis.hgetall(HEAD_KEY)  # type: ignore[misc]
    assert {f"late-{number}".encode() for number in (1, 2, 3)} <= fields[b"rh1:{directory}:tenant"].keys()


async def test_a_backup_during_which_the_directory_changed_can_be_restored(
    redis: Redis, redis_url: str, second: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy_all = backup_keys.copy_all

    async def after_a_change(client: Redis, *rest: Any) -> None:
        await Directory(client, secret=bytes.fromhex(SECRET)).write(Tenant(name="late"), actor="test")
        await copy_all(client, *rest)

    monkeypatch.setattr(backup_keys, "copy_all", after_a_change)
    assert (await command(redis_url, "backup", "some.backup")).exit_code == 0
    done = await command(second, "restore", "some.backup")
    assert done.exit_code == 0, done.output
    async with Redis.from_url(second) as other:
        assert await Directory(other, secret=bytes.fromhex(SECRET)).get(Tenant, "late") is not None


def test_no_second_server_writes_to_the_files_of_one_that_is_starting() -> None:
    with claim(Path(".data")):
        done = CliRunner().invoke(main, ["backup", "some.backup"])
    assert done.exit_code == 1 and "is starting or ending" in done.output
    assert not Path(".data/redis").exists() and not Path("some.backup").exists()


def test_a_backup_that_fails_leaves_no_file(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="disk"), BackupWriter(tmp_path / "x") as out:
        out.write(PartFrame([b"1"]))
        raise OSError("disk")
    assert not (tmp_path / "x").exists()


def test_a_later_format_is_refused(tmp_path: Path) -> None:
    header = BackupHeader(version=2, created=0, fingerprint="", families=[], adapters={})
    with BackupWriter(tmp_path / "x") as out:
        out.write(header)
        out.end()
    with pytest.raises(DamagedBackup, match="its format is 2"):
        list(read(tmp_path / "x"))
