"""A server that goes on with answers although their connections were closed is found out; one that ends them is not."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from engine.text.processor import TextProcessor
from engine.wire import SamplingParams
from gateway.upstreams import cancelled
from gateway.upstreams.dialects import TOKEN_DIALECTS
from gateway.upstreams.http import HttpUpstream
from gateway.upstreams.pages import ServerAccess
from tests.gateway.conftest import eventually
from tests.gateway.upstreams.doubles import listening

pytestmark = pytest.mark.anyio

SEED = 77
PARAMS = SamplingParams(max_tokens=800, temperature=0.0, ignore_eos=True, seed=SEED)


class Endless:
    """A server of llama.cpp's or vLLM's dialect whose answers never end."""

    def __init__(self, *, deaf: bool) -> None:
        """Args: deaf: whether they do not even end when their connection is closed."""
        self.running: list[int] = []
        """Seeds of the answers that it gives."""
        self.looks = 0
        self._deaf = deaf

    @property
    def app(self) -> Starlette:
        routes = [
            Route("/health", lambda _: Response()),
            Route("/v1/models", self.models),
            Route("/props", lambda _: JSONResponse({"default_generation_settings": {"n_ctx": 4096}})),
            Route("/slots", self.slots),
            Route("/metrics", self.metrics),
            Route("/completion", self.answer, methods=["POST"]),
            Route("/v1/completions", self.answer, methods=["POST"]),
        ]
        return Starlette(routes=routes)

    async def models(self, _: Request) -> Response:
        return JSONResponse({"data": [{"id": "m", "max_model_len": 4096}]})

    async def slots(self, _: Request) -> Response:
        self.looks += 1
        busy = [{"is_processing": True, "params": {"seed": seed}} for seed in self.running]
        return JSONResponse([*busy, {"is_processing": False}])

    async def metrics(self, _: Request) -> Response:
        self.looks += 1
        return PlainTextResponse(f"vllm:num_requests_running {len(self.running)}\nvllm:num_requests_waiting 0\n")

    async def answer(self, request: Request) -> Response:
        seed = (await request.json())["seed"]

        async def events() -> AsyncIterator[str]:
            self.running.append(seed)
            try:
                while True:
                    yield 'data: {"content": "a", "tokens": [5], "choices": [{"token_ids": [5]}]}\n\n'
                    await asyncio.sleep(0.01)
            finally:
                if not self._deaf:
                    self.running.remove(seed)

        return StreamingResponse(events(), media_type="text/event-stream")


@pytest.mark.parametrize("dialect", ["llama.cpp", "vllm"])
@pytest.mark.parametrize("deaf", [True, False])
async def test_an_answer_that_goes_on_is_counted_and_logged(
    dialect: str, deaf: bool, model: object, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    if deaf:
        monkeypatch.setattr(cancelled, "PATIENCE", 0.0)
        monkeypatch.setattr(cancelled, "LAG", 3.0)
    server = Endless(deaf=deaf)
    text = TextProcessor.from_path(str(model))
    async with listening(server.app) as address:
        upstream = HttpUpstream(address, TOKEN_DIALECTS[dialect], text, ServerAccess(lambda: None))
        await upstream.start()
        await upstream.wait_connected()
        with caplog.at_level(logging.WARNING):
            async with upstream.generate([5, 6], PARAMS) as generation:
                await anext(aiter(generation))
                assert server.running == [SEED]
            if deaf:
                await eventually(lambda: upstream.lingered == 1)
            else:
                await eventually(lambda: not server.running)
                before = server.looks
                await eventually(lambda: server.looks > before + 2)
                assert upstream.lingered == 0
        told = [each for each in caplog.messages if "goes on with answers" in each]
        assert len(told) == deaf
        await upstream.aclose()
