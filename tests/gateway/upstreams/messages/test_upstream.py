"""Answers of servers that take messages, which go wrong."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from starlette.applications import Starlette
from starlette.routing import Route

from engine.client.conversation import ChatPrompt, ChatPromptMessage
from engine.client.generation import RequestFailed
from engine.wire import SamplingParams
from gateway.upstreams.dialects import MESSAGE_DIALECTS
from gateway.upstreams.messages.upstream import MessageUpstream
from gateway.upstreams.pages import ServerAccess
from tests.gateway.upstreams.doubles import listening, started
from tests.gateway.upstreams.test_http import Scripted

pytestmark = pytest.mark.anyio

HELLO = ChatPrompt(messages=[ChatPromptMessage("user", "hello")], tokens=5)


@pytest.fixture
async def scripted() -> Scripted:
    """A server of OpenAI's dialect."""
    return Scripted()


@pytest.fixture
async def upstream(scripted: Scripted) -> AsyncIterator[MessageUpstream]:
    asked = Route("/v1/chat/completions", scripted.complete, methods=["POST"])
    app = Starlette(routes=[*scripted.app.routes, asked])
    async with asyncio.timeout(30), listening(app) as address:
        access = ServerAccess(lambda: None)
        upstream = MessageUpstream(address, MESSAGE_DIALECTS["openai"], "m", 1000, access, silence=30.0)
        async with started(upstream) as client:
            await client.wait_connected()
            yield client


@pytest.mark.parametrize("said", [[], ["Once"]], ids=["at once", "after a word"])
async def test_an_answer_that_ends_for_a_reason_of_the_server_s_own_has_failed(
    scripted: Scripted, upstream: MessageUpstream, said: list[str]
) -> None:
    """While nothing of it was shown, others may answer."""
    scripted.events = [{"choices": [{"delta": {"content": word}}]} for word in said]
    scripted.events += [{"choices": [{"delta": {}, "finish_reason": "abort"}]}, b"data: [DONE]\n\n"]
    answer = upstream.converse(HELLO, SamplingParams(max_tokens=8))
    text = ""
    with pytest.raises(RequestFailed, match="a reason of its own") as failed:
        async for delta in answer:
            text += delta.text
    assert failed.value.started == bool(text)
    assert upstream.connected and upstream.live == 0
