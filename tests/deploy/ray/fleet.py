"""An installation whose engines run on a Ray cluster, started as docs/ray.md says."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import secrets
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.conftest import redis_server
from tests.deploy.ray.clusters import RayCluster, ray_cluster
from tests.e2e.conftest import Installation
from tests.e2e.test_fail_over import Load
from tests.e2e.test_failures import Outage, eventually

POOL = """
registered = true
min_replicas = {low}
on_demand_replicas = {on_demand}
max_replicas = 3
kv_tokens = 4096
start_seconds = 20

[ray]
register_key = "{key}"

[scaling]
period = 1
lease = 3
hold_seconds = 4
drain_timeout = 20
"""
PATIENCE = 300.0
BEFORE, AFTER = 3.0, 5.0
"""Seconds of load before something happens, and after it."""


class Fleet:
    """A gateway, its Redis and a cluster."""

    def __init__(self, it: Outage, cluster: RayCluster) -> None:
        self.it = it
        self.cluster = cluster
        self._config = str(it.running.folder / "roundhouse.toml")

    def roundhouse(self, *words: str, configured: bool = True) -> str:
        """Run a command where the gateway runs; returns what it prints."""
        own = ["--config", self._config] if configured else []
        command = [sys.executable, "-m", "gateway.cli", *words, *own]
        done = subprocess.run(
            command, env={**self.cluster.environment, **self.cluster.of_head}, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def ray(self, command: str, *words: str, configured: bool = True) -> str:
        return self.roundhouse("ray", command, "--address", self.cluster.address, *words, configured=configured)

    def up(self, count: int) -> dict[str, str]:
        """Have the cluster run engines, and wait for so many."""
        self.ray("up")
        return self.wait_ready(count)

    def status(self) -> dict[str, Any]:
        told: dict[str, Any] = json.loads(self.ray("status", "--json"))
        return told

    def names(self) -> set[str]:
        """Names of the replicas, which stay the same where Ray brings one back."""
        return {each["name"] for each in self.status()["replicas"]}

    def placed(self) -> dict[str, str]:
        """Nodes of the engines that answer, by the id of the engine's process."""
        return {each["engine"]: each["node"] for each in self.status()["replicas"] if each["state"] == "ready"}

    def connected(self) -> set[str]:
        """Ids of the engines that the gateway is connected to."""
        with contextlib.suppress(OSError), urllib.request.urlopen(f"{self.it.running.url}/metrics") as page:
            return set(re.findall(r'^roundhouse_engine_up{.*replica="(.*?)".*} 1', page.read().decode(), re.MULTILINE))
        return set()

    def moves(self) -> float:
        """Number of answers that another engine has taken up."""
        with contextlib.suppress(AssertionError):
            return self.it.metric('roundhouse_answer_moves_total{tier="small"}')
        return 0

    def wait_ready(self, count: int) -> dict[str, str]:
        """Wait until the gateway uses so many engines; returns the nodes on which the cluster has them."""
        eventually(lambda: len(self.connected()) == count, PATIENCE)
        found = self.placed()
        assert found.keys() == self.connected()
        return found

    async def under_load(self, act: Callable[[], object]) -> int:
        """Do something while clients ask one question after the other; each answer is looked at. Returns how many."""
        load = Load(self.it.running, tokens=400)  # so that some are always in the middle of one
        asking = asyncio.create_task(load.run())
        try:
            await asyncio.sleep(BEFORE)
            await asyncio.to_thread(act)
            await asyncio.sleep(AFTER)
        finally:
            load.stopping = True
            await asking
        return load.turns


@contextlib.contextmanager
def fleet(low: int, on_demand: int = 0) -> Iterator[Fleet]:
    """Args: low: engines that there are at least; on_demand: of these on machines that are not spot machines."""
    secret = secrets.token_hex(32)
    with tempfile.TemporaryDirectory(prefix="rh-") as folder, contextlib.ExitStack() as stack:
        key = Path(folder, "engines.key")
        key.write_bytes(
            subprocess.run(
                [sys.executable, "-m", "gateway.cli", "engine", "key"],
                env={**os.environ, "ROUNDHOUSE_SECRET": secret},
                capture_output=True,
                check=True,
            ).stdout
        )
        server = redis_server()
        stack.callback(server.stop)
        server.start()
        head = {"ROUNDHOUSE_SECRET": secret, "ROUNDHOUSE_REDIS_URL": server.url}
        patient = {"ROUNDHOUSE_TURNS_QUEUE_TIMEOUT": "90", "ROUNDHOUSE_TURNS_MOVE_TIMEOUT": "60"}
        tables = POOL.format(low=low, on_demand=on_demand, key=key)
        running = Installation(tiers=("small",), tables=tables, **head, **patient)
        stack.callback(running.close)
        it = Outage(running, server)
        stack.callback(it.client.close)
        yield Fleet(it, stack.enter_context(ray_cluster(head)))
