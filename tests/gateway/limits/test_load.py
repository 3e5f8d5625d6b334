"""Fifty clients at once through real gateways: no limit is overshot by one token, and nothing is left behind."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.gateway.conftest import Serve, Served
from tests.gateway.frame_engine import FrameEngine
from tests.gateway.limits.use import STILL, used

pytestmark = pytest.mark.anyio

CLIENTS = 50
LIMIT = 5760
"""Tokens that `STILL` gives."""


@pytest.fixture
async def engine_of_frames(tmp_path: Path) -> AsyncIterator[FrameEngine]:
    async with FrameEngine(tmp_path / "engine.sock", {None: 65}).serving() as engine:
        yield engine


async def ask(served: Served, output_tokens: int, seed: int) -> Any:
    """The response, or the refusal."""
    with contextlib.suppress(openai.RateLimitError):
        return await served.client.responses.create(
            model="auto", input=f"question {seed}", max_output_tokens=output_tokens, extra_body={"ignore_eos": True}
        )
    return None


async def test_exactly_as_many_run_at_once_as_fit(serve: Serve, engine_of_frames: FrameEngine) -> None:
    engine = engine_of_frames
    engine.gate.clear()
    limits = {**STILL, "input_tokens_per_minute": None}
    async with serve(engines={"small": [engine.address]}, limits=limits) as served:
        asked = [asyncio.create_task(ask(served, 300, seed)) for seed in range(CLIENTS)]
        fit = LIMIT // 300
        while sum(task.done() for task in asked) < CLIENTS - fit:  # noqa: ASYNC110  what is waited for has no event
            await asyncio.sleep(0.01)
        engine.gate.set()
        answers = [answer for answer in await asyncio.gather(*asked) if answer is not None]
        assert [answer.usage.output_tokens for answer in answers] == [300] * fit
        await served.settle()
        assert (await used(served))["output_tokens_per_minute"] == 300 * fit


async def test_clients_that_ask_until_nothing_is_left(serve: Serve, engine_of_frames: FrameEngine) -> None:
    """Two gateways, requests of all sizes."""
    sizes = random.Random(4)
    served_tokens = [0, 0]
    async with (
        serve(engines={"small": [engine_of_frames.address]}, limits=STILL) as one,
        serve(engines={"small": [engine_of_frames.address]}, limits=STILL) as other,
    ):

        async def client(number: int) -> None:
            while True:
                answer = await ask((one, other)[number % 2], sizes.randint(1, 200), number)
                if answer is None:
                    return
                served_tokens[0] += answer.usage.input_tokens
                served_tokens[1] += answer.usage.output_tokens

        await asyncio.gather(*(client(number) for number in range(CLIENTS)))
        await one.settle()
        await other.settle()
        counted = await used(one)
        assert served_tokens == [counted["input_tokens_per_minute"], counted["output_tokens_per_minute"]]
        assert max(served_tokens) <= LIMIT
        assert max(served_tokens) > LIMIT - 200, "or the limits were not what stopped them"
