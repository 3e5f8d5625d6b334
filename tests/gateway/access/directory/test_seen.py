"""What was found stays known, what was not found is bounded, and a change is never missed."""

from __future__ import annotations

import asyncio
import math

import pytest

from gateway.access.directory.seen import UNKNOWN_SECONDS, RecordCache
from gateway.errors import RateLimited, Unavailable
from gateway.records.directory import Key
from tests.gateway.access.directory.conftest import key

pytestmark = pytest.mark.anyio


class Store:
    """What `RecordCache` looks into."""

    def __init__(self) -> None:
        self.records: dict[str, Key] = {}
        self.reads = 0
        self.now = 100.0

    async def read(self, digest: str) -> Key | None:
        self.reads += 1
        record = self.records.get(digest)
        await asyncio.sleep(0)
        return record

    def seen(self, **bounds: float) -> RecordCache[str, Key]:
        return RecordCache(self.read, lambda: self.now, **bounds)  # type: ignore[arg-type]


async def test_a_record_is_read_once() -> None:
    """Until it changes."""
    store = Store()
    store.records["a"] = key(1)
    seen = store.seen()
    assert seen.known("a") is None
    assert [await seen.find("a") for _ in range(3)] == [key(1)] * 3
    assert (seen.known("a"), store.reads) == (key(1), 1)
    store.records["a"] = key(1, disabled=True)
    seen.forget({"key_1": "a"})
    assert seen.known("a") is None
    assert await seen.find("a") == key(1, disabled=True)


async def test_other_records_stay() -> None:
    """When one changes."""
    store = Store()
    store.records |= {"a": key(1), "b": key(2)}
    seen = store.seen()
    await seen.find("a")
    await seen.find("b")
    seen.forget({"key_1": "a", "key_9": "i"})
    assert (seen.known("a"), seen.known("b")) == (None, key(2))
    seen.clear()
    assert seen.known("b") is None


async def test_what_is_unknown_is_read_once() -> None:
    """Until something changes, or a minute is over."""
    store = Store()
    seen = store.seen()
    assert [await seen.find("a") for _ in range(3)] == [None] * 3
    assert store.reads == 1
    store.records["a"] = key(1)
    store.now += UNKNOWN_SECONDS
    assert await seen.find("a") == key(1)
    assert await seen.find("b") is None
    store.records["b"] = key(2)
    seen.forget({"key_2": "b"})
    assert await seen.find("b") == key(2)


async def test_a_change_makes_nobody_ask_again_for_what_it_does_not_touch() -> None:
    """Names that are known not to exist stay so, and the read of another name stays good."""
    store = Store()
    seen = store.seen()
    assert [await seen.find(name) for name in "abc"] == [None] * 3
    finding = asyncio.create_task(seen.find("d"))
    await asyncio.sleep(0)
    seen.forget({})
    store.records["b"] = key(2)
    await finding
    seen.forget({"key_2": "b", "key_7": None})
    reads = store.reads
    assert [await seen.find(name) for name in "abcd"] == [None, key(2), None, None]
    assert store.reads == reads + 1


async def test_names_that_strangers_cannot_choose_are_not_rationed() -> None:
    store = Store()
    seen = store.seen(unknown_per_second=math.inf)
    for _ in range(2):
        assert await asyncio.gather(*(seen.find(str(number)) for number in range(3000))) == [None] * 3000


@pytest.mark.parametrize("change", ["forget", "clear"])
async def test_what_was_read_before_a_change_was_seen_is_not_kept(change: str) -> None:
    """A key that is revoked while it is looked up does not stay."""
    store = Store()
    store.records["a"] = key(1)
    seen = store.seen()
    finding = asyncio.create_task(seen.find("a"))
    await asyncio.sleep(0)
    assert store.reads == 1
    del store.records["a"]
    seen.forget({"key_1": None}) if change == "forget" else seen.clear()
    assert await finding == key(1)
    assert await seen.find("a") is None


async def test_both_caches_are_bounded() -> None:
    """The oldest go first."""
    store = Store()
    store.records |= {str(number): key(number) for number in range(5)}
    seen = store.seen(most_found=3, most_unknown=2)
    for number in range(5):
        await seen.find(str(number))
    assert [seen.known(str(number)) is not None for number in range(5)] == [False, False, True, True, True]
    await seen.find("2")
    await seen.find("0")
    assert [seen.known(str(number)) is not None for number in range(5)] == [True, False, True, False, True]
    for name in "xyz":
        await seen.find(name)
    reads = store.reads
    for name in "yzx":
        await seen.find(name)
    assert store.reads == reads + 1


async def test_many_at_once_are_not_more() -> None:
    """What fails costs nothing."""
    store = Store()
    seen = store.seen(unknown_per_second=3)
    found = await asyncio.gather(*(seen.find(name) for name in "abcdefgh"), return_exceptions=True)
    assert [isinstance(one, RateLimited) for one in found] == [False] * 3 + [True] * 5
    assert store.reads == 3

    async def fails(digest: str) -> Key | None:
        raise Unavailable("no")

    failing: RecordCache[str, Key] = RecordCache(fails, lambda: 0.0, unknown_per_second=3)
    for name in "abcdefgh":
        with pytest.raises(Unavailable):
            await failing.find(name)


async def test_too_many_unknown_ones_are_refused() -> None:
    """What is known is not; the allowance comes back with time."""
    store = Store()
    store.records |= {"a": key(1), "b": key(2)}
    seen = store.seen(unknown_per_second=3)
    await seen.find("a")
    for name in "xyz":
        await seen.find(name)
    for name in ("w", "b"):
        with pytest.raises(RateLimited):
            await seen.find(name)
    assert await seen.find("a") == key(1)
    assert await seen.find("x") is None
    store.now += 1
    assert await seen.find("b") == key(2)
    assert store.reads == 5
