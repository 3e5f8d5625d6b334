"""All keys of the directory lie in one slot, so that it works on Redis Cluster too."""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest
import redis
from redis.asyncio import Redis
from redis.asyncio.cluster import RedisCluster

from gateway.access.directory.change import Caps, Idempotency
from gateway.access.directory.store import Directory
from gateway.access.directory.view import View
from gateway.processes.redis_server import binary
from gateway.records.directory import Key, Tenant, User
from tests.gateway.access.directory.conftest import SECRET, key

pytestmark = pytest.mark.anyio


def free_port() -> int:
    """One whose bus port, 10,000 above, is a port too."""
    while True:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            if (port := int(probe.getsockname()[1])) < 55_000:
                return port


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """Port of a cluster that has one node with all slots."""
    folder, port = tmp_path_factory.mktemp("cluster"), free_port()
    options = {"port": port, "bind": "127.0.0.1", "cluster-enabled": "yes", "save": "", "dir": folder}
    words = [str(word) for name, value in options.items() for word in (f"--{name}", value)]
    process = subprocess.Popen([binary(), *words], stdout=subprocess.DEVNULL, cwd=Path(folder))
    try:
        with redis.Redis(port=port) as node:
            deadline = time.monotonic() + 30
            while True:
                try:
                    node.execute_command("CLUSTER ADDSLOTS", *range(16384))  # type: ignore[no-untyped-call]
                    break
                except redis.ConnectionError:
                    if time.monotonic() > deadline:
                        raise
                    time.sleep(0.02)
            while node.execute_command("CLUSTER INFO")["cluster_state"] != "ok":  # type: ignore[no-untyped-call]
                assert time.monotonic() < deadline
                time.sleep(0.02)
        yield port
    finally:
        process.kill()
        process.wait()


async def test_every_operation(cluster: int) -> None:
    """Reads, lists, changes, the audit log and the view."""
    async with RedisCluster(host="127.0.0.1", port=cluster) as client:
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
