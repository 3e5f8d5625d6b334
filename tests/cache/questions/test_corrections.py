"""Answers that people take back, in a real Redis."""

from __future__ import annotations

import pytest
from redis.asyncio import Redis
from redis.exceptions import RedisError

from cache.questions.corrections import Corrections
from cache.questions.index import Hint
from cache.questions.store import SemanticStore
from cache.semantic.entry import EntryState, Thresholds
from cache.semantic.keys import answer_key, given_key
from cache.semantic.profile import profile, seal
from cache.statistics import read
from tests.cache.questions.conftest import SEAL, answer, check, responses, vector
from tests.conftest import redis_server

pytestmark = pytest.mark.anyio

NAME = ("acme", "p1")


@pytest.fixture
async def store(redis: Redis) -> SemanticStore:
    """One question with an answer that three checks have verified, and that a response was answered with."""
    store = SemanticStore(redis, SEAL)
    await answer(responses(redis), "acme", "d1")
    assert await store.admit(NAME, "q1", "d1", seal(profile("How high is it?"), b"secret"), vector(1)) == 0
    for _ in range(3):
        assert await found_right(store) is not None
    await Corrections(redis).note("acme", "resp_1", "d1")
    return store


async def found_right(store: SemanticStore) -> EntryState | None:
    """The state after a check that finds the answer right."""
    after = await store.record("acme", check(band=None), sigma=1.0, thresholds=Thresholds())
    return None if after is None else after[0]


async def state(store: SemanticStore) -> EntryState:
    [candidate] = (await store.read(NAME, [Hint("q1", "d1", 0.99)])).candidates
    return candidate.state


async def test_a_doubted_answer_has_to_be_found_right_anew(store: SemanticStore, redis: Redis) -> None:
    """What it was found before counts no more."""
    corrections = Corrections(redis)
    assert await state(store) is EntryState.VERIFIED
    assert await corrections.doubt("acme", "resp_1")
    assert await state(store) is EntryState.QUARANTINED
    assert [await found_right(store) for _ in range(3)] == [
        EntryState.QUARANTINED,
        EntryState.QUARANTINED,
        EntryState.PROBATION,
    ]


async def test_a_revoked_answer_stays_revoked(store: SemanticStore, redis: Redis) -> None:
    corrections = Corrections(redis)
    assert await corrections.revoke("acme", "d1")
    assert await corrections.doubt("acme", "resp_1")
    assert await state(store) is EntryState.REVOKED
    assert await found_right(store) is None
    counted = (await read(redis, tenant="acme"))["acme"]
    assert (counted["semantic_revoked"], counted.get("semantic_quarantined", 0)) == (1, 0)


@pytest.mark.parametrize(
    ("tenant", "named"), [("other", "d1"), ("other", "resp_1"), ("acme", "resp_2"), ("acme", "d2")]
)
async def test_only_what_the_tenant_was_given_can_be_named(
    store: SemanticStore, redis: Redis, tenant: str, named: str
) -> None:
    assert not await Corrections(redis).revoke(tenant, named)
    assert await state(store) is EntryState.VERIFIED
    assert not await redis.exists(answer_key(tenant, "d2"))


async def test_a_note_ends_after_a_day(store: SemanticStore, redis: Redis) -> None:
    assert 0 < await redis.ttl(given_key("acme", "resp_1")) <= 24 * 3600


async def test_without_redis_a_note_is_lost_and_a_correction_says_so() -> None:
    with redis_server() as url:
        pass
    async with Redis.from_url(url, socket_timeout=1) as gone:
        await Corrections(gone).note("acme", "resp_1", "d1")
        with pytest.raises(RedisError):
            await Corrections(gone).revoke("acme", "d1")
