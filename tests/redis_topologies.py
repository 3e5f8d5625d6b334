"""Several real Redis processes on this machine: a replicated server with sentinels, a cluster, a server with TLS."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import pytest
import redis

from gateway.processes.redis_server import bundled
from tests.ports import free_port

PATIENCE = 30
NAME = "main"
"""Name of the server that sentinels watch."""


def eventually(true: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while True:
        with contextlib.suppress(redis.ConnectionError, redis.TimeoutError):
            if true():
                return
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


def program_with_tls() -> str:
    """Path of a Redis on this machine that was built with TLS, unlike the bundled one; skips the test if there is none.

    Debian's package `redis-tools` has it under the name of a tool, and starts no service as `redis-server` does.
    """
    for name in ("redis-server", "redis-check-rdb"):
        if program := shutil.which(name):
            incomplete = ["redis-server", "--port", "0", "--tls-port", "1"]
            if b"Failed to configure TLS" in subprocess.run(incomplete, executable=program, capture_output=True).stdout:
                return program
    pytest.skip("no Redis with TLS on the PATH. On Debian or Ubuntu: sudo apt-get install redis-tools")


class Node:
    """One process of Redis, with options as in redis.conf; `kill` is a crash."""

    def __init__(self, folder: Path, port: int, *words: str, **options: object) -> None:
        self.port = port
        self.program = program_with_tls() if "tls-port" in options else bundled()
        self.folder = folder
        self.folder.mkdir(parents=True)
        given = {"bind": "127.0.0.1", "save": '""', "appendonly": "no", "dir": folder, "loglevel": "warning"}
        given["port"] = 0 if "tls-port" in options else port
        lines = [*words, *(f"{name} {value}" for name, value in (given | options).items())]
        (folder / "redis.conf").write_text("\n".join(lines) + "\n")
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, *words: str) -> None:
        self.process = subprocess.Popen(
            ["redis-server", str(self.folder / "redis.conf"), *words],
            executable=self.program,
            stdout=subprocess.DEVNULL,
            cwd=self.folder,
        )

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def ask(self, *words: object, **options: Any) -> Any:
        """The answer to one command."""
        with redis.Redis("127.0.0.1", self.port, socket_timeout=5, **options) as client:
            return client.execute_command(*words)  # type: ignore[no-untyped-call]


@contextlib.contextmanager
def folder() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="rh-redis-"))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


class Replicated:
    """A primary, a replica, and sentinels that watch them. Sentinels and servers may want a password."""

    def __init__(self, path: Path, *, sentinels: int = 3, users: Sequence[str] = (), password: str = "") -> None:
        login = {"masterauth": password, "requirepass": password} if password else {}
        ports = free_port(), free_port()
        self.servers = [
            Node(path / f"server-{port}", port, *users, **({"repl-diskless-sync-delay": 0} | login)) for port in ports
        ]
        self.options: dict[str, Any] = {"password": password} if password else {}
        watch = f"sentinel monitor {NAME} 127.0.0.1 {ports[0]} 2"
        patience = f"sentinel down-after-milliseconds {NAME} 1000\nsentinel failover-timeout {NAME} 3000"
        auth = f"sentinel auth-pass {NAME} {password}" if password else ""
        self.sentinels = []
        for _ in range(sentinels):
            port = free_port()
            self.sentinels.append(Node(path / f"sentinel-{port}", port, watch, patience, auth))

    def start(self) -> None:
        self.servers[0].start()
        self.servers[1].start("--replicaof", "127.0.0.1", str(self.servers[0].port))
        eventually(lambda: self.info(1)["master_link_status"] == "up", "the replica is connected")
        for sentinel in self.sentinels:
            sentinel.start("--sentinel")
        for sentinel in self.sentinels:
            eventually(lambda each=sentinel: self._knows_all(each), "the sentinels know each other")

    def _knows_all(self, sentinel: Node) -> bool:
        found = sentinel.ask("SENTINEL MASTER", NAME)
        return bool(found["num-other-sentinels"] == len(self.sentinels) - 1 and found["num-slaves"] == 1)

    def info(self, server: int) -> dict[str, Any]:
        return cast("dict[str, Any]", self.servers[server].ask("INFO", "replication", **self.options))

    @property
    def primary(self) -> int:
        """Which server the sentinels say is the primary."""
        _, port = self.sentinels[0].ask("SENTINEL GET-MASTER-ADDR-BY-NAME", NAME)
        return [server.port for server in self.servers].index(int(port))

    def url(self, login: str = "") -> str:
        hosts = ",".join(f"127.0.0.1:{sentinel.port}" for sentinel in self.sentinels)
        return f"sentinel://{login}{hosts}/{NAME}"

    def close(self) -> None:
        for node in (*self.sentinels, *self.servers):
            node.kill()


@contextlib.contextmanager
def replicated(**options: Any) -> Iterator[Replicated]:
    with folder() as path:
        made = Replicated(path, **options)
        try:
            made.start()
            yield made
        finally:
            made.close()


@contextlib.contextmanager
def cluster(nodes: int = 3) -> Iterator[list[Node]]:
    """A cluster without replicas: its nodes, each with its part of the slots."""
    with folder() as path:
        made = [
            Node(path / str(port), port, **{"cluster-enabled": "yes", "cluster-node-timeout": 2000})
            for port in (free_port() for _ in range(nodes))
        ]
        try:
            for index, node in enumerate(made):
                node.start()
                eventually(lambda each=node: each.ask("PING"), "a node answers")
                slots = range(16384 * index // nodes, 16384 * (index + 1) // nodes)
                node.ask("CLUSTER ADDSLOTS", *slots)
                node.ask("CLUSTER SET-CONFIG-EPOCH", index + 1)
            for node in made[1:]:
                made[0].ask("CLUSTER MEET", "127.0.0.1", node.port)
            for node in made:
                eventually(lambda each=node: _complete(each, nodes), "the cluster is whole")
            yield made
        finally:
            for node in made:
                node.kill()


def _complete(node: Node, nodes: int) -> bool:
    found = node.ask("CLUSTER INFO")
    return bool(found["cluster_state"] == "ok" and int(found["cluster_known_nodes"]) == nodes)


def cluster_url(nodes: Sequence[Node]) -> str:
    return "cluster://" + ",".join(f"127.0.0.1:{node.port}" for node in nodes)
