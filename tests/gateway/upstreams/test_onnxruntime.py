"""The server around ONNX Runtime's generator, alone and behind a gateway."""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest
from tokenizers import Tokenizer

from bench.onnxruntime_server import Server
from engine.client.engine_client import EngineClient
from engine.wire import SamplingParams
from tests.gateway.conftest import EngineThread, Serve
from tests.gateway.upstreams.conftest import ONNX_CONTEXT
from tests.gateway.upstreams.doubles import listening
from tests.gateway.upstreams.subjects import onnx_server

pytestmark = pytest.mark.anyio

ASKED = {
    "model": "tiny",
    "prompt": list(range(10, 40)),
    "max_tokens": 12,
    "stream": True,
    "stream_options": {"include_usage": True},
    "return_token_ids": True,
    "temperature": 0.0,
}


async def events(http: httpx2.AsyncClient, **fields: Any) -> list[dict[str, Any]]:
    """Ask for an answer; returns its events."""
    async with http.stream("POST", "/v1/completions", json={**ASKED, **fields}) as response:
        assert response.status_code == 200, await response.aread()
        found = [event.data async for event in httpx2.EventSource(response)]
    assert found.pop() == "[DONE]"
    return [json.loads(event) for event in found]


async def answer(http: httpx2.AsyncClient, **fields: Any) -> tuple[list[int], str | None]:
    """Ask for an answer; returns its tokens and how it ends."""
    choices = [event["choices"][0] for event in await events(http, **fields) if event["choices"]]
    return [token for choice in choices for token in choice["token_ids"]], choices[-1]["finish_reason"]


@pytest.fixture
async def http(onnx_model: Path) -> AsyncIterator[httpx2.AsyncClient]:
    """A client of a server that answers one request at a time."""
    async with (
        listening(Server(onnx_model, slots=1, threads=1).app) as address,
        httpx2.AsyncClient(base_url=address) as http,
    ):
        yield http


@contextlib.asynccontextmanager
async def running(http: httpx2.AsyncClient) -> AsyncIterator[None]:
    """Have the server write a long answer, until the end of the block."""
    async with http.stream("POST", "/v1/completions", json={**ASKED, "max_tokens": 8000, "ignore_eos": True}) as first:
        lines = first.aiter_lines()  # which closes the connection once nobody holds it
        await anext(lines)
        yield


async def waiting(http: httpx2.AsyncClient) -> int:
    lines = (await http.get("/metrics")).text.splitlines()
    return int(next(line for line in lines if line.startswith("onnxruntime_requests_waiting ")).split()[1])


async def until_waiting(http: httpx2.AsyncClient, count: int) -> None:
    while await waiting(http) != count:  # noqa: ASYNC110  nothing announces it
        await asyncio.sleep(0.01)


async def test_answers_are_those_of_an_engine_of_ours(http: httpx2.AsyncClient, engine: EngineThread) -> None:
    """Also where a prompt is read in several parts."""
    async with EngineClient(engine.address) as client:
        await client.wait_connected()
        for prompt in ([5], list(range(10, 40)), [7 + 13 * place % 300 for place in range(700)]):
            generation = client.generate(prompt, SamplingParams(max_tokens=40, temperature=0.0, ignore_eos=True))
            ours = [token async for delta in generation for token in delta.token_ids]
            assert await answer(http, prompt=prompt, max_tokens=40, ignore_eos=True) == (ours, "length")


async def test_usage_comes_last_where_it_is_wanted(http: httpx2.AsyncClient) -> None:
    assert (await events(http))[-1]["usage"] == {"prompt_tokens": 30, "completion_tokens": 12, "total_tokens": 42}
    assert (await events(http, stream_options={}))[-1]["choices"][0]["finish_reason"] == "length"


def ending_with(end: int, model: Path, place: Path) -> Path:
    """Return a copy of the model whose answers end with this token or another one."""
    folder = place / str(end) / "tiny"
    shutil.copytree(model, folder)
    config = json.loads((folder / "genai_config.json").read_bytes())
    config["model"]["eos_token_id"] = [3, end]
    (folder / "genai_config.json").write_text(json.dumps(config))
    return folder


async def test_an_answer_ends_at_an_end_token_unless_it_is_to_go_on(
    http: httpx2.AsyncClient, onnx_model: Path, tmp_path: Path
) -> None:
    whole, _ = await answer(http, ignore_eos=True)
    end = whole[6]
    until = whole.index(end) + 1
    server = Server(ending_with(end, onnx_model, tmp_path), slots=1, threads=1)
    async with listening(server.app) as address, httpx2.AsyncClient(base_url=address) as other:
        assert await answer(other) == (whole[:until], "stop")
        assert await answer(other, ignore_eos=True) == (whole, "length")
        tokens, _ = await answer(other, min_tokens=10)
        assert tokens[: until - 1] == whole[: until - 1] and end not in tokens[:10]


async def test_a_seed_makes_an_answer_the_same_again(http: httpx2.AsyncClient) -> None:
    sampled = {"temperature": 1.5, "top_k": 50, "top_p": 0.99, "max_tokens": 24}
    first, _ = await answer(http, **sampled, seed=3)
    assert (await answer(http, **sampled, seed=3))[0] == first
    assert (await answer(http, **sampled, seed=4))[0] != first


async def test_an_answer_that_waits_is_cancelled_with_its_connection(http: httpx2.AsyncClient) -> None:
    async with running(http):
        queued = asyncio.create_task(answer(http))
        cancelled = asyncio.create_task(answer(http))
        await until_waiting(http, 2)
        cancelled.cancel()
        await until_waiting(http, 1)
        assert not queued.done()
    tokens, finish = await queued
    assert (len(tokens), finish) == (12, "length")


async def test_more_than_may_wait_are_told_when_to_come_back(
    http: httpx2.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bench.onnxruntime_server.MOST_WAITING", 1)
    async with running(http):
        queued = asyncio.create_task(answer(http))
        await until_waiting(http, 1)
        refused = await http.post("/v1/completions", json=ASKED)
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
    await queued


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"model": "other"}, "model: only tiny is served"),
        ({"stream": False}, "stream, return_token_ids: answers are streams"),
        ({"logprobs": 2}, "return_tokens_as_token_ids: "),
        ({"prompt": [5, 320]}, "prompt: a token is not below 320"),
        ({"prompt": []}, "length >= 1 - at `$.prompt`"),
        ({"max_tokens": ONNX_CONTEXT}, f"max_tokens: the context has {ONNX_CONTEXT} tokens; shorten"),
        ({"min_p": 0.1}, "unknown field `min_p`"),
        ({"temperature": -1}, ">= 0.0 - at `$.temperature`"),
        ({"structured_outputs": {"regex": "("}}, "unclosed group"),
        ({"structured_outputs": {"json": {"type": "array", "uniqueItems": True}}}, "uniqueItems"),
    ],
)
async def test_what_cannot_be_served_is_refused(http: httpx2.AsyncClient, fields: dict[str, Any], message: str) -> None:
    refused = await http.post("/v1/completions", json={**ASKED, **fields})
    assert refused.status_code == 400
    assert message in refused.json()["error"]["message"]


async def test_a_request_has_at_most_so_many_bytes(http: httpx2.AsyncClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bench.onnxruntime_server.MOST_BYTES", 100)
    assert (await http.post("/v1/completions", json=ASKED)).status_code == 413


async def test_an_answer_follows_a_grammar(http: httpx2.AsyncClient) -> None:
    """To its end, also where the answer would not end otherwise."""
    for structured in (
        {"regex": "[ab]{5}"},
        {"choice": ["漢|字", "🎉"]},
        {"json": {"const": 7}},
        {"grammar": 'start: "a"'},
    ):
        fields = {"structured_outputs": structured, "max_tokens": 100}
        tokens, finish = await answer(http, **fields)
        assert (tokens[-1], finish) == (2, "stop")
        assert await answer(http, **fields, ignore_eos=True) == (tokens, finish)


async def test_an_answer_may_have_to_be_an_object(http: httpx2.AsyncClient, onnx_model: Path) -> None:
    tokens, _ = await answer(http, structured_outputs={"json_object": True}, max_tokens=20)
    assert Tokenizer.from_file(str(onnx_model / "tokenizer.json")).decode(tokens).lstrip().startswith("{")


QUESTION = [{"role": "user", "content": "Name three colours."}]


async def test_a_pool_serves_from_it(serve: Serve, onnx_model: Path, model: Path, tmp_path: Path) -> None:
    """With a key, under a name of its own, and refusing what the generator lacks."""
    key = tmp_path / "key"
    key.write_text("sk-onnx\n")
    pool = {"dialect": "onnxruntime", "model": str(model), "api_key_file": str(key), "name": "onnx"}
    with onnx_server(onnx_model, f"--key-file={key}") as address:
        assert httpx2.get(f"{address}/health").status_code == 401
        async with serve(engines={"small": [address]}, pool=pool) as served:
            create = served.client.chat.completions.create
            asked = {"model": "onnx", "messages": QUESTION, "temperature": 0, "max_tokens": 12}
            whole = await create(**asked, logprobs=True)
            stream = await create(**asked, seed=1, stream=True)
            pieces = [chunk.choices[0].delta.content or "" async for chunk in stream if chunk.choices]
            assert "".join(pieces) == whole.choices[0].message.content
            assert whole.usage is not None and whole.usage.completion_tokens == 12
            form = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "boolean"}}}
            formed = await create(model="onnx", messages=QUESTION, max_tokens=40, response_format=form)
            assert formed.choices[0].message.content in ("true", "false")
            with pytest.raises(openai.BadRequestError) as refused:
                await create(**asked, presence_penalty=0.5)
            assert refused.value.param == "presence_penalty" and "onnxruntime" in refused.value.message
            await served.settle()
