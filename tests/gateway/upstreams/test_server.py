"""What the failures of other projects' servers say of the answers that they end."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from engine.client.generation import EngineGone, RequestFailed
from engine.text.processor import TextProcessor
from tests.gateway.upstreams.test_http import PARAMS, Scripted, chunk, connected, said

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def text(model: Path) -> TextProcessor:
    return TextProcessor.from_path(model)


async def test_who_refuses_the_rest_of_an_answer_does_not_deny_its_beginning(text: TextProcessor) -> None:
    """Else it would be asked for once more from there, and what the client has read would be repeated."""
    scripted = Scripted()
    scripted.events = [chunk(70), 60.0]
    async with connected(scripted, text) as upstream:
        generation = upstream.generate([5], PARAMS)
        await anext(generation)
        assert upstream.hand_on() == 1
        with pytest.raises(EngineGone):
            await anext(generation)
        scripted.elsewhere = "http://127.0.0.1:9"
        upstream.resume(generation)
        with pytest.raises(RequestFailed, match="307") as refused:
            await anext(generation)
        assert refused.value.started


async def test_an_error_that_comes_with_the_first_token_says_whether_that_was_taken(text: TextProcessor) -> None:
    """The consumer may take it while the connection is closed."""
    scripted = Scripted()
    error = {"error": {"message": "no more", "code": 500}}
    scripted.events = ["".join(f"data: {json.dumps(event)}\n\n" for event in (chunk(70), error)).encode()]
    async with connected(scripted, text) as upstream:
        generation, taken = upstream.generate([5], PARAMS), 0
        with pytest.raises(RequestFailed) as failed:
            async for _ in generation:
                taken += 1
        assert failed.value.started == (taken > 0)


async def test_a_connection_that_the_server_closes_after_each_answer_is_not_used_again(text: TextProcessor) -> None:
    """llama.cpp's server does so without saying it: a request that is on its way by then is lost."""
    scripted = Scripted()
    scripted.events = [chunk(70), chunk(finish="length")]
    async with connected(scripted, text) as upstream:
        for _ in range(3):
            await said(upstream.generate([5], PARAMS))
    assert len(scripted.ports) == 1
    scripted.software = "llama.cpp"
    async with connected(scripted, text) as upstream:
        for _ in range(3):
            await said(upstream.generate([5], PARAMS))
    assert len(scripted.ports) == 4
