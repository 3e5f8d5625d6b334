"""Structured output over a real socket: what is asked for is what comes, or a 400 and nothing else."""

from __future__ import annotations

from typing import Any

import openai
import pytest

from tests.gateway.conftest import Serve, Served, receive, send

pytestmark = pytest.mark.anyio

USER: Any = [{"role": "user", "content": "hello"}]
BAD_SCHEMA = {"type": "json_schema", "name": "bad", "schema": {"type": "strange"}}
SLOW = {"burst_tokens": 5000, "tokens_per_minute": 1}
"""A bucket that does not fill up again while a test looks."""
BAD_REGEX = {"type": "regex", "pattern": "(["}


def wrong(error: openai.APIStatusError, param: str) -> None:
    """Check that one field was refused, and how."""
    assert (error.status_code, error.type, error.code) == (400, "invalid_request_error", "invalid_value")
    assert error.param == param
    assert error.message.find(param) >= 0


class TestRefused:
    """Only the engine knows what it cannot compile; the client still gets a 400."""

    @pytest.mark.parametrize("stream", [False, True])
    @pytest.mark.parametrize(("format", "param"), [(BAD_SCHEMA, "schema"), (BAD_REGEX, "pattern")])
    async def test_by_responses(self, serve: Serve, stream: bool, format: Any, param: str) -> None:
        """Streamed or not: the status is that of the response, before its first event."""
        async with serve(limits=SLOW) as served:
            with pytest.raises(openai.BadRequestError) as caught:
                await served.client.responses.create(
                    model="auto", input="hi", text={"format": format}, stream=stream, max_output_tokens=4
                )
            wrong(caught.value, f"text.format.{param}")
            await unspent(served)

    @pytest.mark.parametrize("stream", [False, True])
    async def test_by_chat_completions(self, serve: Serve, stream: bool) -> None:
        """The same under its own field names."""
        format: Any = {"type": "json_schema", "json_schema": {"name": "bad", "schema": {"type": "strange"}}}
        async with serve(limits=SLOW) as served:
            with pytest.raises(openai.BadRequestError) as caught:
                await served.client.chat.completions.create(
                    model="auto", messages=USER, response_format=format, stream=stream, max_tokens=4
                )
            wrong(caught.value, "response_format.json_schema.schema")
            await unspent(served)

    async def test_by_completions(self, serve: Serve) -> None:
        """In vLLM's spelling."""
        async with serve(limits=SLOW) as served:
            with pytest.raises(openai.BadRequestError) as caught:
                await served.client.completions.create(
                    model="auto", prompt="hi", max_tokens=4, extra_body={"structured_outputs": {"regex": "(["}}
                )
            wrong(caught.value, "structured_outputs.regex")
            await unspent(served)

    async def test_by_the_websocket(self, serve: Serve) -> None:
        """One `error` event, and no `response.created` before it; the connection goes on."""
        async with serve() as served, served.connect() as socket:
            await send(socket, type="response.create", input="hi", text={"format": BAD_REGEX}, stream_id="a")
            event = await receive(socket)
            assert (event["type"], event["status"], event["stream_id"]) == ("error", 400, "a")
            assert event["error"]["type"] == "invalid_request_error"
            assert event["error"]["param"] == "text.format.pattern"
            await send(socket, type="response.create", input="hi", max_output_tokens=1, stream_id="a")
            assert (await receive(socket))["type"] == "response.created"

    async def test_by_no_other_engine(self, serve: Serve, engine: Any) -> None:
        """What is wrong with the request is wrong everywhere: engines are healthy, and nobody else is asked."""
        async with serve(engines={"small": [engine.address], "large": [engine.address]}) as served:
            for _ in range(served.gateway.settings.router.breaker_failures + 1):
                with pytest.raises(openai.BadRequestError):
                    await served.client.responses.create(model="auto", input="hi", text={"format": BAD_REGEX})
            answer = await served.client.responses.create(model="small", input="hi", max_output_tokens=1)
            assert answer.model == "tiny-small"


async def unspent(served: Served) -> None:
    """A refused request leaves nothing behind and costs no token: all that is missing is what the next turn used."""
    await served.settle()
    async with served.connect() as socket:
        await send(socket, type="response.create", input="hi", max_output_tokens=1)
        events = [await receive(socket)]
        while not events[-1]["type"].startswith(("response.completed", "response.incomplete")):
            events.append(await receive(socket))
    (limits,) = (event["tokens"] for event in events if event["type"] == "roundhouse.limits")
    used = events[-1]["response"]["usage"]["total_tokens"]
    assert limits["limit"] - limits["remaining"] == used
