"""What is left of conversations that do not fit the context, where a request lets them be truncated."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.errors import ContextLengthExceeded
from gateway.protocol.requests import Message, ToolCall
from tests.gateway.conftest import CONTEXT, Serve, Served
from tests.gateway.pipeline.turns import request, run

pytestmark = pytest.mark.anyio

SYSTEM = Message("system", "be brief")
LONG = [Message("user", f"question {number} " + "long " * 100) for number in range(30)]
"""Several times as long as the context."""


async def prompt_tokens(served: Served, messages: list[Message], **fields: Any) -> int:
    events = await run(served, request(messages=tuple(messages), **fields))
    return int(events[-1].usage.input_tokens)


async def test_as_few_of_the_oldest_messages_as_necessary_are_left_out(serve: Serve) -> None:
    """System messages stay; what is left is the prompt of the conversation without the others."""
    async with serve() as served:
        used = await prompt_tokens(served, [SYSTEM, *LONG], truncate=True, max_output_tokens=10)
        lengths = []
        for kept in range(1, len(LONG)):
            try:
                lengths.append(await prompt_tokens(served, [SYSTEM, *LONG[-kept:]], max_output_tokens=10))
            except ContextLengthExceeded:
                break
        assert used == lengths[-1] <= CONTEXT - 10
        with pytest.raises(ContextLengthExceeded):
            await prompt_tokens(served, [SYSTEM, *LONG])
        await served.settle()


async def test_what_fits_is_left_alone(serve: Serve) -> None:
    async with serve() as served:
        messages = [SYSTEM, *LONG[:2]]
        assert await prompt_tokens(served, messages, truncate=True) == await prompt_tokens(served, messages)


async def test_an_output_stays_with_its_call(serve: Serve) -> None:
    """Outputs that lead the rest of a conversation would answer nothing."""
    call = Message("assistant", "", (ToolCall("c1", "f", "{}"),))
    output = Message("tool", "5", answers="c1")
    async with serve() as served:
        used = await prompt_tokens(served, [*LONG, call, output], truncate=True, max_output_tokens=CONTEXT - 300)
        assert used == await prompt_tokens(served, [call, output])


async def test_a_newest_message_that_is_too_long_is_refused(serve: Serve) -> None:
    async with serve() as served:
        with pytest.raises(ContextLengthExceeded):
            await prompt_tokens(served, [*LONG, Message("user", "long " * 5000)], truncate=True)
        await served.settle()


async def test_over_http(serve: Serve) -> None:
    """OpenAI's parameter; the response repeats it, and keeps the whole conversation."""
    asked = [{"role": "user", "content": message.content} for message in LONG]
    async with serve() as served:
        answer = await served.client.responses.create(
            model="auto",
            input=asked,  # type: ignore[arg-type]
            truncation="auto",
            max_output_tokens=2,
        )
        items = [item async for item in served.client.responses.input_items.list(answer.id, limit=100)]
    assert (answer.truncation, len(items)) == ("auto", len(LONG))
