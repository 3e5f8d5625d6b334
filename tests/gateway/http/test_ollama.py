"""Ollama's endpoints, driven by the real `ollama` client over a real socket."""

from __future__ import annotations

import contextlib
import json
from collections import defaultdict
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import ollama
import pytest

from engine.text.processor import TextProcessor
from tests.gateway.conftest import KEY, Serve, Served
from tests.gateway.frame_engine import FrameEngine
from tests.gateway.tools.functions import TOOLS

pytestmark = pytest.mark.anyio

USER: Any = [{"role": "user", "content": "hello"}]
OPTIONS: Any = {"num_predict": 8, "temperature": 0}
NESTED: Any = [
    {"type": "function", "function": {k: v for k, v in tool.items() if k not in ("type", "strict")}} for tool in TOOLS
]


@contextlib.asynccontextmanager
async def serving(serve: Serve, **changes: Any) -> AsyncIterator[tuple[Served, ollama.AsyncClient]]:
    async with (
        serve(**changes) as served,
        ollama.AsyncClient(served.url, headers={"authorization": f"Bearer {KEY}"}) as client,
    ):
        yield served, client


async def test_a_chat_whole_and_streamed(serve: Serve) -> None:
    """The same text, which is that of a chat completion; the end has counts and times."""
    async with serving(serve) as (served, client):
        whole = await client.chat("small", USER, options=OPTIONS)
        stream = await client.chat("small", USER, options=OPTIONS, stream=True, think=False, keep_alive="5m")
        parts = [part async for part in stream]
        chat = await served.client.chat.completions.create(model="small", messages=USER, max_tokens=8, temperature=0)
        await served.settle()
    text = chat.choices[0].message.content
    assert whole.message.content == "".join(part.message.content or "" for part in parts) == text
    assert [part.done for part in parts] == [False] * (len(parts) - 1) + [True]
    for last in (whole, parts[-1]):
        assert chat.usage is not None
        assert (last.model, last.prompt_eval_count) == ("tiny-small", chat.usage.prompt_tokens)
        assert last.eval_count == chat.usage.completion_tokens
        assert last.done_reason == chat.choices[0].finish_reason
        assert last.total_duration is not None and last.eval_duration is not None
        assert last.total_duration >= last.eval_duration


async def test_a_prompt_and_a_raw_prompt(serve: Serve) -> None:
    async with serving(serve) as (served, client):
        asked = await client.generate("small", "hello", options=OPTIONS)
        chat = await client.chat("small", USER, options=OPTIONS)
        raw = await client.generate("small", "hello", raw=True, options=OPTIONS, stream=True)
        parts = [part async for part in raw]
        completion = await served.client.completions.create(model="small", prompt="hello", max_tokens=8, temperature=0)
    assert asked.response == chat.message.content
    assert "".join(part.response or "" for part in parts) == completion.choices[0].text


async def test_a_format(serve: Serve) -> None:
    schema = {"type": "object", "properties": {"a": {"enum": ["x", "y"]}}, "required": ["a"]}
    schema |= {"additionalProperties": False}
    async with serving(serve) as (_, client):
        options = {"temperature": 2, "num_predict": 600}
        answer = await client.generate("small", "hi", format=schema, options=options)
    assert json.loads(answer.response or "")["a"] in ("x", "y")


@pytest.mark.parametrize("stream", [False, True])
async def test_a_call_and_its_output(serve: Serve, model: Path, tmp_path: Path, stream: bool) -> None:
    """Whole or streamed, a call has its arguments as an object; the conversation goes on with its output."""
    text = TextProcessor.from_path(model)
    engine = FrameEngine(tmp_path / "engine.sock", defaultdict(lambda: text.encode("x")[-1]))
    call = '<tool_call>\n{"name": "roll_dice", "arguments": {"sides": [4]}}\n</tool_call>'
    engine.script = lambda request: [[token] for token in text.encode(call)]
    async with engine.serving(), serving(serve, engines={"small": [engine.address]}) as (served, client):
        asked: Any = {"tools": NESTED, "options": {"num_predict": 200}}
        if stream:
            parts = [part async for part in await client.chat("small", USER, stream=True, **asked)]
        else:
            parts = [await client.chat("small", USER, **asked)]
        (said,) = [part.message for part in parts if part.message.tool_calls]
        (made,) = said.tool_calls or ()
        history = [*USER, said, {"role": "tool", "content": "5", "tool_name": "roll_dice"}]
        after = await client.chat("small", history, **asked)
        await served.settle()
    assert (made.function.name, made.function.arguments) == ("roll_dice", {"sides": [4]})
    assert (after.prompt_eval_count or 0) > (parts[-1].prompt_eval_count or 0)


async def test_a_stream_is_a_line_for_each_object(serve: Serve) -> None:
    async with serve() as served, httpx2.AsyncClient(headers={"authorization": f"Bearer {KEY}"}) as plain:
        body = {"model": "small", "messages": USER, "options": OPTIONS}
        response = await plain.post(f"{served.url}/api/chat", json=body)
    assert response.headers["content-type"].startswith("application/x-ndjson")
    assert [json.loads(line)["done"] for line in response.text.splitlines()][-1] is True


async def test_models_are_listed_and_shown(serve: Serve) -> None:
    async with serving(serve) as (served, client):
        listed = await client.list()
        shown = await client.show("tiny-small")
        with pytest.raises(ollama.ResponseError) as caught:
            await client.show("nobody")
        async with httpx2.AsyncClient() as plain:
            version = (await plain.get(f"{served.url}/api/version")).json()["version"]
    assert [model.model for model in listed.models] == ["auto", "small", "tiny-small"]
    assert shown.capabilities == ["completion", "tools"]
    assert shown.modelinfo is not None and shown.modelinfo["roundhouse.context_length"] == 4096
    assert (caught.value.status_code, version.count(".")) == (404, 2)


@pytest.mark.parametrize("stream", [False, True])
async def test_errors(serve: Serve, stream: bool) -> None:
    """In Ollama's shape, with the status of other endpoints."""
    async with serve() as served:
        for key, model, status in (("wrong", "small", 401), (KEY, "nobody", 404)):
            async with httpx2.AsyncClient(headers={"authorization": f"Bearer {key}"}) as plain:
                body = {"model": model, "messages": USER, "options": OPTIONS, "stream": stream}
                response = await plain.post(f"{served.url}/api/chat", json=body)
            assert response.status_code == status
            assert isinstance(response.json()["error"], str)


async def test_limits_hold(serve: Serve) -> None:
    async with serving(serve, limits={"requests_per_minute": 1}) as (served, client):
        await client.chat("small", USER, options=OPTIONS)
        with pytest.raises(ollama.ResponseError, match="is reached") as caught:
            await client.generate("small", "hello")
        await served.settle()
    assert caught.value.status_code == 429


async def test_a_drain_ends_a_stream_with_an_error(serve: Serve) -> None:
    async with serving(serve) as (served, client):
        options: Any = {"num_predict": 3000, "ignore_eos": True}
        stream = await client.chat("small", USER, options=options, stream=True)
        with pytest.raises(ollama.ResponseError, match="restarting"):
            async for _ in stream:
                await served.gateway.turns.drain(0)
        await served.settle()
