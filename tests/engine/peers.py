"""Clients that speak the engine's frames directly, and an engine whose steps a test can hold up."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

from websockets.asyncio.client import ClientConnection, connect

from engine.core import EngineCore, SchedulerConfig
from engine.plan import Sampled, StepPlan
from engine.wire import ClientFrame, Generate, Load, Output, Ready, SamplingParams, Step, decode_server_frame, encode
from tests.engine.ledger_runner import LedgerRunner, model_info

TIMEOUT = 30
"""Seconds after which a test counts as stuck; no test depends on how long anything takes."""


class GatedRunner(LedgerRunner):
    """Runs a step only when the test lets it, if the gate is used at all."""

    def __init__(self, blocks: int) -> None:
        super().__init__(blocks)
        self.gate: threading.Semaphore | None = None
        self.entered = threading.Event()

    def execute(self, plan: StepPlan) -> list[Sampled]:
        if self.gate is not None:
            self.entered.set()
            assert self.gate.acquire(timeout=TIMEOUT)
        return super().execute(plan)


def make_core(runner: LedgerRunner, **config: Any) -> EngineCore:
    return EngineCore(runner, model_info(), SchedulerConfig(64, **{"step_tokens": 64, "max_running": 8} | config))


class Peer:
    """A client that speaks frames."""

    def __init__(self, connection: ClientConnection) -> None:
        self.connection = connection

    async def send(self, frame: ClientFrame) -> None:
        await self.connection.send(encode(frame))

    async def receive(self) -> Ready | Step:
        return decode_server_frame(await self.connection.recv(decode=False))

    async def outputs(self, id: str) -> list[Output]:
        """Return everything that one request gets, to its end."""
        outputs: list[Output] = []
        while not outputs or outputs[-1].finish is None:
            frame = await self.receive()
            assert isinstance(frame, Step)
            outputs += [output for output in frame.outputs if output.id == id]
        return outputs

    async def until_outputs(self) -> list[Output]:
        """Return the outputs of the next frame that has any."""
        return (await self.until_step()).outputs

    async def until_step(self) -> Step:
        """Return the next frame that has outputs."""
        while True:
            frame = await self.receive()
            assert isinstance(frame, Step)
            if frame.outputs:
                return frame

    async def flush(self) -> None:
        """Return when the server has read everything sent so far: it refuses a bad request at once, in its turn."""
        await self.send(Generate("flush", [], SamplingParams()))
        await self.outputs("flush")

    async def probe(self) -> Load:
        """Run a request of one token; returns the engine's load after it and everything that was sent before it."""
        await self.send(ask("probe", max_tokens=1))
        while True:
            frame = await self.receive()
            assert isinstance(frame, Step)
            if any(output.id == "probe" for output in frame.outputs):
                return frame.load


def assert_idle(load: Load) -> None:
    assert (load.running, load.waiting) == (0, 0)
    assert load.free_blocks + load.cached_blocks == load.total_blocks


@contextlib.asynccontextmanager
async def peer_of(address: str, **options: Any) -> AsyncIterator[Peer]:
    """A connected client that has been introduced."""
    async with asyncio.timeout(TIMEOUT), connect(address, max_size=None, proxy=None, **options) as connection:
        peer = Peer(connection)
        assert isinstance(await peer.receive(), Ready)
        yield peer


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(TIMEOUT):
        while not condition():  # noqa: ASYNC110 (nothing announces it)
            await asyncio.sleep(0.001)


def ask(id: str = "a", prompt: list[int] | None = None, max_tokens: int = 4, **sampling: Any) -> Generate:
    return Generate(id, prompt or [1, 2, 3], SamplingParams(max_tokens=max_tokens, ignore_eos=True, **sampling))


def tokens(outputs: list[Output]) -> list[int]:
    return [token for output in outputs for token in output.tokens]
