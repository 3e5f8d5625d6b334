"""All processes of a run: one Redis, two engines of one model, two gateways, and a link on each way between them."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import itertools
import os
import secrets
import shutil
import signal
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from http.client import HTTPException
from pathlib import Path
from time import monotonic
from typing import Any

from redis.asyncio import Redis

from engine.adapters.registry import AdapterRegistry
from gateway.config.settings import DEMO
from gateway.turns.ids import gateway_of
from tests.chaos.cases import MODEL
from tests.chaos.faults import ENGINES, GATEWAYS
from tests.chaos.links import Link
from tests.chaos.processes import START_SECONDS, EngineProcess, RedisProcess
from tests.clocks import WallClock, libfaketime
from tests.gateway.turns.processes import GatewayProcess
from tests.ports import free_port

ADAPTERS = ("json", "pirate")
CONCURRENT, RATE = 4, 30_000
"""Limits of the tenant `narrow`: turns at the same time, output tokens per minute."""
TENANTS = ("demo", "narrow", "poor")
PING = {"model": "small", "input": "Who?", "max_output_tokens": 1, "roundhouse": {"cache": "no-store"}}
"""The shortest question."""
_CACHED = {"FAKETIME_NO_CACHE": "0", "FAKETIME_CACHE_DURATION": "1"}
"""Has libfaketime read a clock's file once a second: at every look at the clock it would slow a busy process down."""
DRAIN_SECONDS = 20.0
MOVE_SECONDS = 30.0


def api_key(tenant: str) -> str:
    return f"chaos-{tenant}"


class Installation:
    """A running installation. Its parts are public: a run harms them."""

    def __init__(self, folder: Path, *, budget: int, on_redis_down: str) -> None:
        """
        Args:
            budget: micro-dollars that the tenant `poor` may spend.
            on_redis_down: the setting of that name.
        """
        library = libfaketime()
        self.clocks = [WallClock(library, folder / f"clock-{name}") for name in ("redis", "gateway")] if library else []
        """Of Redis, and of the last gateway; none where libfaketime is missing."""
        redis_clock, gateway_clock = (
            ({**clock.environment, **_CACHED} for clock in self.clocks) if library else ({}, {})
        )
        self.folder = folder
        self.budget = budget
        self.redis = RedisProcess(folder, redis_clock)
        registry = folder / "adapters"
        self.engines = [EngineProcess(folder, index, DEMO / "model", registry) for index in range(ENGINES)]
        self.redis_links = [Link(folder / f"g{gateway}-redis", self.redis.socket) for gateway in range(GATEWAYS)]
        self.engine_links = [
            [Link(folder / f"g{gateway}-e{index}", engine.socket) for index, engine in enumerate(self.engines)]
            for gateway in range(GATEWAYS)
        ]
        secret = secrets.token_hex(32)
        self.gateways = [
            self._gateway(number, secret, on_redis_down, gateway_clock if number == GATEWAYS - 1 else {})
            for number in range(GATEWAYS)
        ]
        self.ids = [""] * GATEWAYS
        """Ids in Redis of the gateways' processes."""
        self.kept = False
        """Whether the folder, with all logs, stays."""
        self._registry = registry

    def _gateway(self, number: int, secret: str, on_redis_down: str, clock: Mapping[str, str]) -> GatewayProcess:
        config = self.folder / f"gateway-{number}.toml"
        config.write_text(self._settings(number, on_redis_down))
        clean = {key: value for key, value in os.environ.items() if not key.startswith(("ROUNDHOUSE_", "REDIS_"))}
        environment = {**clean, **clock, "ROUNDHOUSE_SECRET": secret, "ROUNDHOUSE_LOG_LEVEL": "warning"}
        return GatewayProcess(config, self.folder, free_port(), environment)

    def _settings(self, number: int, on_redis_down: str) -> str:
        engines = ", ".join(f'"unix://{link.path}"' for link in self.engine_links[number])
        limits = {
            "demo": "{ output_tokens_per_minute = 100000000, input_tokens_per_minute = 100000000 }",
            "narrow": f"{{ concurrent_turns = {CONCURRENT}, output_tokens_per_minute = {RATE} }}",
            "poor": f"{{ spend_per_month = {self.budget}, output_tokens_per_minute = 100000000 }}",
        }
        tenants = "\n".join(
            f'[[tenants]]\nname = "{name}"\nlimits = {limits[name]}\n'
            f'keys = [{{ id = "{name}", sha256 = "{hashlib.sha256(api_key(name).encode()).hexdigest()}" }}]'
            for name in TENANTS
        )
        return f"""
[server]
drain_timeout = {DRAIN_SECONDS}
[redis]
url = "unix://{self.redis_links[number].path}"
timeout = 1.0
[embedder]
enabled = false
[cache]
ttl = 1.0
[limits]
on_redis_down = "{on_redis_down}"
[usage]
entries_per_day = 1000000
journals = "{self.folder}/usage"
[turns]
move_timeout = {MOVE_SECONDS}
default_max_output_tokens = 160
[adapters]
registry = "{self.folder}/adapters"
[[pools]]
tier = "small"
name = "{MODEL}"
model = "{DEMO / "model"}"
engines = [{engines}]
[[prices]]
name = "{MODEL}"
input = 100000
cached_input = 50000
output = 1000000
{tenants}
"""

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Start everything; it is ready when the block begins, and ended when that ends."""
        registry = AdapterRegistry(str(self._registry))
        for name in ADAPTERS:
            version = registry.add(DEMO / "adapters" / name, DEMO / "model").version
            registry.point(name, version, model=MODEL)
        async with contextlib.AsyncExitStack() as stack:
            for link in itertools.chain(self.redis_links, *self.engine_links):
                await stack.enter_async_context(link.serving())
            stack.push_async_callback(self._end)
            await self.redis.start()
            await asyncio.gather(*(engine.start() for engine in self.engines))
            for gateway in self.gateways:
                await gateway.start()
            assert await self.ready() is None and await self.connected() is None
            for number in range(GATEWAYS):
                await self.learn_id(number)
            yield

    async def _end(self) -> None:
        for gateway in self.gateways:
            if gateway.process is not None and gateway.process.returncode is None:
                gateway.process.send_signal(signal.SIGCONT)
                await gateway.stop(signal.SIGKILL)
        for process in (*self.engines, self.redis):
            await process.kill()

    async def ready(self) -> str | None:
        """Wait until each gateway is ready, and has Redis; return what is wrong if that takes too long."""
        return await self._until(_unready)

    async def connected(self) -> str | None:
        """Wait until each gateway that answers has all its engines; return what is wrong if that takes too long."""
        return await self._until(_unconnected)

    async def _until(self, wrong: Callable[[GatewayProcess], Awaitable[str | None]]) -> str | None:
        deadline = monotonic() + START_SECONDS
        for number, gateway in enumerate(self.gateways):
            while problem := await wrong(gateway):
                if monotonic() > deadline:
                    return f"gateway {number} ({gateway.log}): {problem}"
                await asyncio.sleep(0.1)
        return None

    async def learn_id(self, number: int) -> None:
        """Find out the id of a gateway that has just started, which its responses' ids hold."""
        deadline = monotonic() + START_SECONDS
        while True:
            status, _, answer = await self.ask(number, PING)
            if status == 200:
                self.ids[number] = gateway_of(answer["id"]) or ""
                return
            gateway = self.gateways[number]
            assert gateway.process is not None
            if gateway.process.returncode is not None or monotonic() > deadline:
                self.kept = True
                raise TimeoutError(f"gateway {number} ({gateway.log}) answers {status}: {answer}")
            await asyncio.sleep(0.2)

    async def ask(
        self, number: int, body: Mapping[str, Any], path: str = "/v1/responses", *, tenant: str = "demo"
    ) -> tuple[int, Any, Any]:
        """Ask a gateway for a whole answer: status, headers and document."""
        try:
            return await self.gateways[number].call(path, {**body, "stream": False}, key=api_key(tenant))
        except (OSError, HTTPException):
            return 503, {}, None

    async def redis_config(self, name: str, value: str) -> None:
        """Set one of Redis' options."""
        async with Redis.from_url(self.redis.url) as client:
            await client.config_set(name, value)


async def _unready(gateway: GatewayProcess) -> str | None:
    try:
        status, _, answer = await gateway.call("/readyz")
        up = (await gateway.metrics())["roundhouse_redis_up"]
    except (OSError, HTTPException) as error:
        return f"{error!r}"
    return None if status == 200 and up else f"{status} {answer}, Redis up: {up:g}"


async def _unconnected(gateway: GatewayProcess) -> str | None:
    try:
        values = await gateway.metrics()
    except (OSError, HTTPException):
        return None
    up = [value for name, value in values.items() if name.startswith("roundhouse_engine_up")]
    return None if sum(up) == ENGINES else f"engines up: {up}"


@contextlib.asynccontextmanager
async def installation(*, budget: int, on_redis_down: str) -> AsyncIterator[Installation]:
    """Start an installation in a folder of its own, which is removed afterwards unless the block says otherwise."""
    folder = Path(tempfile.mkdtemp(prefix="rh-chaos-"))  # unix sockets need short paths
    built = Installation(folder, budget=budget, on_redis_down=on_redis_down)
    try:
        async with built.running():
            yield built
    finally:
        if not built.kept:
            shutil.rmtree(folder, ignore_errors=True)
