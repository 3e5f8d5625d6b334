"""Stored questions in a real Redis: what a look-up reads again, what ends them, what checks change."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from msgspec import structs
from redis.asyncio import Redis

from cache.questions.corrections import Corrections
from cache.questions.index import Hint
from cache.questions.store import SemanticStore, read_evidence
from cache.response import ALL
from cache.semantic.entry import EntryState, Thresholds
from cache.semantic.keys import answer_key, evidence_key, index_key, partition_key, phrasing_key
from cache.semantic.profile import profile, seal
from tests.cache.questions.conftest import SEAL, answer, check, responses, vector
from tests.conftest import redis_server

pytestmark = pytest.mark.anyio

NAME = ("acme", "p1")
SEALED = seal(profile("How high is Mont Blanc?"), b"secret")
HINT = Hint("q1", "d1", 0.99)
LEARN: dict[str, Any] = {"sigma": 1.0, "thresholds": Thresholds()}


async def stored(redis: Redis, **options: int) -> SemanticStore:
    """One question that leads to one answer."""
    store = SemanticStore(redis, SEAL, **options)
    await answer(responses(redis), "acme", "d1")
    assert await store.admit(NAME, "q1", "d1", SEALED, vector(1)) == 0
    return store


async def test_what_was_stored_is_found_with_its_answer(redis: Redis) -> None:
    found = await (await stored(redis)).read(NAME, [HINT])
    assert [(each.id, each.answer, each.similarity) for each in found.candidates] == [("q1", "d1", 0.99)]
    assert found.candidates[0].profile == SEALED and found.candidates[0].state is EntryState.PROBATION
    assert found.stored["d1"].text == "42" and not found.gone


async def test_redis_holds_no_word_of_the_question(redis: Redis) -> None:
    await stored(redis)
    fields = await redis.hgetall(phrasing_key(*NAME, "q1"))
    for word in (b"mont", b"blanc", b"high"):
        assert word not in b"".join(fields.values()).lower()


async def test_every_key_has_a_time_to_live(redis: Redis) -> None:
    """None lives longer than the answer, but the evidence."""
    store = await stored(redis)
    await store.record("acme", check(), **LEARN)
    for key in (phrasing_key(*NAME, "q1"), answer_key("acme", "d1"), partition_key(*NAME), index_key("acme")):
        assert 0 < await redis.pttl(key) <= 60_000
    assert await redis.pttl(evidence_key("acme")) > 0


@pytest.mark.parametrize(
    "how", ["deleted", "invalidated", "revoked", "phrasing deleted", "another answer", "elsewhere"]
)
async def test_what_is_not_there_any_more_is_no_candidate(redis: Redis, how: str) -> None:
    """Whatever the index still says."""
    store, hint, name = await stored(redis), HINT, NAME
    match how:
        case "deleted":
            await responses(redis).remove("acme", "d1")
        case "invalidated":
            await responses(redis).invalidate("acme", ALL)
        case "revoked":
            assert await Corrections(redis).revoke("acme", "d1")
        case "phrasing deleted":
            await redis.delete(phrasing_key(*NAME, "q1"))
        case "another answer":
            await answer(responses(redis), "acme", "d2")
            hint = Hint("q1", "d2", 0.99)
        case "elsewhere":
            name = ("acme", "p2")
    found = await store.read(name, [hint])
    if how == "revoked":
        assert [each.state for each in found.candidates] == [EntryState.REVOKED]
        assert await store.admit(NAME, "q2", "d1", SEALED, vector(1)) is None
    else:
        assert not found.candidates and found.gone == (hint,)


async def test_another_tenants_entries_are_not_there(redis: Redis) -> None:
    found = await (await stored(redis)).read(("other", "p1"), [HINT])
    assert not found.candidates and not found.stored


async def test_a_question_needs_an_answer_that_is_there(redis: Redis) -> None:
    """One that was evicted or invalidated meanwhile is not brought back."""
    store = SemanticStore(redis, SEAL)
    assert await store.admit(NAME, "q1", "gone", SEALED, vector(1)) is None
    assert await redis.keys("*sem*") == []


async def test_the_caps_hold(redis: Redis) -> None:
    """Of the tenant, and a quarter of it for one partition; the oldest go, with their keys."""
    store = await stored(redis, max_questions=8)

    async def add(partition: str, phrasing: str) -> None:
        await asyncio.sleep(0.002)  # so that its answer ends later
        await answer(responses(redis), "acme", f"of-{partition}-{phrasing}")
        await store.admit(("acme", partition), phrasing, f"of-{partition}-{phrasing}", SEALED, vector(1))

    for number in range(2, 5):
        await add(NAME[1], f"q{number}")
    assert await redis.zrange(partition_key(*NAME), 0, -1) == [b"q3", b"q4"]
    for partition in range(10):
        await add(f"x{partition}", "q")
    assert await redis.zcard(index_key("acme")) == 8
    assert len(await redis.keys("rh1:sem-q:*")) == 8
    assert not await redis.exists(partition_key(*NAME))


async def test_checks_move_answer_and_evidence(redis: Redis) -> None:
    """Three right ones verify; then wrong ones quarantine and revoke it."""
    store = await stored(redis)

    async def checked(correct: bool) -> EntryState:
        after = await store.record("acme", check(correct, logit=2.0, band=1), **LEARN)
        assert after is not None
        return after[0]

    assert [await checked(True) for _ in range(3)][-1] is EntryState.VERIFIED
    [candidate] = (await store.read(NAME, [HINT])).candidates
    assert candidate.support == 3 and candidate.offset is not None and candidate.offset.mean > 0
    after = [await checked(False) for _ in range(3)]
    assert after == [EntryState.QUARANTINED, EntryState.QUARANTINED, EntryState.REVOKED]
    compared = (await store.read(NAME, [HINT])).evidence.of(1)
    assert (round(compared.right), round(compared.wrong)) == (3, 3)
    assert (await read_evidence(redis, ["acme", "other"]))["acme"].of(1) == compared
    assert await store.record("acme", check(), **LEARN) is None


async def test_checks_at_the_same_time_are_all_counted(redis: Redis) -> None:
    """Of several gateways."""
    store = await stored(redis)
    done = await asyncio.gather(*(store.record("acme", check(), **LEARN) for _ in range(4)))
    assert all(done)
    found = await store.read(NAME, [HINT])
    assert found.candidates[0].support == 4 and round(found.evidence.of(0).right) == 4


async def test_a_check_of_what_was_not_to_be_served_is_no_evidence(redis: Redis) -> None:
    """Nor are those with another embedder or model."""
    store = await stored(redis)
    await store.record("acme", check(), **LEARN)
    await store.record("acme", check(band=None), **LEARN)
    found = (await store.read(NAME, [HINT])).evidence
    assert found.basis == "embedder:2" and round(found.of(0).total) == 1
    await store.record("acme", structs.replace(check(band=1), basis="another:2"), **LEARN)
    found = (await store.read(NAME, [HINT])).evidence
    assert found.basis == "another:2" and found.of(0).total == 0 and round(found.of(1).total) == 1


async def test_without_redis_nothing_is_found_and_nothing_raises() -> None:
    with redis_server() as url:
        pass
    async with Redis.from_url(url, socket_timeout=1) as gone:
        store = SemanticStore(gone, SEAL)
        assert await store.read(NAME, [HINT]) is None
        assert await store.admit(NAME, "q1", "d1", SEALED, vector(1)) is None
        assert await store.record("acme", check(), **LEARN) is None


@pytest.mark.parametrize("field", ["profile", "answer"])
async def test_what_something_else_wrote_is_as_good_as_absent(redis: Redis, field: str) -> None:
    store = await stored(redis)
    await redis.hset(phrasing_key(*NAME, "q1"), field, b"\xff{")
    assert not (await store.read(NAME, [HINT])).candidates
