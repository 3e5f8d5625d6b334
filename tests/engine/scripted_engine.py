"""A served engine whose answers a test dictates, and shared parts of the tests of its clients."""

from __future__ import annotations

import contextlib
import ssl
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from engine.client.answer_stream import Delta
from engine.client.engine_client import EngineClient
from engine.client.generation import Generation, RequestFailed
from engine.core import EngineCore, SchedulerConfig
from engine.plan import Handle, Sampled, StepPlan, TokenMasks
from engine.request import Request
from engine.server.host import EngineServer
from engine.wire import SamplingParams, TokenIdLogprob
from tests.engine.ledger_runner import Done, model_info
from tests.engine.peers import TIMEOUT, until

EOS = 2


class ScriptedRunner:
    """Answers a prompt with the prompt itself, over and over; a step waits for the gate if there is one."""

    def __init__(self) -> None:
        self.gate: threading.Semaphore | None = None
        self.steps = 0

    def launch(self, plan: StepPlan, masks: TokenMasks | None = None) -> Handle:
        if self.gate is not None:
            assert self.gate.acquire(timeout=TIMEOUT)
        self.steps += 1
        return Done([self._next(row.request, row.start, row.count) if row.sample else Sampled() for row in plan.rows])

    def release(self, request: Request) -> None:
        pass

    @staticmethod
    def _next(request: Request, start: int, count: int) -> Sampled:
        token = request.prompt[len(request.output) % len(request.prompt)]
        wanted = request.sampling.logprobs is not None
        prompt = None
        if request.sampling.prompt_logprobs is not None:
            successors = request.prompt[start + 1 : start + count + 1]
            prompt = [TokenIdLogprob(successor, -1.0) for successor in successors]
        return Sampled([token], [TokenIdLogprob(token, -0.5)] if wanted else None, prompt)


class ScriptedEngine:
    """A server that can be killed and started again at the same address."""

    def __init__(self, path: Path, tls: ssl.SSLContext | None = None) -> None:
        self.runner = ScriptedRunner()
        self.address = f"unix://{path}" if tls is None else "wss://127.0.0.1:0"
        self._tls = tls
        self.server: EngineServer | None = None
        self._stack = contextlib.AsyncExitStack()

    async def start(self) -> None:
        model = model_info(context=1000, vocabulary=1000, eos=(EOS,))
        self.server = EngineServer(EngineCore(self.runner, model, SchedulerConfig(64, step_tokens=64, max_running=8)))
        self.address = await self._stack.enter_async_context(self.server.listening(self.address, self._tls))

    async def stop(self) -> None:
        if self.runner.gate is not None:
            self.runner.gate.release(1000)
        await self._stack.aclose()


def params(max_tokens: int = 8, **fields: object) -> SamplingParams:
    return SamplingParams(max_tokens=max_tokens, **fields)  # type: ignore[arg-type]


async def collect(generation: Generation) -> list[Delta]:
    async with generation:
        return [delta async for delta in generation]


def joined(deltas: Sequence[Delta]) -> str:
    return "".join(delta.text for delta in deltas)


async def assert_cancelled(engine: ScriptedEngine, client: EngineClient) -> None:
    """The engine has been told to drop everything, does so after the step it is in, and has all its blocks back."""
    assert client.live == 0
    with pytest.raises(RequestFailed):  # refused in its turn, so that the cancellation before it has been read
        await anext(client.generate([], params()))
    assert engine.runner.gate is not None
    engine.runner.gate.release(1)
    await until(lambda: client.load is not None and client.load.running == client.load.waiting == 0)
    assert client.load is not None
    assert client.load.free_blocks + client.load.cached_blocks == client.load.total_blocks
