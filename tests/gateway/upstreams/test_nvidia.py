"""NVIDIA's servers, as far as they differ from all others; doubles."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest

from tests.gateway.conftest import EngineThread, Serve
from tests.gateway.upstreams import subjects
from tests.gateway.upstreams.conformance import ask, collect, greedy
from tests.gateway.upstreams.nvidia_doubles import TensorrtLlm
from tests.gateway.upstreams.subjects import Subject

pytestmark = pytest.mark.anyio

QUESTION = [{"role": "user", "content": "Name three colours."}]


@pytest.fixture
async def trtllm(engine: EngineThread, model: Path) -> AsyncIterator[Subject]:
    async with subjects.of_double(TensorrtLlm, engine.address, model) as subject:
        yield subject


async def test_chosen_tokens_have_log_probabilities(trtllm: Subject) -> None:
    async with trtllm.connected() as client:
        deltas = await collect(ask(trtllm, client, sampling=greedy(8, logprobs=0)))
    tokens = [token for delta in deltas for token in delta.token_ids]
    scores = [entry for delta in deltas for entry in delta.logprobs or ()]
    assert [entry.token for entry in scores] == tokens
    assert len(tokens) == 8
    assert all(entry.logprob <= 0 and entry.top == [] for entry in scores)


async def test_what_it_does_not_know_is_refused_by_the_double(trtllm: Subject) -> None:
    """As TensorRT-LLM's models forbid it; so the other tests say that the gateway sends nothing of the kind."""
    async with httpx2.AsyncClient(base_url=trtllm.address) as http:
        answer = await http.post("/v1/completions", json={"model": "m", "prompt": [5], "cache_salt": "a"})
    assert answer.status_code == 400
    assert "cache_salt" in answer.json()["error"]


async def test_a_gateway_in_front_of_it_answers_within_the_context_that_its_pool_names(
    serve: Serve, trtllm: Subject, model: Path
) -> None:
    pool = {"dialect": "tensorrt-llm", "model": str(model), "name": "tiny", "context": 800}
    async with serve(engines={"small": [trtllm.address]}, pool=pool) as served:
        create: Any = served.client.chat.completions.create
        told = await served.client.models.retrieve("tiny")
        assert told.model_extra is not None and told.model_extra["context_length"] == 800
        answer = await create(model="small", messages=QUESTION, temperature=0, max_tokens=8, logprobs=True)
        assert answer.usage.completion_tokens == 8
        assert len(answer.choices[0].logprobs.content) == 8
        schema = {
            "type": "object",
            "properties": {"sure": {"type": "boolean"}},
            "required": ["sure"],
            "additionalProperties": False,
        }
        held = await create(
            model="small",
            messages=QUESTION,
            max_tokens=400,
            response_format={"type": "json_schema", "json_schema": {"name": "a", "schema": schema}},
        )
        assert isinstance(json.loads(held.choices[0].message.content)["sure"], bool)
        with pytest.raises(openai.BadRequestError, match="tensorrt-llm tell those of 0 tokens"):
            await create(model="small", messages=QUESTION, logprobs=True, top_logprobs=3)
        with pytest.raises(openai.BadRequestError, match="800"):
            await create(model="small", messages=[{"role": "user", "content": "train " * 800}])
        await served.settle()
