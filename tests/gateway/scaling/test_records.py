"""What is written down of pools, and read by this version and others."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from redis.asyncio import Redis

from gateway.scaling.records import RECORD_KEY, PoolReason, PoolRecord, PoolRecords, PoolSize
from scale.reasons import ScaleReason, ScaleReasonKind

pytestmark = pytest.mark.anyio

REASON = PoolReason.of(
    ScaleReason(ScaleReasonKind.BOUNDS, {"bound": "max_replicas", "limit": 4, "target": 9}, alert=True)
)


def record(*reasons: PoolReason) -> PoolRecord:
    values: dict[str, Any] = {"min_replicas": 1, "max_replicas": 4, "ready": 4, "starting": 0, "draining": 0}
    return PoolRecord(**values, desired=4, offered=5.0, since=0.0, time=0.0, reasons=reasons)


async def read_with(redis: Redis, reasons: list[dict[str, Any]]) -> PoolSize:
    """A record whose reasons another version has written."""
    records = PoolRecords(redis)
    assert await records.write("small", record(), 1)
    await redis.hset(RECORD_KEY.format(pool="small"), "reasons", msgspec.json.encode(reasons))
    found = await records.read("small")
    assert found is not None
    return PoolSize.of("small", found)


async def test_a_reason_is_read_as_it_was_written_with_its_sentence_for_people(redis: Redis) -> None:
    """A version that knows no figures reads the sentence."""
    records = PoolRecords(redis)
    assert await records.write("small", record(REASON), 1)
    found = await records.read("small")
    assert found is not None and found.reasons == (REASON,)
    [written] = msgspec.json.decode(await redis.hget(RECORD_KEY.format(pool="small"), "reasons"))
    assert (written["kind"], written["text"], written["alert"]) == ("bounds", "max_replicas is 4, not 9", True)
    size = PoolSize.of("small", found)
    assert size.reasons == size.alerts == ["max_replicas is 4, not 9"]
    [cause] = size.causes
    assert (cause.kind, cause.sentence, cause.alert) == ("bounds", "{bound} is {limit}, not {target}", True)
    assert cause.figures == {"bound": "max_replicas", "limit": 4, "target": 9}


@pytest.mark.parametrize("kind", ["asleep", "load"])
async def test_a_reason_of_an_older_version_is_its_sentence(redis: Redis, kind: str) -> None:
    size = await read_with(redis, [{"kind": kind, "text": "as it was said then"}])
    [cause] = size.causes
    assert size.reasons == [cause.sentence] == ["as it was said then"]
    assert (cause.kind, cause.figures, cause.alert) == (kind, {}, False)


async def test_figures_of_a_later_version_that_make_no_sentence_here_leave_its_own(redis: Redis) -> None:
    told = {"kind": "weather", "text": "it rains 3 mm", "figures": {"mm": 3}, "alert": True, "since": 5}
    size = await read_with(redis, [told])
    [cause] = size.causes
    assert size.alerts == [cause.sentence] == ["it rains 3 mm"]
    assert cause.figures == {"mm": 3}
