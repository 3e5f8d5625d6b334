"""A real gateway on a real socket, in front of real engines with tiny random models and a real Redis."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import ssl
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import openai
import pytest
import redis
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from websockets.asyncio.client import ClientConnection, connect

from engine.adapters.registry import AdapterRegistry
from engine.client import encoder
from engine.core import EngineCore, EngineFeatures
from engine.execution.runner import ModelRunner
from engine.grammar.compiler import GrammarCompiler
from engine.grammar.constraints import Constraints
from engine.scheduling.config import SchedulerConfig
from engine.server.host import EngineServer
from gateway.app import create_app
from gateway.config.settings import (
    AdapterSettings,
    LimitSettings,
    PoolSettings,
    RedisSettings,
    ServerSettings,
    Settings,
    TurnSettings,
    demo_settings,
)
from gateway.server import GatewayServer, listen
from gateway.services import Gateway
from tests.engine.checkpoints import VOCABULARY, write_checkpoint
from tests.gateway.template_processes import TemplateProcesses

KEY = "roundhouse-demo"
CONTEXT = 4096
KV_BLOCKS = 1024

_TEMPLATE = (
    "{% for message in messages %}<|{{ message.role }}|>{{ message.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint with random weights, a byte-level tokenizer and a chat template."""
    directory = write_checkpoint(tmp_path_factory.mktemp("model"), max_position_embeddings=CONTEXT, num_hidden_layers=1)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = ["<pad>", "<s>", "</s>", "<|system|>", "<|user|>", "<|assistant|>"]
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([Path(__file__).read_text("utf-8")], trainer)
    assert tokenizer.get_vocab_size() == VOCABULARY
    tokenizer.save(str(directory / "tokenizer.json"))
    (directory / "tokenizer_config.json").write_text(json.dumps({"chat_template": _TEMPLATE, "eos_token": "</s>"}))
    return directory


class EngineThread:
    """A real engine that serves on a loop of its own; `stop` kills it. `config` goes to the scheduler.

    Args:
        adapters: folder of the registry whose adapters it serves; None: it serves none.
    """

    def __init__(
        self,
        model: Path,
        *,
        tls: ssl.SSLContext | None = None,
        id: str = "",
        adapters: Path | None = None,
        **config: Any,
    ) -> None:
        self._tls = tls
        self._id = id
        registry = None if adapters is None else AdapterRegistry(str(adapters))
        runner = ModelRunner(model, blocks=KV_BLOCKS, adapters=registry)
        info = msgspec.structs.replace(runner.info, name="tiny")
        self.constraints = Constraints(GrammarCompiler(model, runner.info), runner.info.vocabulary)
        scheduling = SchedulerConfig(KV_BLOCKS, **{"step_tokens": 256, **config})
        features = EngineFeatures(constraints=self.constraints, bank=runner.bank)
        self.core = EngineCore(runner, info, scheduling, features)
        self.address = ""
        self._loop = asyncio.new_event_loop()
        self._stopping = asyncio.Event()
        self._listening = threading.Event()
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self._serve(),))

    async def _serve(self) -> None:
        listen = "ws://127.0.0.1:0" if self._tls is None else "wss://127.0.0.1:0"
        async with EngineServer(self.core, id=self._id).listening(self.address or listen, self._tls) as self.address:
            self._listening.set()
            await self._stopping.wait()

    def __enter__(self) -> EngineThread:
        self._thread.start()
        assert self._listening.wait(30)
        return self

    def stop(self) -> None:
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stopping.set)
            self._thread.join()
            self._loop.close()
            self.core.close()
            self.constraints.close()

    def __exit__(self, *_: object) -> None:
        self.stop()


@pytest.fixture(scope="package")
def engine(model: Path) -> Iterator[EngineThread]:
    """An engine that all tests of the gateway share. It ends before those of other rooms, which would run beside its
    thread: websockets draws the payload of a ping from `random`, and Hypothesis takes that for a strategy's doing.
    """
    with EngineThread(model) as engine:
        yield engine


@pytest.fixture(scope="package", autouse=True)
def shared_templates() -> Iterator[None]:
    """Have all gateways of this process render chat templates in the same processes."""
    with TemplateProcesses() as processes, pytest.MonkeyPatch.context() as patch:
        patch.setattr(encoder, "SharedLimitedProcess", processes.lend)
        yield


@pytest.fixture
def unsignalled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have gateways handle no signals, so that they may run in other threads than the main one."""
    monkeypatch.setattr(GatewayServer, "capture_signals", lambda self: contextlib.nullcontext())


@dataclass
class Served:
    """A running gateway and how to reach it."""

    gateway: Gateway
    server: GatewayServer
    port: int
    client: openai.AsyncOpenAI
    """Client without retries; closed by the fixture."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def base_url(self) -> str:
        """Base URL for the `openai` client."""
        return f"{self.url}/v1"

    def connect(self, key: str | None = KEY, *, events: bool = True, **options: Any) -> connect:
        """Open a plain WebSocket to `/v1/responses`, which asks for the server's own events too."""
        headers = {"authorization": f"Bearer {key}"} if key else {}
        headers |= {"x-roundhouse-events": "true"} if events else {}
        if "host" in options:  # connects to this machine under another name
            options |= {"sock": socket.create_connection(("127.0.0.1", self.port))}
            return connect(f"ws://{options.pop('host')}/v1/responses", additional_headers=headers, **options)
        return connect(
            f"ws://127.0.0.1:{self.port}/v1/responses", additional_headers=headers, compression=None, **options
        )

    def leftovers(self) -> dict[str, int]:
        """Return everything that a turn or connection may leave behind; all zero when nothing leaks."""
        gateway = self.gateway
        return {
            "turns": gateway.turns.running,
            "viewers": gateway.turns.viewers,
            **gateway.turns.shared,
            "connections": gateway.connections.open,
            "reservations": gateway.limiter.outstanding,
            "generations": gateway.engines.live,
            "carried": sum(engine.load for pool in gateway.engines.pools for engine in pool.engines),
        }

    async def settle(self, connections: int = 0) -> None:
        """Wait until nothing is left over but so many open WebSockets."""
        await eventually(lambda: sum(self.leftovers().values()) == connections, self.leftovers)
        assert self.leftovers()["connections"] == connections


async def eventually(condition: Callable[[], bool], explain: Callable[[], object] = str, seconds: float = 20) -> None:
    """Wait until `condition` holds; a test never asserts how long something takes."""
    try:
        async with asyncio.timeout(seconds):
            while not condition():  # noqa: ASYNC110  what is waited for has no event
                await asyncio.sleep(0.005)
    except TimeoutError:
        raise AssertionError(f"waited in vain: {explain()}") from None


Serve = Callable[..., contextlib.AbstractAsyncContextManager[Served]]


@pytest.fixture
def serve(engine: EngineThread, model: Path, redis_url: str, tmp_path: Path) -> Serve:
    """`async with serve(server={...}, turns={...}, engines={tier: [address]}) as served`.

    The registry of adapters is `tmp_path / "adapters"`.
    """
    with redis.Redis.from_url(redis_url) as client:
        client.flushall()

    def settings(
        server: dict[str, Any] | None = None,
        turns: dict[str, Any] | None = None,
        limits: dict[str, Any] | None = None,
        engines: dict[str, list[str]] | None = None,
        pool: dict[str, Any] | None = None,
        adapters: dict[str, Any] | None = None,
        redis_options: dict[str, Any] | None = None,
        **sections: Any,
    ) -> Settings:
        pools = sections.pop("pools", None) or [
            PoolSettings(
                **{"tier": tier, "name": f"tiny-{tier}", "model": str(model), "engines": addresses, **(pool or {})}
            )
            for tier, addresses in (engines or {"small": [engine.address]}).items()
        ]
        return msgspec.structs.replace(
            demo_settings(),
            server=ServerSettings(**{"port": 0, "drain_timeout": 5.0, **(server or {})}),
            turns=TurnSettings(**(turns or {})),
            limits=LimitSettings(**(limits or {})),
            redis=RedisSettings(
                **{"url": redis_url, "timeout": 5.0, "data": str(tmp_path / "data"), **(redis_options or {})}
            ),
            adapters=AdapterSettings(**{"registry": str(tmp_path / "adapters"), "poll": 0.01, **(adapters or {})}),
            pools=pools,
            **sections,
        )

    @contextlib.asynccontextmanager
    async def serve(**changes: Any) -> AsyncIterator[Served]:
        configured = settings(**changes)
        app = create_app(configured)
        server = GatewayServer(app, configured)
        with listen(configured) as bound:
            task = asyncio.create_task(server.serve(sockets=[bound]))
            await eventually(lambda: server.started or task.done())
            if task.done():
                await task
            gateway: Gateway = app.state.gateway
            await eventually(lambda: not gateway.engines.problems(), gateway.engines.problems)
            port = bound.getsockname()[1]
            client = openai.AsyncOpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key=KEY, max_retries=0)
            try:
                async with client:
                    yield Served(gateway, server, port, client)
            finally:
                server.should_exit = True
                await task

    return serve


async def send(socket: ClientConnection, **event: Any) -> None:
    """Send one event as JSON."""
    await socket.send(json.dumps(event))


async def receive(socket: ClientConnection) -> dict[str, Any]:
    """Return the next event."""
    async with asyncio.timeout(20):
        event: dict[str, Any] = json.loads(await socket.recv())
    return event


TERMINAL = ("response.completed", "response.incomplete", "response.failed", "error")


async def until_end(next_event: Callable[[], Awaitable[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Return all events up to the one that ends the turn."""
    events = [await next_event()]
    while events[-1]["type"] not in TERMINAL:
        events.append(await next_event())
    return events


def text_of(events: list[dict[str, Any]]) -> str:
    """Return the deltas' text."""
    return "".join(event["delta"] for event in events if event["type"] == "response.output_text.delta")
