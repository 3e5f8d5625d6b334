"""A gateway in front of llama.cpp's own server at its OpenAI-compatible API: what clients of the gateway get."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import msgspec
import openai
import pytest

from gateway.config.settings import PoolSettings
from gateway.errors import InvalidRequest
from gateway.pipeline.sources.engine import LESS_PROMISED
from gateway.protocol.requests import Sampling
from tests.gateway.conftest import KEY, EngineThread, Serve, Served
from tests.gateway.pipeline.turns import request, routes, run
from tests.gateway.upstreams.conformance import NOW
from tests.gateway.upstreams.subjects import llama_server

pytestmark = pytest.mark.anyio

SERVER_KEY = "sk-llama"
QUESTION = [{"role": "user", "content": "Name three colours."}]
FUNCTION = {"name": "now", "description": "Tells the time.", "parameters": NOW.parameters}


@pytest.fixture(scope="module")
def llama_cpp(smallest_model: Path) -> Iterator[str]:
    """A server that wants a key."""
    pytest.importorskip("xllamacpp")
    with llama_server(smallest_model, SERVER_KEY) as address:
        yield address


@pytest.fixture
def pool(llama_cpp: str, tmp_path: Path) -> dict[str, Any]:
    file = tmp_path / "key"
    file.write_text(f"{SERVER_KEY}\n")
    headers = {"authorization": f"Bearer {SERVER_KEY}"}
    model = httpx2.get(f"{llama_cpp}/v1/models", headers=headers).json()["data"][0]["id"]
    return {"dialect": "openai", "model": model, "context": 1024, "api_key_file": str(file), "name": "smollm2"}


async def test_every_api_of_ours_answers_and_tells_the_server_s_counts(
    serve: Serve, llama_cpp: str, pool: dict[str, Any]
) -> None:
    async with serve(engines={"small": [llama_cpp]}, pool=pool) as served:
        asked = {"model": "small", "messages": QUESTION, "temperature": 0, "max_tokens": 8}
        stream = await served.client.chat.completions.create(
            **asked, stream=True, stream_options={"include_usage": True}
        )
        chunks = [chunk async for chunk in stream]
        pieces = [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices]
        said, usage = "".join(pieces), chunks[-1].usage
        assert len([piece for piece in pieces if piece]) > 1
        assert usage is not None and usage.completion_tokens == 8
        # Of the cache, with the counts of the first answer.
        again = await served.client.chat.completions.create(**asked)
        assert again.choices[0].message.content == said
        assert again.usage is not None and again.usage.prompt_tokens == usage.prompt_tokens
        response = await served.client.responses.create(
            model="small", input="Name three colours.", temperature=0, max_output_tokens=8
        )
        assert response.output_text == said
        assert response.usage is not None and response.usage.input_tokens == usage.prompt_tokens
        (route,) = routes(await run(served, request(sampling=Sampling())))
        assert LESS_PROMISED in route.reasons
        assert await _others(served) == [said, said]
        await served.settle()


async def _others(served: Served) -> list[str]:
    """Return what the APIs of Anthropic and Ollama answer to the same question."""
    body = {"model": "small", "messages": QUESTION}
    headers = {"authorization": f"Bearer {KEY}"}
    async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{served.port}", headers=headers, timeout=60) as http:
        anthropic = (await http.post("/v1/messages", json={**body, "max_tokens": 8, "temperature": 0})).json()
        options = {"temperature": 0, "num_predict": 8}
        ollama = (await http.post("/api/chat", json={**body, "stream": False, "options": options})).json()
    return [anthropic["content"][0]["text"], ollama["message"]["content"]]


async def test_functions_are_called_and_their_outputs_are_read(
    serve: Serve, llama_cpp: str, pool: dict[str, Any]
) -> None:
    async with serve(engines={"small": [llama_cpp]}, pool=pool) as served:
        create: Any = served.client.chat.completions.create
        question = {"role": "user", "content": "What time is it?"}
        tools = [{"type": "function", "function": FUNCTION}]
        first = await create(
            model="small", messages=[question], tools=tools, tool_choice="required", max_tokens=60, temperature=0
        )
        assert first.choices[0].finish_reason == "tool_calls"
        (made,) = first.choices[0].message.tool_calls
        assert (made.function.name, json.loads(made.function.arguments)) == ("now", {"zone": "UTC"})
        output = {"role": "tool", "tool_call_id": made.id, "content": "noon"}
        messages = [question, first.choices[0].message.model_dump(exclude_none=True), output]
        second = await create(model="small", messages=messages, max_tokens=8, temperature=0)
        assert second.choices[0].message.content
        await served.settle()


async def test_formats_stop_strings_and_log_probabilities(serve: Serve, llama_cpp: str, pool: dict[str, Any]) -> None:
    async with serve(engines={"small": [llama_cpp]}, pool=pool) as served:
        create: Any = served.client.chat.completions.create
        schema = {
            "type": "object",
            "properties": {"colour": {"type": "string", "enum": ["red", "blue"]}},
            "required": ["colour"],
            "additionalProperties": False,
        }
        format = {"type": "json_schema", "json_schema": {"name": "colour", "schema": schema}}
        answer = await create(model="small", messages=QUESTION, max_tokens=60, response_format=format)
        assert json.loads(answer.choices[0].message.content)["colour"] in ("red", "blue")
        asked = {"model": "small", "messages": QUESTION, "temperature": 0, "max_tokens": 12}
        whole = await create(**asked, logprobs=True, top_logprobs=2)
        said = whole.choices[0].message.content
        assert "".join(each.token for each in whole.choices[0].logprobs.content) == said
        stop = said[4:7]
        cut = await create(**asked, stop=[stop])
        assert cut.choices[0].message.content == said[: said.index(stop)]
        await served.settle()


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"extra_body": {"top_k": 5}}, "top_k"),
        ({"extra_body": {"stop_token_ids": [5]}}, "stop_token_ids"),
        ({"extra_body": {"chat_template_kwargs": {"enable_thinking": False}}}, "chat_template_kwargs"),
        ({"extra_body": {"structured_outputs": {"regex": "[ab]+"}}}, "structured_outputs.regex"),
    ],
)
async def test_what_the_server_cannot_do_is_refused_by_name(
    serve: Serve, llama_cpp: str, pool: dict[str, Any], fields: dict[str, Any], param: str
) -> None:
    async with serve(engines={"small": [llama_cpp]}, pool=pool) as served:
        with pytest.raises(openai.BadRequestError) as refused:
            await served.client.chat.completions.create(model="small", messages=QUESTION, max_tokens=4, **fields)  # type: ignore[arg-type]
        assert refused.value.param == param
        await served.settle()


async def test_what_the_server_cannot_do_goes_to_models_that_can(
    serve: Serve, llama_cpp: str, pool: dict[str, Any], engine: EngineThread, model: Path
) -> None:
    pools = [
        PoolSettings(tier="small", name="tiny", model=str(model), engines=[engine.address]),
        PoolSettings(tier="large", engines=[llama_cpp], **pool),
    ]
    async with serve(pools=pools) as served:
        completion = await served.client.completions.create(model="auto", prompt="Once", max_tokens=4)
        assert completion.model == "tiny"
        with pytest.raises(openai.BadRequestError, match="takes messages only") as refused:
            await served.client.completions.create(model="smollm2", prompt="Once", max_tokens=4)
        assert refused.value.param == "prompt"
        asked = request(model="large", sampling=Sampling(top_k=5))
        (route,) = routes(await run(served, asked))
        assert (route.model, route.reason) == ("tiny", "unsuited")
        assert "the large tier cannot do what top_k asks for, the small tier stands in" in route.reasons
        with pytest.raises(InvalidRequest, match="top_k") as lacking:
            await run(served, msgspec.structs.replace(asked, model="smollm2"))
        assert lacking.value.param == "top_k"
        answer = await served.client.chat.completions.create(model="large", messages=QUESTION, max_tokens=4)  # type: ignore[arg-type]
        assert answer.model == "smollm2"
        await served.settle()
