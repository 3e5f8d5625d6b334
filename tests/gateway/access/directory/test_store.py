"""The directory in a real Redis: writes, reads, lists, refusals, idempotency."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
from redis.asyncio import Redis
from redis.exceptions import TimeoutError

from gateway.access.directory.change import Caps, Change, Configured, Delete, Idempotency, Note, Put
from gateway.access.directory.store import Directory
from gateway.errors import ApiError, Conflict, InvalidRequest, NotFound, PreconditionFailed, Unavailable
from gateway.records.directory import Key, Price, Record, Route, Target, Tenant, User
from gateway.records.quota import Quota
from tests.gateway.access.directory.conftest import SECRET, key

pytestmark = pytest.mark.anyio

ACME = Tenant(name="acme")
ANNA = User(id="user_1", tenant="acme", subject="anna")


def route(name: str, tenant: str | None = None) -> Route:
    return Route(name=name, targets=[Target(model="a", weight=1)], tenant=tenant)


async def put(directory: Directory, *records: Record) -> None:
    await directory.apply([Put(record) for record in records[:1]], actor="cli:test")
    for record in records[1:]:
        await directory.write(record, actor="cli:test")


class TestWrite:
    """What is written, and what is refused."""

    @pytest.mark.parametrize(
        "record",
        [
            Tenant(name="t", quota=Quota(requests_per_minute=5), model_quotas={"m": Quota()}, models=["m"], weight=0.5),
            Price(name="org/model:7b", input=1, output=2, cached_input=0),
            Route(name="chat", targets=[Target(model="a", weight=90), Target(model="b", weight=10)]),
        ],
        ids=lambda record: record.KIND,
    )
    async def test_it_can_be_read(self, directory: Directory, record: Record) -> None:
        """With the revision and times that it got."""
        written = await directory.write(record, actor="cli:test", expected=0)
        assert written.revision == 1
        assert written.created_at == written.updated_at > 0
        assert written == msgspec.structs.replace(
            record, revision=1, created_at=written.created_at, updated_at=written.updated_at
        )
        assert await directory.get(type(record), record.identity) == written

    async def test_redis_cli_shows_it(self, redis: Redis, directory: Directory) -> None:
        """As JSON, without what is default."""
        tenant = await directory.write(Tenant(name="acme", weight=2.0), actor="cli:test")
        shown = msgspec.json.decode(await redis.hget("rh1:{directory}:tenant", "acme"))
        times = {"created_at": tenant.created_at, "updated_at": tenant.updated_at}
        assert shown == {"revision": 1, **times, "name": "acme", "weight": 2.0, "services": ["standard", "batch"]}

    async def test_users_and_keys_are_found_by_what_they_present(self, directory: Directory) -> None:
        """Subject and digest."""
        await put(directory, ACME, ANNA, key(1, user="user_1"))
        assert await directory.user_by_subject("acme", "anna") == await directory.get(User, "user_1")
        assert await directory.key_by_digest(key(1).digest) == await directory.get(Key, "key_1")
        assert await directory.key_by_digest("f" * 64) is None
        assert await directory.user_by_subject("acme", "bob") is None

    async def test_a_new_digest_replaces_the_old_one(self, directory: Directory) -> None:
        """The old one leads nowhere."""
        await put(directory, ACME, key(1), key(1, digest="f" * 64))
        assert await directory.key_by_digest(key(1).digest) is None
        found = await directory.key_by_digest("f" * 64)
        assert found is not None and found.id == "key_1"

    async def test_several_changes_are_all_or_none(self, directory: Directory) -> None:
        """As when a key is rotated."""
        await put(directory, ACME, key(1))
        with pytest.raises(Conflict):
            same = Put(key(3, digest=key(2).digest))
            await directory.apply([Put(key(1, expires_at=5)), Put(key(2)), same], actor="x")
        old = await directory.get(Key, "key_1")
        assert old is not None and old.expires_at is None
        applied = await directory.apply(
            [Put(key(1, expires_at=5)), Put(key(2, replaces="key_1"), expected=0)], actor="x"
        )
        assert [record.revision for record in applied.records if record] == [3, 4]

    @pytest.mark.parametrize(
        ("change", "error", "message"),
        [
            (Put(ACME, 0), Conflict, "the tenant 'acme' exists already"),
            (Put(ACME, 7), PreconditionFailed, "it has revision 1, not 7"),
            (Put(Tenant(name="new"), 7), NotFound, "no tenant 'new'"),
            (Put(Tenant(name="a b")), InvalidRequest, r"tenant: Expected `str` matching regex .* - at `\$.name`"),
            (Put(Tenant(name="x", weight=0.0)), InvalidRequest, r">= 0.01 - at `\$.weight`"),
            (Put(key(9, tenant="other")), InvalidRequest, "no tenant 'other'"),
            (Put(key(9, user="user_9")), InvalidRequest, "the tenant has no user 'user_9'"),
            (Put(key(9, digest=key(1).digest)), Conflict, "another key has the same digest"),
            (Put(User(id="user_2", tenant="acme", subject="anna")), Conflict, "another user has the same subject"),
            (Put(key(1, tenant="demo")), InvalidRequest, "a key stays with its tenant"),
            (Put(Tenant(name="demo")), Conflict, "set in the configuration file"),
            (Put(key(9, id="demo")), Conflict, "set in the configuration file"),
            (Delete("key", "demo"), Conflict, "set in the configuration file"),
            (Delete("key", "key_9"), NotFound, "no key 'key_9'"),
            (Delete("key", "key_1", 1), PreconditionFailed, "it has revision 3, not 1"),
            (Delete("tenant", "acme"), Conflict, r"still has users \(1\)"),
            (Delete("user", "user_1"), Conflict, r"still has keys \(1\)"),
        ],
        ids=lambda value: value if isinstance(value, str) else "",
    )
    async def test_refusals(self, redis: Redis, change: Change, error: type[ApiError], message: str) -> None:
        """They change nothing, and leave no entry."""
        configured = Configured({"demo": Tenant(name="demo")}, {"demo": key(8, id="demo", tenant="demo")})
        directory = Directory(redis, configured=configured, secret=SECRET)
        await put(directory, ACME, ANNA, key(1, user="user_1"))
        before = await everything(redis)
        with pytest.raises(error, match=message):
            await directory.apply([change], actor="cli:test")
        assert await everything(redis) == before

    async def test_a_tenant_of_the_configuration_may_have_keys_here(self, redis: Redis) -> None:
        """Only the tenant itself is read-only."""
        directory = Directory(redis, configured=Configured({"acme": ACME}))
        assert (await directory.write(key(1), actor="cli:test")).revision == 1

    @pytest.mark.parametrize(
        ("caps", "record"),
        [
            (Caps(tenants=1), Tenant(name="b")),
            (Caps(users_per_tenant=1), User(id="user_2", tenant="acme", subject="b")),
            (Caps(keys_per_tenant=1), key(2)),
            (Caps(routes_per_tenant=1), route("acme:b", tenant="acme")),
            (Caps(routes=1), route("b")),
        ],
        ids=["tenants", "users", "keys", "routes of a tenant", "routes"],
    )
    async def test_caps(self, redis: Redis, caps: Caps, record: Record) -> None:
        """What is there may still be changed."""
        directory = Directory(redis, caps=caps)
        await put(directory, ACME, ANNA, key(1), route("acme:a", tenant="acme"))
        with pytest.raises(Conflict, match=r"there are 1 \w+ .*already; delete some first") as caught:
            await directory.write(record, actor="cli:test")
        assert caught.value.code == "directory_full"
        await put(directory, ACME, ANNA, key(1), route("acme:a", tenant="acme"))

    async def test_a_route_of_a_tenant(self, directory: Directory) -> None:
        """Is in the tenant's list, stays with it, and is gone before it."""
        await put(directory, ACME, route("a"), route("acme:a", tenant="acme"), route("acme:b", tenant="acme"))
        listed = (await directory.page(Route, tenant="acme")).records
        assert [each.name for each in listed] == ["acme:a", "acme:b"]
        assert len((await directory.page(Route)).records) == 3
        for other in (None, "nobody"):
            with pytest.raises(InvalidRequest, match=r"stays with its tenant|no tenant"):
                await directory.write(route("acme:a", tenant=other), actor="cli:test")
        with pytest.raises(Conflict, match=r"still has routes \(2\)"):
            await directory.delete(Tenant, "acme", actor="cli:test")
        for name in ("acme:a", "acme:b"):
            await directory.delete(Route, name, actor="cli:test")
        await directory.delete(Tenant, "acme", actor="cli:test")

    async def test_a_record_that_was_written_by_hand(self, redis: Redis, directory: Directory) -> None:
        """It is as if it were not there, cannot be overwritten, and harms no other."""
        await put(directory, ACME, Tenant(name="b"))
        await redis.hset("rh1:{directory}:tenant", "acme", "{")
        assert await directory.get(Tenant, "acme") is None
        assert [tenant.name for tenant in (await directory.page(Tenant)).records] == ["b"]
        with pytest.raises(Conflict, match=r"redis-cli HDEL 'rh1:\{directory\}:tenant' acme"):
            await directory.write(ACME, actor="cli:test")

    async def test_concurrent_writers_do_not_lose_each_other(self, redis: Redis) -> None:
        """Of gateways that know nothing of one another; of one revision only one wins."""
        directories = [Directory(redis, secret=SECRET) for _ in range(8)]
        await put(directories[0], ACME)
        await asyncio.gather(*(directory.write(key(n), actor=str(n)) for n, directory in enumerate(directories)))
        assert len((await directories[0].page(Key, tenant="acme")).records) == 8
        results = await asyncio.gather(
            *(
                directory.write(Tenant(name="acme", description=str(n)), actor=str(n), expected=1)
                for n, directory in enumerate(directories)
            ),
            return_exceptions=True,
        )
        refused = [result for result in results if isinstance(result, PreconditionFailed)]
        (written,) = (result for result in results if isinstance(result, Tenant))
        assert len(refused) == 7
        assert await directories[0].get(Tenant, "acme") == written
        assert (await directories[0].audit.verify())[1] is None

    @pytest.mark.parametrize("changes", [[Put(ACME), Put(ACME)], [Delete("tenant", "a"), Put(key(1))]])
    async def test_changes_that_cannot_be_made_together(self, directory: Directory, changes: list[Change]) -> None:
        """As each is decided on what there was before."""
        with pytest.raises(ValueError, match="different records"):
            await directory.apply(changes, actor="x")


class TestOnce:
    """A change with an idempotency key."""

    async def test_it_happens_once(self, directory: Directory) -> None:
        """Asked for again, it returns what it did then, even if the record has changed since."""
        once = Idempotency("a", "digest")
        first = await directory.apply([Put(ACME, 0)], actor="cli:test", once=once)
        await directory.write(Tenant(name="acme", weight=2.0), actor="cli:test")
        second = await directory.apply([Put(ACME, 0)], actor="cli:test", once=once)
        assert second.records == first.records
        assert (first.replayed, second.replayed) == (False, True)
        assert (await directory.audit.head()).sequence == 2

    async def test_another_request_is_refused(self, directory: Directory) -> None:
        """By its digest."""
        await directory.write(ACME, actor="cli:test", once=Idempotency("a", "digest"))
        with pytest.raises(Conflict, match="used for another request") as caught:
            await directory.write(Tenant(name="b"), actor="cli:test", once=Idempotency("a", "other"))
        assert caught.value.code == "idempotency_key_reused"

    async def test_actors_do_not_share_keys(self, directory: Directory) -> None:
        """What one chose says nothing to another."""
        await directory.write(ACME, actor="key:a", once=Idempotency("a", "digest"))
        await directory.write(Tenant(name="b"), actor="key:b", once=Idempotency("a", "other"))
        assert (await directory.audit.head()).sequence == 2

    async def test_it_is_forgotten_after_a_day(self, redis: Redis, directory: Directory) -> None:
        """Redis sees to that."""
        await directory.write(ACME, actor="cli:test", once=Idempotency("a", "digest"))
        (name,) = [name async for name in redis.scan_iter("rh1:{directory}:once:*")]
        assert 0 < await redis.ttl(name) <= 24 * 3600

    async def test_a_refused_change_is_not_remembered(self, directory: Directory) -> None:
        """It may succeed later."""
        once = Idempotency("a", "digest")
        with pytest.raises(InvalidRequest):
            await directory.write(key(1), actor="cli:test", once=once)
        await directory.write(ACME, actor="cli:test")
        assert (await directory.write(key(1), actor="cli:test", once=once)).revision == 2


class TestLostReplies:
    """Redis ran the script, but the answer did not arrive."""

    @pytest.fixture
    def lossy(self, redis: Redis, directory: Directory, monkeypatch: pytest.MonkeyPatch) -> Directory:
        """The reply of the next commit is lost."""
        commit = directory._commit

        async def lost(**arguments: Any) -> Any:
            monkeypatch.setattr(directory, "_commit", commit)
            await commit(**arguments)
            raise TimeoutError

        monkeypatch.setattr(directory, "_commit", lost)
        return directory

    async def test_the_change_is_found_to_be_made(self, lossy: Directory) -> None:
        """And is not made twice."""
        assert (await lossy.write(ACME, actor="cli:test", expected=0)).revision == 1
        assert (await lossy.audit.head()).sequence == 1

    async def test_a_command_that_the_client_library_repeats(
        self, redis: Redis, directory: Directory, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The second run finds the head moved by the first one."""
        commit = directory._commit

        async def twice(**arguments: Any) -> Any:
            await commit(**arguments)
            return await commit(**arguments)

        monkeypatch.setattr(directory, "_commit", twice)
        assert (await directory.write(ACME, actor="cli:test", expected=0)).revision == 1
        assert (await directory.audit.head()).sequence == 1

    async def test_without_redis(self) -> None:
        """Everything says that it is unavailable."""
        async with Redis.from_url("unix:///nonexistent/redis.sock") as nowhere:
            directory = Directory(nowhere)
            with pytest.raises(Unavailable):
                await directory.write(ACME, actor="cli:test")
            with pytest.raises(Unavailable):
                await directory.get(Tenant, "acme")
            with pytest.raises(Unavailable):
                await directory.page(Tenant)
            with pytest.raises(Unavailable):
                await directory.key_by_digest("f" * 64)
            with pytest.raises(Unavailable):
                await directory.audit.verify()


class TestPage:
    """Lists, page by page."""

    @pytest.mark.parametrize("limit", [1, 2, 3, 5, 6, 100])
    async def test_all_records_come_once_and_in_order(self, redis: Redis, limit: int) -> None:
        """Those of the configuration among them."""
        names = ["a", "b", "d", "e"]
        configured = Configured({name: Tenant(name=name) for name in ("c", "f")})
        directory = Directory(redis, configured=configured)
        await put(directory, *(Tenant(name=name) for name in reversed(names)))
        seen: list[str] = []
        after: str | None = ""
        while after is not None:
            page = await directory.page(Tenant, after=after, limit=limit)
            assert len(page.records) <= limit
            seen += [tenant.name for tenant in page.records]
            after = page.next
        assert seen == ["a", "b", "c", "d", "e", "f"]

    async def test_keys_of_a_tenant_or_a_user(self, directory: Directory) -> None:
        """Nobody else's."""
        await put(directory, ACME, Tenant(name="b"), ANNA, key(1), key(2, user="user_1"), key(3, tenant="b"))
        assert [record.id for record in (await directory.page(Key)).records] == ["key_1", "key_2", "key_3"]
        assert [record.id for record in (await directory.page(Key, tenant="acme")).records] == ["key_1", "key_2"]
        assert [record.id for record in (await directory.page(Key, user="user_1")).records] == ["key_2"]


async def test_a_note_is_an_entry_only(directory: Directory) -> None:
    """Of what is kept elsewhere."""
    note = Note("adapter.swap", "pirate", "acme", {"version": ["1f", "2e"], "long": "x" * 1000})
    await directory.apply([note], actor="key:ops")
    (entry,) = [logged.read() for logged in await directory.audit.read()]
    assert (entry.actor, entry.action, entry.subject, entry.tenant) == ("key:ops", "adapter.swap", "pirate", "acme")
    assert entry.changes["version"] == ["1f", "2e"]
    assert entry.changes["long"].startswith("sha256:")


async def everything(redis: Redis) -> dict[bytes, Any]:
    """All that is in Redis."""
    return {name: await redis.dump(name) async for name in redis.scan_iter()}
