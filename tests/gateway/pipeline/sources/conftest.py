"""Gateways in front of an engine that says what a test wants, and turns on them."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from cache import statistics
from engine.wire import Generate
from gateway.access.identity import Principal
from gateway.protocol.requests import Message, Sampling, TurnRequest
from gateway.protocol.stream import Finished, Routed, TextDelta
from gateway.turns import Turn
from tests.gateway.conftest import Serve, Served, eventually
from tests.gateway.frame_engine import FrameEngine

DEMO = Principal("demo", "demo")
TEXT = "A prefix cache keeps what it knows."


class Speaker:
    """An engine that says `text`, a token at a time. Ends of answers wait while `engine.gate` is closed."""

    def __init__(self, engine: FrameEngine, model: Path) -> None:
        self.engine = engine
        self.tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
        self.text = TEXT
        self.wordless: Callable[[int], bool] = lambda number: False
        """Whether a generation, by its number, gives no token before the gate is open."""
        engine.finish = "stop"
        engine.script = self._steps

    def _steps(self, request: Generate) -> list[list[int]]:
        if self.wordless(len(self.engine.generated)):
            return []
        return [[token] for token in self.tokenizer.encode(self.text).ids]

    @property
    def asked(self) -> int:
        """Number of generations that were asked for."""
        return len(self.engine.generated)

    @property
    def asked_last(self) -> str:
        """The last prompt."""
        return str(self.tokenizer.decode(self.engine.generated[-1].prompt, skip_special_tokens=False))


@pytest.fixture
async def speaker(model: Path) -> AsyncIterator[Speaker]:
    with tempfile.TemporaryDirectory(prefix="rh-") as folder:  # socket paths are short
        async with FrameEngine(Path(folder) / "e.sock", {}).serving() as engine:
            yield Speaker(engine, model)


@contextlib.asynccontextmanager
async def speaking(serve: Serve, speaker: Speaker, **sections: Any) -> AsyncIterator[Served]:
    """Start a gateway in front of it; nothing may be left over at the end."""
    async with serve(**{"engines": {"small": [speaker.engine.address]}, **sections}) as served:
        yield served
        speaker.engine.gate.set()
        await served.settle()


def request(text: str = "What is a prefix cache?", **fields: Any) -> TurnRequest:
    defaults: dict[str, Any] = {"model": "auto", "messages": (Message("user", text),), "sampling": Sampling()}
    return TurnRequest(**{**defaults, **fields})


class Asked:
    """One turn that runs, seen by one viewer."""

    def __init__(self, served: Served, asked: TurnRequest, principal: Principal) -> None:
        self.turn: Turn | None = None
        self.events: list[Any] = []
        self._task = asyncio.create_task(self._run(served, asked, principal))

    async def _run(self, served: Served, asked: TurnRequest, principal: Principal) -> list[Any]:
        with await served.gateway.turns.start(asked, principal) as viewer:
            self.turn = viewer.turn
            async for entry in viewer.entries():
                if entry.event is not None:
                    self.events.append(entry.event)
        return self.events

    async def ended(self) -> list[Any]:
        async with asyncio.timeout(30):
            return await self._task

    async def gone(self) -> None:
        """Let the client go away."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    @property
    def text(self) -> str:
        return text_of(self.events)


def ask(served: Served, asked: TurnRequest | None = None, principal: Principal = DEMO) -> Asked:
    """Begin a turn."""
    return Asked(served, asked or request(), principal)


async def run(served: Served, asked: TurnRequest | None = None, principal: Principal = DEMO) -> list[Any]:
    """The events of one turn."""
    return await ask(served, asked, principal).ended()


async def said(asked: Asked, text: str = TEXT) -> None:
    """Wait until this is a turn's text."""
    await eventually(lambda: asked.text == text, lambda: asked.events)


def text_of(events: list[Any]) -> str:
    return "".join(event.text for event in events if isinstance(event, TextDelta))


def deltas_of(events: list[Any]) -> list[TextDelta]:
    return [event for event in events if isinstance(event, TextDelta)]


def routes(events: list[Any]) -> list[Routed]:
    return [event for event in events if isinstance(event, Routed)]


def outcome(events: list[Any]) -> tuple[str, str]:
    """Return the cache's outcome and reason, as the last route says."""
    route = routes(events)[-1]
    return route.cache, route.cache_reason


def end_of(events: list[Any]) -> Finished:
    assert isinstance(events[-1], Finished)
    return events[-1]


async def counted(served: Served, tenant: str = "demo") -> dict[str, int]:
    """Return the tenant's counters, once all of them are written."""
    await served.gateway.statistics.flush()
    return dict((await statistics.read(served.gateway.redis, tenant=tenant))[tenant])
