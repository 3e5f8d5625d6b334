"""`/v1/embeddings`, and Ollama's endpoints of the same, driven by the real clients in front of the real embedder."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import signal
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any
from unittest.mock import Mock

import numpy as np
import ollama
import openai
import pytest

from gateway.billing.report import ReportQuery, turns
from gateway.config.settings import EmbedderSettings, PriceSettings
from tests.embedder import EmbedderProcess
from tests.gateway.conftest import KEY, Serve, Served, eventually
from tests.gateway.http.test_refusals import post, refused

pytestmark = pytest.mark.anyio

MODEL = "all-MiniLM-L6-v2"
TEXTS = ["How do I reset my password?", "I forgot my password.", "Which roundhouse is the largest?"]


@contextlib.asynccontextmanager
async def embedding(
    serve: Serve, process: EmbedderProcess, dimensions: list[int] | None = None, **changes: Any
) -> AsyncIterator[Served]:
    """A gateway that has met the embedder."""
    settings = EmbedderSettings(address=f"unix://{process.socket}", dimensions=dimensions or [])
    async with serve(embedder=settings, **changes) as served:
        client = served.gateway.embedder
        assert client is not None
        await eventually(lambda: client.hello is not None)
        yield served


async def test_texts_become_vectors_in_both_encodings(serve: Serve, embedder: EmbedderProcess) -> None:
    """The client asks for base64 unless told otherwise; both are the same vectors, of length 1, close where alike."""
    async with embedding(serve, embedder) as served:
        create = served.client.embeddings.create
        encoded, floats = (
            await create(model=MODEL, input=TEXTS),
            await create(model=MODEL, input=TEXTS, encoding_format="float"),
        )
        one = await create(model=MODEL, input=TEXTS[0])
        raw = await create(model=MODEL, input=TEXTS[0], encoding_format="base64")
        await served.settle()
    assert (encoded.model, encoded.object) == (MODEL, "list")
    assert [each.index for each in encoded.data] == [0, 1, 2]
    assert {each.object for each in encoded.data} == {"embedding"}
    vectors = np.array([each.embedding for each in encoded.data])
    np.testing.assert_allclose(vectors, [each.embedding for each in floats.data], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)
    assert vectors[0] @ vectors[1] > 0.6 > vectors[0] @ vectors[2]
    np.testing.assert_allclose(vectors[0], one.data[0].embedding, atol=1e-5)
    assert isinstance(raw.data[0].embedding, str)
    np.testing.assert_allclose(
        np.frombuffer(base64.b64decode(raw.data[0].embedding), "<f4"), one.data[0].embedding, atol=1e-6
    )
    assert encoded.usage.prompt_tokens == encoded.usage.total_tokens == 9 + 7 + 9


async def test_many_texts_keep_their_order(serve: Serve, embedder: EmbedderProcess) -> None:
    """More than the embedder takes at once."""
    async with embedding(serve, embedder) as served:
        texts = [f"number {index}" for index in range(150)]
        whole = await served.client.embeddings.create(model=MODEL, input=texts)
        some = await served.client.embeddings.create(model=MODEL, input=[texts[0], texts[70], texts[149]])
    assert [each.index for each in whole.data] == list(range(150))
    for one, index in zip(some.data, (0, 70, 149), strict=True):
        np.testing.assert_allclose(one.embedding, whole.data[index].embedding, atol=1e-5)


async def test_dimensions_are_those_that_are_allowed(serve: Serve, embedder: EmbedderProcess) -> None:
    """Cut vectors have length 1 again; other lengths are refused by name."""
    async with embedding(serve, embedder, [64]) as served:
        full = await served.client.embeddings.create(model=MODEL, input="x", dimensions=384)
        cut = await served.client.embeddings.create(model=MODEL, input="x", dimensions=64)
        with pytest.raises(openai.BadRequestError, match="64, 384 dimensions, not 65") as caught:
            await served.client.embeddings.create(model=MODEL, input="x", dimensions=65)
    beginning = np.array(full.data[0].embedding[:64])
    np.testing.assert_allclose(cut.data[0].embedding, beginning / np.linalg.norm(beginning), atol=1e-5)
    assert caught.value.param == "dimensions"


@pytest.mark.parametrize(
    ("limits", "asked"),
    [({"requests_per_minute": 1}, []), ({"input_tokens_per_minute": 30}, ["count"])],
    ids=["requests", "tokens"],
)
async def test_nothing_is_computed_for_what_is_over_a_limit(
    serve: Serve,
    embedder: EmbedderProcess,
    monkeypatch: pytest.MonkeyPatch,
    limits: dict[str, int],
    asked: list[str],
) -> None:
    """Nor is it counted how many tokens a request has that is one too many."""
    async with embedding(serve, embedder, limits=limits) as served:
        await served.client.embeddings.create(model=MODEL, input=TEXTS)
        client = served.gateway.embedder
        work = Mock()
        for name in ("count", "embed"):
            work.attach_mock(Mock(side_effect=getattr(client, name)), name)
            monkeypatch.setattr(client, name, getattr(work, name))
        with pytest.raises(openai.RateLimitError, match=next(iter(limits))):
            await served.client.embeddings.create(model=MODEL, input=TEXTS)
        await served.settle()
    assert [call[0] for call in work.mock_calls] == asked


async def test_the_model_is_listed(serve: Serve, embedder: EmbedderProcess) -> None:
    """With what it reads and writes, and not as one that chats."""
    async with embedding(serve, embedder) as served:
        listed = [model async for model in served.client.models.list()][-1].to_dict()
        with pytest.raises(openai.NotFoundError):
            await served.client.completions.create(model=MODEL, prompt="hello")
    assert (listed["id"], listed["context_length"], listed["dimensions"], listed["tier"]) == (MODEL, 256, 384, None)
    assert listed["type"] == "embedding"


async def test_it_is_limited_charged_and_entered_in_the_ledger(serve: Serve, embedder: EmbedderProcess) -> None:
    """As any other use of tokens, exactly."""
    price = PriceSettings(name=MODEL, input=1_000_000, output=0)
    limits = {"input_tokens_per_minute": 40, "requests_per_minute": 100}
    async with embedding(serve, embedder, prices=[price], limits=limits) as served:
        answer = await served.client.embeddings.with_raw_response.create(model=MODEL, input=TEXTS)
        with pytest.raises(openai.RateLimitError, match="input_tokens_per_minute"):
            await served.client.embeddings.create(model=MODEL, input=TEXTS)
        await served.settle()
        assert await served.gateway.ledger.flush()
        now = datetime.now(UTC).replace(minute=0, second=0, microsecond=0)
        query = ReportQuery(since=now - timedelta(hours=1), until=now + timedelta(hours=1))
        rows = [entry async for entry in turns(served.gateway.redis, query)]
    assert answer.headers["x-roundhouse-cost-microdollars"] == "25"
    assert int(answer.headers["x-ratelimit-remaining-input-tokens"]) <= 15
    assert [(entry.model, entry.input, entry.outcome, entry.picodollars) for entry in rows] == [
        (MODEL, 25, "completed", 25_000_000)
    ]


@pytest.mark.parametrize(
    ("body", "code", "param"),
    [
        ({"model": MODEL}, "missing_required_parameter", "input"),
        ({"input": "x"}, "missing_required_parameter", "model"),
        ({"model": MODEL, "input": []}, "invalid_value", "input"),
        ({"model": MODEL, "input": ""}, "invalid_value", "input"),
        ({"model": MODEL, "input": ["a", ""]}, "invalid_value", "input"),
        ({"model": MODEL, "input": [1, 2]}, "unsupported_value", "input"),
        ({"model": MODEL, "input": [[1, 2]]}, "unsupported_value", "input"),
        ({"model": MODEL, "input": {"text": "x"}}, "invalid_value", "input"),
        ({"model": MODEL, "input": ["x"] * 2049}, "invalid_value", "input"),
        ({"model": MODEL, "input": "x", "encoding_format": "int8"}, "invalid_value", "encoding_format"),
        ({"model": MODEL, "input": "x", "dimensions": 0}, "invalid_value", "dimensions"),
        ({"model": MODEL, "input": "x", "truncate": True}, "unknown_parameter", "truncate"),
        ({"model": MODEL, "input": ["short", "word " * 300]}, "context_length_exceeded", "input"),
        ({"model": MODEL, "input": "x" * 70_000}, "context_length_exceeded", "input"),
    ],
)
async def test_what_is_refused_is_named(
    serve: Serve, embedder: EmbedderProcess, body: dict[str, Any], code: str, param: str
) -> None:
    async with embedding(serve, embedder) as served:
        refused(await post(served, "embeddings", body), 400, code, param)
        refused(await post(served, "embeddings", body, key=None), 401, "missing_api_key")
        await served.settle()


async def test_models_that_are_not_there(serve: Serve, embedder: EmbedderProcess) -> None:
    """An unknown name, and a server without embeddings."""
    async with embedding(serve, embedder) as served:
        assert MODEL in refused(
            await post(served, "embeddings", {"model": "y", "input": "x"}), 404, "model_not_found", "model"
        )
    async with serve() as served:
        refused(await post(served, "embeddings", {"model": MODEL, "input": "x"}), 404, "model_not_found", "model")


async def test_an_embedder_that_dies_is_503_until_it_is_back(serve: Serve, light_embedder: EmbedderProcess) -> None:
    """The chat does not notice, and nothing stays reserved."""
    async with embedding(serve, light_embedder) as served:
        assert light_embedder.process
        light_embedder.process.send_signal(signal.SIGSTOP)
        waiting = asyncio.create_task(post(served, "embeddings", {"model": MODEL, "input": "x"}))
        client = served.gateway.embedder
        assert client is not None
        await eventually(lambda: bool(client._waiting))
        light_embedder.kill()
        assert "try again" in refused(await waiting, 503, "unavailable")
        chat = await served.client.completions.create(model="small", prompt="hello", max_tokens=1)
        assert chat.usage
        await asyncio.to_thread(light_embedder.start)
        await eventually(client.ready.is_set)
        assert (await post(served, "embeddings", {"model": MODEL, "input": "x"})).status_code == 200
        await served.settle()


def ollama_client(served: Served) -> ollama.AsyncClient:
    return ollama.AsyncClient(served.url, headers={"authorization": f"Bearer {KEY}"})


async def test_ollamas_vectors_are_the_same(serve: Serve, embedder: EmbedderProcess) -> None:
    """Of many texts, of one, cut, and at the older endpoint; options of models have no effect on them."""
    async with embedding(serve, embedder, [64]) as served, ollama_client(served) as client:
        expected = await served.client.embeddings.create(model=MODEL, input=TEXTS)
        many = await client.embed(MODEL, TEXTS, truncate=True, keep_alive="5m", options={"num_ctx": 512})
        one = await client.embed(MODEL, TEXTS[0], dimensions=64)
        older = await client.embeddings(MODEL, TEXTS[0])
        cut = await served.client.embeddings.create(model=MODEL, input=TEXTS[0], dimensions=64)
        await served.settle()
    wanted = [each.embedding for each in expected.data]
    np.testing.assert_allclose(many.embeddings, wanted, atol=1e-6)
    np.testing.assert_allclose(one.embeddings, [cut.data[0].embedding], atol=1e-6)
    np.testing.assert_allclose(older.embedding, wanted[0], atol=1e-6)
    assert (many.model, many.prompt_eval_count, many.load_duration) == (MODEL, expected.usage.prompt_tokens, 0)
    assert many.total_duration is not None and many.total_duration > 0


async def test_what_ollamas_endpoints_refuse(serve: Serve, embedder: EmbedderProcess) -> None:
    """In Ollama's shape, which has no field: the message names it. A long text is never cut off."""
    async with (
        embedding(serve, embedder, limits={"requests_per_minute": 5}) as served,
        ollama_client(served) as client,
    ):
        cases: list[tuple[Any, int, str]] = [
            (client.embed("nobody", "x"), 404, "the embedding model 'nobody' does not exist"),
            (client.embed(MODEL, ["x", "word " * 300], truncate=True), 400, "^input: text 1 has"),
            (client.embed(MODEL, []), 400, "^input: "),
            (client.embeddings(MODEL, "word " * 300), 400, "^prompt: text 0 has"),
            (client.embeddings(MODEL, ""), 400, "^prompt: "),
        ]
        for call, status, words in cases:
            with pytest.raises(ollama.ResponseError, match=words) as caught:
                await call
            assert caught.value.status_code == status
        for _ in range(6):
            with contextlib.suppress(ollama.ResponseError):
                await client.embed(MODEL, "x")
        with pytest.raises(ollama.ResponseError, match="requests_per_minute") as caught:
            await client.embed(MODEL, "x")
        assert caught.value.status_code == 429
        await served.settle()
