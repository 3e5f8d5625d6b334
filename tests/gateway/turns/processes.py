"""Real gateway processes that share one Redis and one engine, whose answers are known character by character."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import itertools
import json
import os
import secrets
import signal
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

from redis.asyncio import Redis
from tokenizers import Tokenizer
from websockets.asyncio.client import connect
from websockets.asyncio.server import ServerConnection
from websockets.exceptions import ConnectionClosed

from engine.wire import Cancel, Generate, Output, Step, Usage, encode
from gateway.storage.presence import GATEWAYS_KEY
from tests.gateway.conftest import KEY, eventually
from tests.gateway.forked import ForkedProcess, fork_server
from tests.gateway.frame_engine import LOAD, FrameEngine
from tests.ports import free_port

ANSWER = " ".join(f"{number:03}" for number in range(30))
"""An answer of which no two places look the same."""


ADMIN = "roundhouse-operator"
"""Key of the operator in the tables below."""
OPERATOR = f"""
[[tenants]]
name = "operations"
[[tenants.keys]]
id = "root"
sha256 = "{hashlib.sha256(ADMIN.encode()).hexdigest()}"
scopes = ["admin:read", "admin:write"]
operator = true
"""


class CountingEngine(FrameEngine):
    """Answers everything with `ANSWER`, a token every `pause` seconds."""

    def __init__(self, path: Path, model: Path, pause: float) -> None:
        super().__init__(path, {})
        tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
        self.ids = [*tokenizer.encode(ANSWER, add_special_tokens=False).ids, tokenizer.token_to_id("</s>")]
        self.pause = pause
        self.live: dict[tuple[ServerConnection, str], asyncio.Event] = {}
        """Requests that have not ended, and how to cancel them."""
        self.sent = 0
        """Number of tokens sent."""

    async def _answer(self, connection: ServerConnection, request: Generate) -> None:
        cancelled = self.live[connection, request.id] = asyncio.Event()
        usage = Usage(len(request.prompt), 0, 0, 0.0)
        count = min(len(self.ids), request.sampling.max_tokens)
        try:
            for index, token in enumerate(self.ids[:count]):
                await self.gate.wait()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(cancelled.wait(), self.pause)
                last = index == count - 1
                finish = "cancelled" if cancelled.is_set() else "stop" if last else None
                usage = Usage(len(request.prompt), 0, index + 1, 0.0)
                output = Output(request.id, [token], finish=finish, usage=usage if finish or not index else None)
                self.sent += 1
                await connection.send(encode(Step([output], LOAD)))
                if finish:
                    return
        except ConnectionClosed:
            pass
        finally:
            del self.live[connection, request.id]

    async def _cancel(self, connection: ServerConnection, frame: Cancel) -> None:
        if (connection, frame.id) in self.live:
            self.live[connection, frame.id].set()


CALLER = f'[[tenants]]\nname = "demo"\nkeys = [{{ id = "demo", sha256 = "{sha256(KEY.encode()).hexdigest()}" }}]\n'
"""The tenant whose key is `KEY`, where a test's tables name no tenants."""


SHARING = "ROUNDHOUSE_SERVER_GATEWAYS"


class GatewayProcess:
    """`roundhouse serve` with the configuration of `gateways`."""

    def __init__(self, config: Path, folder: Path, port: int, environment: dict[str, str]) -> None:
        self.port = port
        self.log = folder / f"{port}.log"
        self.command = [sys.executable, "-m", "gateway.cli", "serve", "--config", str(config), "--port", str(port)]
        self.environment = {**environment, "ROUNDHOUSE_REDIS_DATA": str(folder / str(port))}
        self.process: asyncio.subprocess.Process | ForkedProcess | None = None

    @property
    def sharing(self) -> int:
        """Number of processes that share the port."""
        return int(self.environment.get(SHARING, 1))

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def connect(self, **options: Any) -> connect:
        headers = {"authorization": f"Bearer {KEY}", "x-roundhouse-events": "true"}
        address = f"ws://127.0.0.1:{self.port}/v1/responses"
        return connect(address, additional_headers=headers, compression=None, **options)

    async def call(
        self, path: str, body: Any = None, *, key: str = KEY, method: str | None = None, **headers: str
    ) -> tuple[int, dict[str, str], Any]:
        """Return status, headers and body of the answer; sends a POST if there is a body."""
        document = None if body is None else json.dumps(body).encode()
        headers = {"authorization": f"Bearer {key}", "content-type": "application/json", **headers}
        request = urllib.request.Request(f"{self.url}{path}", document, headers, method=method)

        def send() -> tuple[int, dict[str, str], bytes]:
            try:
                with urllib.request.urlopen(request, timeout=30) as answer:
                    return answer.status, dict(answer.headers), answer.read()
            except urllib.error.HTTPError as error:
                with error:
                    return error.code, dict(error.headers), error.read()

        status, answered, text = await asyncio.to_thread(send)
        return status, {name.lower(): value for name, value in answered.items()}, json.loads(text or b"null")

    def children(self) -> dict[int, int]:
        """Return the ids of the processes that share the port, by their numbers, where there are several."""
        assert self.process is not None
        found = {}
        for pid in Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split():
            with contextlib.suppress(OSError, IndexError):
                words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
                if b"gateway.processes" in words[2]:
                    found[int(words[3])] = int(pid)
        return found

    async def start(self) -> None:
        if "LD_PRELOAD" not in self.environment:  # a clock of its own, which only a new program gets
            python, _, module, *arguments = self.command
            assert python == sys.executable
            self.process = fork_server().fork(module, arguments, self.environment, self.log)
            return
        with self.log.open("ab") as log:
            self.process = await asyncio.create_subprocess_exec(
                *self.command, stdout=log, stderr=log, env=self.environment
            )

    async def ready(self) -> None:
        async with asyncio.timeout(60):
            while not await asyncio.to_thread(self._is_ready):
                assert self.process is not None and self.process.returncode is None, self.log.read_text()
                await asyncio.sleep(0.1)

    async def stop(self, how: signal.Signals = signal.SIGTERM) -> int:
        """Send a signal and wait for the end."""
        assert self.process is not None
        if self.process.returncode is None:
            self.process.send_signal(how)
        async with asyncio.timeout(60):
            return await self.process.wait()

    async def metrics(self) -> dict[str, float]:
        """Return the values of all series."""

        def read() -> str:
            with urllib.request.urlopen(f"{self.url}/metrics", timeout=10) as answer:
                return str(answer.read().decode())

        text = await asyncio.to_thread(read)
        lines = [line.rsplit(" ", 1) for line in text.splitlines() if line and not line.startswith("#")]
        return {name: float(value) for name, value in lines}

    def _is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/readyz", timeout=5) as response:
                return bool(response.status == 200)
        except (urllib.error.URLError, OSError):
            return False


@contextlib.asynccontextmanager
async def gateways(
    count: int,
    model: Path,
    redis_url: str,
    *,
    pause: float = 0.002,
    drain_timeout: float = 20,
    tables: str = "",
    environments: Sequence[Mapping[str, str]] = (),
    **turns: float,
) -> AsyncIterator[tuple[Sequence[GatewayProcess], CountingEngine]]:
    """Start so many gateways that know of each other, and their engine; returns when they are ready.

    Args: tables: more of the configuration; environments: variables of the first, second ... process in addition to
    those of the tests; turns: settings.
    """
    with tempfile.TemporaryDirectory(prefix="rh-") as name:
        folder = Path(name)
        engine = CountingEngine(folder / "e.sock", model, pause)
        config = folder / "roundhouse.toml"
        settings = "\n".join(f"{field} = {value}" for field, value in turns.items())
        config.write_text(
            f'[server]\ndrain_timeout = {drain_timeout}\n[redis]\nurl = "{redis_url}"\ntimeout = 2.0\n'
            f"[cache]\nenabled = false\n"
            f'[adapters]\nregistry = "{folder}/adapters"\n[turns]\n{settings}\n'
            f'[[pools]]\ntier = "small"\nname = "numbers"\nmodel = "{model}"\nengines = ["{engine.address}"]\n'
            f"{tables if '[[tenants]]' in tables else tables + CALLER}"
        )
        clean = {key: value for key, value in os.environ.items() if not key.startswith(("ROUNDHOUSE_", "REDIS_"))}
        environment = {**clean, "ROUNDHOUSE_SECRET": secrets.token_hex(32), "ROUNDHOUSE_LOG_LEVEL": "warning"}
        processes = [
            GatewayProcess(config, folder, free_port(), {**environment, **more})
            for more in itertools.islice(itertools.chain(environments, itertools.repeat({})), count)
        ]
        async with engine.serving(), Redis.from_url(redis_url) as redis:
            await redis.delete(GATEWAYS_KEY)
            try:
                for process in processes:
                    await process.start()
                for process in processes:
                    await process.ready()
                await _acquainted(redis, sum(process.sharing for process in processes))
                yield processes, engine
            finally:
                for process in processes:
                    if process.process is not None and process.process.returncode is None:
                        await process.stop(signal.SIGKILL)


async def _acquainted(redis: Redis, count: int) -> None:
    """Wait until each gateway has finished a heartbeat since all of them had one: it has seen the others by then."""
    beats: dict[bytes, set[float]] = {}
    async with asyncio.timeout(60):
        while count > 1 and (len(beats) < count or min(map(len, beats.values())) < 3):
            for gateway, at in await redis.zrange(GATEWAYS_KEY, 0, -1, withscores=True):
                beats.setdefault(gateway, set()).add(at)
            if len(beats) < count:
                beats.clear()
            await asyncio.sleep(0.02)


async def idle(processes: Sequence[GatewayProcess], engine: CountingEngine) -> None:
    """Wait until nothing is left of any turn."""
    await eventually(lambda: not engine.live, lambda: engine.live, seconds=60)
    async with asyncio.timeout(60):
        while True:
            held = [await process.metrics() for process in processes]
            busy = [
                {name: value for name, value in values.items() if name.startswith(GAUGES) and value} for values in held
            ]
            if not any(busy):
                return
            await asyncio.sleep(0.2)


GAUGES = (
    "roundhouse_turns_running",
    "roundhouse_turns_followed",
    "roundhouse_turn_feeds",
    "roundhouse_websocket_connections",
    "roundhouse_reservations_held",
)
"""Gauges that must be zero when no turn runs and no client is connected."""
