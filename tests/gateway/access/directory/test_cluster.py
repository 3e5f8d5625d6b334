"""All keys of the directory lie in one slot, so that it works on Redis Cluster too."""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

import pytest
from redis.asyncio import Redis
from redis.asyncio.cluster import RedisCluster

from gateway.access.directory.change import Caps, Idempotency
from gateway.access.directory.store import Directory
from gateway.access.directory.view import View
from gateway.records.directory import Key, Tenant, User
from tests.gateway.access.directory.conftest import SECRET, key
from tests.redis_topologies import Node, cluster

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def nodes() -> Iterator[list[Node]]:
    """A cluster of one node."""
    with cluster(1) as nodes:
        yield nodes


async def test_every_operation(nodes: list[Node]) -> None:
    """Reads, lists, changes, the audit log and the view."""
    async with RedisCluster(host="127.0.0.1", port=nodes[0].port) as client:
        directory = Directory(cast(Redis, client), secret=SECRET, caps=Caps(audit=5))
        view = View(directory)
        await view.refresh()
        await directory.write(Tenant(name="acme"), actor="test", once=Idempotency("a", "digest"))
        await directory.write(User(id="user_1", tenant="acme", subject="anna"), actor="test")
        written = await directory.write(key(1, user="user_1"), actor="test")
        assert await directory.key_by_digest(key(1).digest) == written
        assert (await directory.page(Key, tenant="acme")).records == [written]
        await view.refresh()
        assert view.tenants().keys() == {"acme"}
        for kind, name in ((Key, "key_1"), (User, "user_1"), (Tenant, "acme")):
            await directory.delete(kind, name, actor="test")
        await view.refresh()
        assert view.tenants() == {}
        verifier, problem = await directory.audit.verify()
        assert (problem, verifier.entries, verifier.last.sequence) == (None, 5, 6)
