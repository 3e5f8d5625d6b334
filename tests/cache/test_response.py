"""The response cache against a real Redis."""

from __future__ import annotations

import asyncio

import msgspec
import pytest
from redis.asyncio import Redis
from redis.exceptions import RedisError

from cache.keys import bytes_key, epochs_key, flight_key, index_key, response_key
from cache.policy import Reject
from cache.response import CachedAnswer, Lookup, LookupOutcome, ResponseCache, Wish, size_of
from cache.shape import DeltaShape
from gateway.storage.seal import Seal
from tests.conftest import redis_server

pytestmark = pytest.mark.anyio

SEAL = Seal(b"secret")
ENTRY = CachedAnswer(
    text="Grüße, 世界",
    shape=DeltaShape((3, 6), (1, 2), (7, 8, 9)),
    model="m",
    tier="small",
    input_tokens=5,
    output_tokens=3,
    tags=("faq", "v:1"),
)


def cache_over(redis: Redis, *, ttl: float = 60, max_entries: int = 100, max_bytes: int = 2**30) -> ResponseCache:
    return ResponseCache(redis, SEAL, ttl=ttl, max_entries=max_entries, max_bytes=max_bytes)


async def store(
    cache: ResponseCache, digest: str = "d1", tenant: str = "acme", entry: CachedAnswer = ENTRY
) -> int | Reject:
    """As a turn does that found nothing."""
    found = await cache.get(tenant, digest, Wish(tags=entry.tags))
    return await cache.put(tenant, digest, entry, found)


async def stored(cache: ResponseCache, digest: str = "d1", tenant: str = "acme") -> CachedAnswer | None:
    return (await cache.get(tenant, digest)).entry


def unstamped(entry: CachedAnswer | None) -> CachedAnswer | None:
    return None if entry is None else msgspec.structs.replace(entry, created=0.0)


async def test_what_was_stored_is_found(redis: Redis) -> None:
    cache = cache_over(redis)
    found = await cache.get("acme", "d1", Wish(tags=ENTRY.tags))
    assert (found.outcome, found.reason, found.entry) == (LookupOutcome.MISS, "absent", None)
    assert await cache.put("acme", "d1", ENTRY, found) == 0
    again = await cache.get("acme", "d1")
    assert (again.outcome, again.reason, unstamped(again.entry)) == (LookupOutcome.HIT, "stored", ENTRY)


async def test_tenants_never_share_an_entry(redis: Redis) -> None:
    cache = cache_over(redis)
    await store(cache)
    assert await stored(cache, tenant="globex") is None


async def test_an_operator_can_read_an_entry_but_its_text(redis: Redis) -> None:
    """Nor its tokens, its stop string, or what the tiers came to."""
    entry = msgspec.structs.replace(ENTRY, stop="Grüße", options="Grüße")
    await store(cache_over(redis), entry=entry)
    fields = await redis.hgetall(response_key("acme", "d1"))
    assert fields[b"output_tokens"] == b"3"
    assert fields[b"tags"] == b"faq v:1"
    assert set(fields) == {*(name.encode() for name in entry.fields), b"answer", b"created", b"epochs", b"size"}
    values = b"".join(fields.values())
    assert not any(word.encode() in values for word in ("Grüße", "世界")) and bytes(entry.shape.token_ids) not in values
    assert unstamped(await stored(cache_over(redis))) == entry


async def test_every_key_expires(redis: Redis) -> None:
    cache = cache_over(redis, ttl=60)
    await store(cache)
    await cache.get("acme", "d2", Wish(turn="resp_1"))
    await cache.invalidate("acme", "faq")
    keys = {key.decode() for key in await redis.keys("*")}
    assert keys == {
        response_key("acme", "d1"),
        index_key("acme"),
        bytes_key("acme"),
        epochs_key("acme"),
        flight_key("acme", "d2"),
    }
    assert all([await redis.pttl(key) > 0 for key in keys])
    assert await redis.ttl(response_key("acme", "d1")) <= 60


async def test_a_shorter_life_of_new_answers_leaves_the_index_to_the_old_ones(redis: Redis) -> None:
    """Or they would not count for the caps any more."""
    await store(cache_over(redis, ttl=1000))
    await store(cache_over(redis, ttl=10), "d2")
    assert await redis.ttl(index_key("acme")) > 900
    assert await redis.ttl(bytes_key("acme")) > 900


class TestInvalidation:
    """Epochs of a tenant and of tags."""

    async def test_is_seen_at_once_by_every_gateway(self, redis: Redis, redis_url: str) -> None:
        async with Redis.from_url(redis_url) as other:
            await store(cache_over(redis))
            await cache_over(other).invalidate("acme")
            found = await cache_over(redis).get("acme", "d1")
        assert (found.entry, found.reason) == (None, "invalidated")

    async def test_by_tag_reaches_those_that_have_it(self, redis: Redis) -> None:
        cache = cache_over(redis)
        for digest, tags in {"both": ("faq", "news"), "news": ("news",), "none": ()}.items():
            await store(cache, digest, entry=msgspec.structs.replace(ENTRY, tags=tags))
        await store(cache, "other", "globex")
        await cache.invalidate("acme", "faq")
        assert [bool(await stored(cache, digest)) for digest in ("both", "news", "none")] == [False, True, True]
        await cache.invalidate("acme", "news")
        assert [bool(await stored(cache, digest)) for digest in ("both", "news", "none")] == [False, False, True]
        assert await stored(cache, "other", "globex")

    @pytest.mark.parametrize("tag", ["*", "faq"])
    async def test_wins_over_an_answer_that_was_begun_before(self, redis: Redis, tag: str) -> None:
        cache = cache_over(redis)
        found = await cache.get("acme", "d1", Wish(turn="resp_1", tags=ENTRY.tags))
        await cache.invalidate("acme", tag)
        assert await cache.put("acme", "d1", ENTRY, found, "resp_1") is Reject.OUTDATED
        assert not await redis.exists(response_key("acme", "d1"))

    @pytest.mark.parametrize("tag", ["*", "faq"])
    async def test_keeps_later_turns_from_joining_an_answer_that_was_begun_before(self, redis: Redis, tag: str) -> None:
        cache = cache_over(redis)
        await cache.get("acme", "d1", Wish(turn="resp_1", tags=ENTRY.tags))
        assert (await cache.get("acme", "d1", Wish(turn="resp_2"))).leader == "resp_1"
        await cache.invalidate("acme", tag)
        assert (await cache.get("acme", "d1", Wish(turn="resp_3"))).outcome is LookupOutcome.LEAD

    async def test_can_be_repeated_in_the_same_moment(self, redis: Redis) -> None:
        cache = cache_over(redis)
        for _ in range(20):
            await store(cache)
            assert await stored(cache)
            await asyncio.gather(cache.invalidate("acme"), cache.invalidate("acme"))
            assert not await stored(cache)

    async def test_of_too_many_tags_forgets_everything(self, redis: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
        """What is remembered is bounded, and never too little is forgotten."""
        monkeypatch.setattr("cache.response.MAX_TAGS", 5)
        cache = cache_over(redis)
        await store(cache, entry=msgspec.structs.replace(ENTRY, tags=()))
        for number in range(4):
            await cache.invalidate("acme", f"tag{number}")
        assert await stored(cache)
        await cache.invalidate("acme", "tag5")
        assert not await stored(cache)
        assert await redis.hlen(epochs_key("acme")) == 1

    async def test_survives_the_loss_of_the_epochs(self, redis: Redis) -> None:
        """Redis may evict them: then nothing that was stored before is given any more."""
        cache = cache_over(redis)
        await store(cache)
        await cache.invalidate("acme", "faq")
        await redis.delete(epochs_key("acme"))
        assert not await stored(cache)
        assert not await stored(cache)  # also under the epoch that begins now


class TestRemoval:
    """Of one answer."""

    async def test_is_seen_at_once(self, redis: Redis, redis_url: str) -> None:
        async with Redis.from_url(redis_url) as other:
            await store(cache_over(redis))
            assert await cache_over(other).remove("acme", "d1")
            assert not await cache_over(other).remove("acme", "d1")
            assert not await stored(cache_over(redis))
        assert await redis.zcard(index_key("acme")) == 0
        assert await redis.get(bytes_key("acme")) == b"0"

    async def test_reaches_an_answer_in_the_making(self, redis: Redis) -> None:
        cache = cache_over(redis)
        found = await cache.get("acme", "d1", Wish(turn="resp_1"))
        await cache.remove("acme", "d1")
        assert await cache.put("acme", "d1", ENTRY, found, "resp_1") is Reject.OUTDATED


class TestCaps:
    """On number and bytes."""

    async def test_the_oldest_answers_leave_when_there_are_too_many(self, redis: Redis) -> None:
        cache = cache_over(redis, max_entries=3)
        for number in range(5):
            await store(cache, f"d{number}")
            await asyncio.sleep(0.002)
        assert [number for number in range(5) if await stored(cache, f"d{number}")] == [2, 3, 4]

    async def test_the_oldest_answers_leave_when_they_are_too_large(self, redis: Redis) -> None:
        cache = cache_over(redis, max_bytes=3 * size_of(ENTRY))
        for number in range(5):
            assert await store(cache, f"d{number}") == (number > 2)
            await asyncio.sleep(0.002)
        assert [number for number in range(5) if await stored(cache, f"d{number}")] == [2, 3, 4]
        assert await redis.get(bytes_key("acme")) == str(3 * size_of(ENTRY)).encode()

    async def test_hold_for_concurrent_stores(self, redis: Redis) -> None:
        cache = cache_over(redis, max_entries=10)
        evicted = await asyncio.gather(*(store(cache, f"d{number}") for number in range(50)))
        assert await redis.zcard(index_key("acme")) == 10
        assert len([key async for key in redis.scan_iter(match=response_key("acme", "*"))]) == 10
        assert sum(count or 0 for count in evicted) == 40

    async def test_count_what_is_stored_again_once(self, redis: Redis) -> None:
        cache = cache_over(redis)
        for text in ("a", "Grüße, 世界" * 9, "bc"):
            shape = DeltaShape((len(text),), (0,), ())
            entry = msgspec.structs.replace(ENTRY, text=text, shape=shape)
            found = await cache.get("acme", "d1", Wish(refresh=True))
            await cache.put("acme", "d1", entry, found)
        assert await redis.zcard(index_key("acme")) == 1
        assert await redis.get(bytes_key("acme")) == str(size_of(entry)).encode()

    async def test_forget_what_has_expired(self, redis: Redis) -> None:
        await store(cache_over(redis, ttl=0.05))
        while await redis.exists(response_key("acme", "d1")):  # noqa: ASYNC110  only Redis knows
            await asyncio.sleep(0.01)
        await store(cache_over(redis), "d2")
        assert await redis.zcard(index_key("acme")) == 1
        assert await redis.get(bytes_key("acme")) == str(size_of(ENTRY)).encode()

    async def test_survive_the_loss_of_the_sum(self, redis: Redis) -> None:
        cache = cache_over(redis)
        await store(cache)
        await redis.delete(bytes_key("acme"))
        await store(cache, "d2")
        assert await redis.get(bytes_key("acme")) == str(2 * size_of(ENTRY)).encode()


class TestConditions:
    """What a request wants of the cache."""

    async def test_a_refresh_finds_nothing_and_replaces(self, redis: Redis) -> None:
        cache = cache_over(redis)
        await store(cache)
        found = await cache.get("acme", "d1", Wish(refresh=True, turn="resp_1"))
        assert (found.outcome, found.reason) == (LookupOutcome.LEAD, "refresh")
        other = msgspec.structs.replace(ENTRY, tier="large", tags=())
        assert await cache.put("acme", "d1", other, found, "resp_1") == 0
        assert unstamped(await stored(cache)) == other

    async def test_a_refresh_follows_nobody(self, redis: Redis) -> None:
        cache = cache_over(redis)
        await cache.get("acme", "d1", Wish(turn="resp_1"))
        found = await cache.get("acme", "d1", Wish(turn="resp_2", refresh=True))
        assert (found.outcome, found.leader) == (LookupOutcome.MISS, None)
        assert await cache.put("acme", "d1", ENTRY, found) == 0

    async def test_an_age_is_by_the_clock_of_redis(self, redis: Redis) -> None:
        cache = cache_over(redis)
        await store(cache)
        made = float((await redis.hget(response_key("acme", "d1"), "created")).decode())
        seconds, _ = await redis.time()
        assert abs(made - seconds) < 60
        assert (await cache.get("acme", "d1", Wish(max_age=100))).entry
        await redis.hset(response_key("acme", "d1"), "created", str(made - 101))
        assert (await cache.get("acme", "d1", Wish(max_age=100))).reason == "stale"
        assert (await cache.get("acme", "d1")).entry


class TestFlights:
    """Who makes an answer, and who waits for it."""

    async def test_one_of_many_leads(self, redis: Redis) -> None:
        cache = cache_over(redis)
        found = await asyncio.gather(*(cache.get("acme", "d1", Wish(turn=f"resp_{n}")) for n in range(50)))
        (leader,) = (f"resp_{n}" for n, each in enumerate(found) if each.outcome is LookupOutcome.LEAD)
        assert {each.leader for each in found if each.outcome is LookupOutcome.JOIN} == {leader}
        assert sum(each.outcome is LookupOutcome.JOIN for each in found) == 49

    async def test_whoever_will_not_follow_does_not_lead_either(self, redis: Redis) -> None:
        cache = cache_over(redis)
        assert (await cache.get("acme", "d1", Wish(follow=False))).outcome is LookupOutcome.MISS
        assert not await redis.exists(flight_key("acme", "d1"))
        await cache.get("acme", "d1", Wish(turn="resp_1"))
        assert (await cache.get("acme", "d1", Wish(follow=False))).outcome is LookupOutcome.MISS

    async def test_ends_with_the_answer(self, redis: Redis) -> None:
        cache = cache_over(redis)
        found = await cache.get("acme", "d1", Wish(turn="resp_1"))
        await cache.put("acme", "d1", ENTRY, found, "resp_1")
        assert not await redis.exists(flight_key("acme", "d1"))
        assert (await cache.get("acme", "d1", Wish(turn="resp_2"))).outcome is LookupOutcome.HIT

    async def test_can_be_released_by_its_leader_only(self, redis: Redis) -> None:
        cache = cache_over(redis)
        await cache.get("acme", "d1", Wish(turn="resp_1"))
        await cache.release("acme", "d1", "resp_2")
        assert (await cache.get("acme", "d1", Wish(turn="resp_2"))).leader == "resp_1"
        await cache.release("acme", "d1", "resp_1")
        assert (await cache.get("acme", "d1", Wish(turn="resp_2"))).outcome is LookupOutcome.LEAD

    async def test_one_follower_of_a_leader_that_failed_takes_its_place(self, redis: Redis) -> None:
        """The others follow that one, and what the old leader may still say is not stored."""
        cache = cache_over(redis)
        old = await cache.get("acme", "d1", Wish(turn="resp_0"))
        found = [await cache.get("acme", "d1", Wish(turn=f"resp_{n}", failed="resp_0")) for n in range(1, 4)]
        assert [each.outcome for each in found] == [LookupOutcome.LEAD, LookupOutcome.JOIN, LookupOutcome.JOIN]
        assert found[1].leader == found[2].leader == "resp_1"
        assert await cache.put("acme", "d1", ENTRY, old, "resp_0") is Reject.OUTDATED

    async def test_ends_unless_its_lease_is_renewed(self, redis: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("cache.response.LEASE", 0.05)
        cache = cache_over(redis)
        await cache.get("acme", "d1", Wish(turn="resp_1"))
        monkeypatch.setattr("cache.response.LEASE", 30)
        await cache.renew([("acme", "d1")])
        assert await redis.pttl(flight_key("acme", "d1")) > 1000
        await redis.pexpire(flight_key("acme", "d1"), 1)
        wish = Wish(turn="resp_2")
        while (await cache.get("acme", "d1", wish)).outcome is not LookupOutcome.LEAD:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


@pytest.mark.parametrize(
    "fields",
    [
        {"format": "2"},
        {"output_tokens": "many"},
        {"model": b"\xff\xfe"},
        {"answer": "Grüße"},
        {"answer": Seal(b"another secret").seal(ENTRY.packed, response_key("acme", "d1"))},
        {"answer": SEAL.seal(ENTRY.packed, response_key("acme", "d2"))},
        {"answer": SEAL.seal(ENTRY.packed, response_key("globex", "d1"))},
        {"answer": SEAL.seal(b"", response_key("acme", "d1"))},
        {
            "answer": SEAL.seal(
                msgspec.structs.replace(ENTRY, text="Grüße").packed,
                response_key("acme", "d1"),
            )
        },
    ],
    ids=[
        *("other format", "wrong type", "not UTF-8", "not sealed", "another secret", "another answer"),
        *("another tenant's", "no answer", "another's shape"),
    ],
)
async def test_an_entry_that_cannot_be_read_is_a_miss(redis: Redis, fields: dict[str, str | bytes]) -> None:
    cache = cache_over(redis)
    await store(cache)
    await redis.hset(response_key("acme", "d1"), mapping=fields)  # type: ignore[arg-type]
    found = await cache.get("acme", "d1")
    assert (found.outcome, found.reason) == (LookupOutcome.MISS, "unreadable")
    assert await cache.put("acme", "d1", ENTRY, found) == 0
    assert await stored(cache)


@pytest.mark.parametrize("field", ["format", "epochs", "model", "answer", "created", "tags"])
async def test_a_missing_field_is_a_miss(redis: Redis, field: str) -> None:
    cache = cache_over(redis)
    await store(cache)
    await redis.hdel(response_key("acme", "d1"), field)
    assert await stored(cache) is None


async def test_keys_of_another_type_are_a_miss(redis: Redis) -> None:
    cache = cache_over(redis)
    await redis.set(response_key("acme", "d1"), "what is this")
    found = await cache.get("acme", "d1")
    assert found == Lookup(LookupOutcome.MISS, "unavailable")
    assert await cache.put("acme", "d1", ENTRY, found) is Reject.UNAVAILABLE


async def test_a_dead_redis_is_a_miss_and_never_an_error() -> None:
    server = redis_server()
    with server as url:
        client = Redis.from_url(url, socket_timeout=20, socket_connect_timeout=20)
        cache = cache_over(client)
        found = await cache.get("acme", "d1", Wish(turn="resp_1"))
        server.stop()
        assert await cache.get("acme", "d1") == Lookup(LookupOutcome.MISS, "unavailable")
        assert await cache.put("acme", "d2", ENTRY, found, "resp_1") is Reject.UNAVAILABLE
        await cache.release("acme", "d1", "resp_1")
        await cache.renew([("acme", "d1")])
        with pytest.raises((RedisError, OSError)):
            await cache.invalidate("acme")
        with pytest.raises((RedisError, OSError)):
            await cache.remove("acme", "d1")
        await client.aclose()
