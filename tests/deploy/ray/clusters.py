"""A Ray cluster of several nodes on this machine: each has an address of its own in 127.0.0.0/8."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from gateway.processes.redis_server import bundled
from tests.ports import free_port

PATIENCE = 120.0
HEAD = "127.0.0.2"
RAY = {
    "RAY_AUTH_MODE": "token",
    "RAY_AUTH_TOKEN": secrets.token_hex(16),
    "RAY_USAGE_STATS_ENABLED": "0",
    # Seconds on a quiet machine, where others need minutes to notice.
    "RAY_health_check_initial_delay_ms": "2000",
    "RAY_health_check_period_ms": "1000",
    "RAY_gcs_rpc_server_reconnect_timeout_s": "120",
    # By default engines would come after all other processes of this machine.
    "RAY_worker_niceness": "0",
    # The machine's memory is not this test's.
    "RAY_memory_monitor_refresh_ms": "0",
}


class Node:
    """One node: `ray start --block` and all that it has started."""

    def __init__(self, log: Path, options: list[str], environment: Mapping[str, str]) -> None:
        self.log = log
        with log.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "ray.scripts.scripts", "start", "--block", *options],
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,
            )

    def wait_started(self) -> None:
        deadline = time.monotonic() + PATIENCE
        while "Ray runtime started" not in self.log.read_text():
            assert self.process.poll() is None and time.monotonic() < deadline, self.log.read_text()
            time.sleep(0.1)

    def kill(self) -> None:
        """Kill everything at once, as the loss of the machine would."""
        tree = descendants(self.process.pid)
        for pid in tree:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
        for pid in tree:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()


class RayCluster:
    """A head node whose state is in a Redis of its own, and nodes beside it."""

    def __init__(self, of_head: Mapping[str, str]) -> None:
        """Args: of_head: variables that the head node has, and others have not."""
        self.folder = Path(tempfile.mkdtemp(prefix="rh-ray-"))  # socket paths are short
        clean = {name: value for name, value in os.environ.items() if not name.startswith(("ROUNDHOUSE_", "REDIS_"))}
        self.environment = {**clean, **RAY}
        self.of_head = of_head
        self.port, state = free_port(), free_port()
        options = ["--port", str(state), "--bind", "127.0.0.1", "--save", "", "--dir", str(self.folder)]
        self._redis = subprocess.Popen([bundled(), *options], stdout=subprocess.DEVNULL)
        self._state = f"127.0.0.1:{state}"
        self.nodes: dict[str, Node] = {}

    @property
    def address(self) -> str:
        return f"{HEAD}:{self.port}"

    def head(self, *, labels: str = "", autoscaler: dict[str, Any] | None = None) -> None:
        """Start the head node, or start it again with the state that it had."""
        # Names a head that may be dead; its nodes on this machine would make Ray believe that it is not.
        (self.folder / "ray_current_cluster").unlink(missing_ok=True)
        options = ["--head", "--node-ip-address", HEAD, "--port", str(self.port), "--include-dashboard", "false"]
        options += ["--temp-dir", str(self.folder), *_size(1), *(["--labels", labels] if labels else [])]
        environment = {**self.environment, **self.of_head, "RAY_REDIS_ADDRESS": self._state}
        if autoscaler is not None:
            file = self.folder / "autoscaler.json"
            file.write_text(json.dumps(autoscaler))
            options += ["--autoscaling-config", str(file)]
            environment |= {"RAY_FAKE_CLUSTER": "1", "AUTOSCALER_UPDATE_INTERVAL_S": "1"}
        self._start(HEAD, options, environment)

    def node(self, address: str) -> None:
        """Start another node with room for one engine."""
        self._start(address, ["--address", self.address, "--node-ip-address", address, *_size(1)], self.environment)

    def kill(self, address: str) -> None:
        """Kill a node with all that runs there."""
        self.nodes.pop(address).kill()

    def running(self, name: str) -> list[int]:
        """Processes of all nodes whose command line has this word."""
        found = []
        for pid in (pid for node in self.nodes.values() for pid in descendants(node.process.pid)):
            with contextlib.suppress(OSError):
                if name in Path(f"/proc/{pid}/cmdline").read_text():
                    found.append(pid)
        return found

    def close(self) -> None:
        for address in list(self.nodes):
            self.kill(address)
        self._redis.kill()
        self._redis.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _start(self, address: str, options: list[str], environment: Mapping[str, str]) -> None:
        log = self.folder / f"{address}-{secrets.token_hex(2)}.log"
        node = self.nodes[address] = Node(log, options, environment)
        node.wait_started()


@contextlib.contextmanager
def ray_cluster(of_head: Mapping[str, str]) -> Iterator[RayCluster]:
    cluster = RayCluster(of_head)
    try:
        yield cluster
    finally:
        cluster.close()


def descendants(pid: int) -> list[int]:
    """A process and all that it has started, parents first."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = entry.read_text().rpartition(")")[2].split()
            children.setdefault(int(fields[1]), []).append(int(entry.parent.name))
    found = [pid]
    for each in found:
        found += children.get(each, [])
    return found


def _size(cpus: int) -> list[str]:
    return ["--num-cpus", str(cpus), "--object-store-memory", "80000000", "--disable-usage-stats"]
