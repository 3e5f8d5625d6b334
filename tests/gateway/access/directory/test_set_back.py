"""A Redis that has lost changes of the directory which were seen, as after a fail-over to a replica that lags."""

from __future__ import annotations

import asyncio
import logging

import pytest
from redis.asyncio import Redis

from gateway.access.directory.audit import START, ChainPosition, is_lost
from gateway.access.directory.audit_log import LogSetBack
from gateway.access.directory.change import Caps
from gateway.access.directory.store import Directory
from gateway.access.directory.view import View
from gateway.errors import Unavailable
from gateway.records.directory import Key, Tenant
from gateway.storage.replicas import Replicas
from tests.gateway.access.directory.conftest import SECRET, key
from tests.lost_writes import lose_since, remember
from tests.redis_topologies import replicated

pytestmark = pytest.mark.anyio

SEEN = ChainPosition(5, "a" * 64)


@pytest.mark.parametrize(
    ("seen", "dropped", "found", "lost"),
    [
        (START, 0, None, False),  # nothing was seen
        (SEEN, 0, SEEN.hash, False),  # it is there
        (SEEN, 0, None, True),  # it has gone
        (SEEN, 4, None, True),
        (SEEN, 5, None, False),  # the cap has dropped it
        (SEEN, 9, None, False),
        (SEEN, 0, "b" * 64, True),  # others have gone on without it
    ],
)
def test_an_entry_is_lost_unless_it_is_there_or_was_dropped(
    seen: ChainPosition, dropped: int, found: str | None, lost: bool
) -> None:
    assert is_lost(seen, ChainPosition(dropped), found) is lost


async def test_the_last_copy_stays_in_force_until_redis_has_it_again(redis: Redis, directory: Directory) -> None:
    """A key that was revoked in the lost second stays revoked, and nobody can change what is too old."""
    view = View(directory, poll=0.01)
    await directory.write(Tenant(name="acme"), actor="test")
    for number in (1, 2, 3):
        await directory.write(key(number), actor="test")
    await view.start()
    try:
        before = await remember(redis)
        for number in (1, 2):
            await directory.write(key(number, disabled=True), actor="test")
        await view.refresh()
        revoked = await view.key(key(1).digest)
        assert revoked and revoked.disabled
        after = await remember(redis)
        await lose_since(redis, before)
        await _until(view, set_back=True)
        assert await view.key(key(1).digest) == revoked
        with pytest.raises(Unavailable, match="older than one seen here"):
            await view.key(key(2).digest)  # valid in Redis, and revoked in truth
        assert view.tenants().keys() == {"acme"}
        with pytest.raises(LogSetBack, match="ends at entry 4, and does not have entry 6") as refused:
            await directory.write(key(4), actor="test")
        assert (refused.value.status, refused.value.code) == (503, "directory_set_back")
        await lose_since(redis, after)
        await _until(view, set_back=False)
        await directory.write(key(4), actor="test")
        assert (await directory.audit.verify())[1] is None
    finally:
        await view.aclose()


async def test_a_log_that_goes_on_without_what_was_lost_is_not_followed(redis: Redis, directory: Directory) -> None:
    view = View(directory)
    await directory.write(Tenant(name="acme"), actor="test")
    before = await remember(redis)
    await directory.write(key(1), actor="test")
    await view.refresh()
    await lose_since(redis, before)
    other = Directory(redis, secret=SECRET)  # of a process that has not seen it
    for number in (2, 3, 4):
        await other.write(key(number), actor="test")
    with pytest.raises(LogSetBack):
        await view.refresh()
    with pytest.raises(LogSetBack):
        await directory.delete(Key, "key_2", actor="test")
    restarted = View(Directory(redis, secret=SECRET))
    await restarted.refresh()  # which is how an operator accepts the loss
    assert await restarted.key(key(1).digest) is None


async def test_what_the_cap_has_dropped_is_not_lost(redis: Redis, directory: Directory) -> None:
    view = View(directory)
    await directory.write(Tenant(name="acme"), actor="test")
    await view.refresh()
    other = Directory(redis, secret=SECRET, caps=Caps(audit=20))
    for _ in range(40):
        await other.write(Tenant(name="acme"), actor="test")
    assert (await directory.audit.checkpoint()).sequence > 1
    await view.refresh()
    await directory.write(key(1), actor="test")


async def test_a_change_waits_for_a_replica_and_says_if_none_has_it(caplog: pytest.LogCaptureFixture) -> None:
    with replicated(sentinels=0) as servers:
        url = f"redis://127.0.0.1:{servers.servers[0].port}"
        async with Redis.from_url(url) as primary:
            directory = Directory(primary, secret=SECRET, replicas=Replicas(1, 20.0))
            for number in range(5):
                await directory.write(Tenant(name=f"t{number}"), actor="test")
                on_replica = servers.servers[1].ask("HGET", "rh1:{directory}:tenant", f"t{number}")
                assert on_replica is not None
            assert directory.unconfirmed == 0
            servers.servers[1].kill()
            hasty = Directory(primary, secret=SECRET, replicas=Replicas(1, 0.1))
            with caplog.at_level(logging.WARNING):
                await hasty.write(Tenant(name="alone"), actor="test")
            assert hasty.unconfirmed == 1 and "too few replicas" in caplog.text
            assert await hasty.get(Tenant, "alone") is not None


async def _until(view: View, *, set_back: bool) -> None:
    async with asyncio.timeout(20):
        while view.set_back is not set_back:  # noqa: ASYNC110  it has no event
            await asyncio.sleep(0.005)
