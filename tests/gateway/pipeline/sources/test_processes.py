"""The response cache of two real gateways on one real Redis, which dies in the middle."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import redis_server
from tests.gateway.conftest import eventually, receive, send
from tests.gateway.turns.processes import ANSWER, CountingEngine, GatewayProcess, gateways

pytestmark = pytest.mark.anyio

TURNS = 8
CACHING = {"ROUNDHOUSE_CACHE_ENABLED": "true", "ROUNDHOUSE_CACHE_FOLLOW_SECONDS": "5.0"}


class Reader:
    """One client's turn."""

    def __init__(self, process: GatewayProcess, question: str) -> None:
        self.text, self.events = "", []
        self.task = asyncio.create_task(self._read(process, question))
        self.events: list[dict[str, Any]]

    async def _read(self, process: GatewayProcess, question: str) -> None:
        async with asyncio.timeout(90), process.connect() as socket:
            await send(socket, type="response.create", input=question)
            while not self.events or self.events[-1]["type"] not in ("response.completed", "response.failed", "error"):
                event = await receive(socket)
                self.events.append(event)
                if event["type"] == "response.output_text.delta":
                    self.text += event["delta"]

    async def outcome(self) -> tuple[str, str]:
        """Of the cache, once the whole answer is there."""
        await self.task
        assert self.events[-1]["type"] == "response.completed", self.events[-1]
        assert self.text == self.events[-1]["response"]["output"][0]["content"][0]["text"] == ANSWER
        return next((each["cache"], each["cache_reason"]) for each in self.events if each["type"] == "roundhouse.route")


def readers(processes: Sequence[GatewayProcess], question: str) -> list[Reader]:
    return [Reader(processes[number % len(processes)], question) for number in range(TURNS)]


async def test_redis_dies_while_turns_follow_each_other_and_none_fails(model: Path) -> None:
    """One generation for all while it lives; when it dies, whoever followed elsewhere goes on with an engine of its
    own, word for word. When it is back, so is the cache."""
    server = redis_server()
    with server as url:
        async with gateways(2, model, url, pause=0.03, environments=[CACHING] * 2) as (processes, engine):
            outcomes = [await each.outcome() for each in readers(processes, "first")]
            assert outcomes.count(("miss", "absent")) == 1
            assert _generations(engine) == 1
            assert await Reader(processes[1], "first").outcome() == ("hit", "stored")

            running = readers(processes, "second")
            await eventually(lambda: all(len(each.text) > 20 for each in running), lambda: running[0].events)
            assert _generations(engine) == 2
            server.stop()
            for each in running:
                await each.outcome()
            assert _generations(engine) > 2  # the followers at the other gateway
            during = [await each.outcome() for each in readers(processes, "third")]
            assert set(during) == {("miss", "unavailable")}

            server.start()
            while (await Reader(processes[0], "fourth").outcome())[0] != "hit":  # noqa: ASYNC110
                await asyncio.sleep(0.2)
            assert await Reader(processes[1], "fourth").outcome() == ("hit", "stored")


def _generations(engine: CountingEngine) -> int:
    return len(engine.generated)
