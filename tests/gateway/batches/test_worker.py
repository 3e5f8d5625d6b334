"""Batches through a real gateway, engine and Redis, driven by the `openai` client."""

from __future__ import annotations

import asyncio
import json
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import openai
import pytest
import redis as synchronous
from openai.types import Batch, Completion, CreateEmbeddingResponse
from openai.types.chat import ChatCompletion
from openai.types.responses import Response

from engine.wire import Generate
from gateway.access.identity import Principal
from gateway.batches import state, worker
from gateway.batches.files import FILE_KEY, new_id
from gateway.batches.state import BatchDocument
from gateway.batches.store import QUEUE_KEY
from gateway.config.batches import BatchSettings
from gateway.config.settings import EmbedderSettings, PriceSettings
from gateway.records.directory import Key, Tenant
from tests.embedder import EmbedderProcess
from tests.gateway.access.identity.test_connections import new_caller
from tests.gateway.batches.use import begun, ended, jsonl, line, results, uploaded
from tests.gateway.conftest import Serve, Served, eventually
from tests.gateway.frame_engine import FrameEngine

pytestmark = pytest.mark.anyio

QUESTIONS = [f"question {number}" for number in range(5)]


@pytest.fixture
async def frames() -> AsyncIterator[FrameEngine]:
    """An engine that answers while its gate is open."""
    with tempfile.TemporaryDirectory(prefix="rh-") as folder:  # socket paths are short
        async with FrameEngine(Path(folder) / "e.sock", {None: 70}).serving() as engine:
            yield engine
            engine.gate.set()


async def in_progress(client: openai.AsyncOpenAI, batch: Batch) -> None:
    async with asyncio.timeout(20):
        while (await client.batches.retrieve(batch.id)).status != "in_progress":  # noqa: ASYNC110
            await asyncio.sleep(0.01)


def metric(served: Served, name: str, **labels: str) -> float | None:
    return served.gateway.metrics.registry.get_sample_value(name, labels)


class TestAnswers:
    """What comes of lines."""

    @pytest.mark.parametrize(
        ("endpoint", "body", "type_"),
        [
            ("/v1/chat/completions", {}, ChatCompletion),
            ("/v1/completions", {"prompt": ["a", "b"], "max_tokens": 3}, Completion),
            ("/v1/responses", {"input": "hello", "max_output_tokens": 3}, Response),
        ],
    )
    async def test_are_those_of_the_endpoint(
        self, serve: Serve, endpoint: str, body: dict[str, Any], type_: type[Any]
    ) -> None:
        """Valid in OpenAI's types, strictly, and the same as over HTTP."""
        async with serve() as served:
            client = served.client
            lines = [line(each, endpoint, **body) for each in QUESTIONS]
            batch = await begun(client, lines, endpoint=endpoint, metadata={"run": "1"})
            assert batch.status == "validating"
            batch = await ended(client, batch)
            assert (batch.status, batch.metadata, batch.errors) == ("completed", {"run": "1"}, None)
            counts = batch.request_counts
            assert counts is not None and (counts.total, counts.completed, counts.failed) == (5, 5, 0)
            assert batch.error_file_id is None
            answers, tokens = await results(client, batch.output_file_id), 0
            for each in lines:
                answer = answers[each["custom_id"]]["response"]
                assert answer["status_code"] == 200 and answer["request_id"].startswith("req_")
                valid = type_.model_validate_json(json.dumps(answer["body"]), strict=True)
                said = await client.post(
                    endpoint.removeprefix("/v1"),
                    body=each["body"],
                    cast_to=dict[str, Any],
                    options={"headers": {"cache-control": "no-store"}},
                )
                for field in ("choices", "output"):
                    told, over_http = (
                        json.dumps([{**part, "id": None} for part in given.get(field, [])])
                        for given in (answer["body"], said)
                    )
                    assert told == over_http
                tokens += valid.usage.total_tokens
            assert batch.usage is not None and batch.usage.total_tokens == tokens
            output = await client.files.retrieve(batch.output_file_id or "")
            assert (output.purpose, output.filename) == ("batch_output", f"{batch.id}_output.jsonl")
            await served.settle()
            assert metric(served, "roundhouse_batch_lines_total", result="completed") == 5
            assert metric(served, "roundhouse_batch_lines_waiting") == 0

    async def test_are_vectors_too(self, serve: Serve, light_embedder: EmbedderProcess) -> None:
        settings = EmbedderSettings(address=f"unix://{light_embedder.socket}")
        async with serve(embedder=settings) as served:
            embedder = served.gateway.embedder
            assert embedder is not None
            await eventually(lambda: embedder.hello is not None)
            assert embedder.hello is not None
            body = {"custom_id": "a", "method": "POST", "url": "/v1/embeddings"}
            lines = [{**body, "body": {"model": embedder.hello.model, "input": ["x", "y"]}}]
            batch = await ended(served.client, await begun(served.client, lines, endpoint="/v1/embeddings"))
            answer = (await results(served.client, batch.output_file_id))["a"]["response"]
            vectors = CreateEmbeddingResponse.model_validate_json(json.dumps(answer["body"]), strict=True)
            assert len(vectors.data) == 2

    async def test_a_refused_line_costs_only_itself(self, serve: Serve) -> None:
        """Its error is in the other file, as the endpoint gives it."""
        async with serve() as served:
            lines = [
                line("good"),
                line("unknown", model="huge"),
                line("wrong", temperature=9),
                line("stream", stream=True),
                line("background", background=True),
                line("long", messages=[{"role": "user", "content": "word " * 9000}]),
            ]
            batch = await ended(served.client, await begun(served.client, lines))
            counts = batch.request_counts
            assert counts is not None and (batch.status, counts.completed, counts.failed) == ("completed", 1, 5)
            assert list(await results(served.client, batch.output_file_id)) == ["good"]
            errors = await results(served.client, batch.error_file_id)
            told = {id: (each["response"]["status_code"], each["error"]) for id, each in errors.items()}
            refused = dict.fromkeys(("wrong", "stream", "background", "long"), (400, None))
            assert told == {"unknown": (404, None), **refused}
            error = errors["wrong"]["response"]["body"]["error"]
            assert (error["param"], error["code"]) == ("temperature", "invalid_value")
            for name in ("stream", "background"):
                assert errors[name]["response"]["body"]["error"]["param"] == name

    async def test_a_file_of_bad_lines_fails_and_says_why(self, serve: Serve) -> None:
        async with serve() as served:
            batch = await ended(served.client, await begun(served.client, [line("a"), {"custom_id": "b"}, line("a")]))
            assert batch.status == "failed" and batch.failed_at is not None
            assert batch.errors is not None and batch.errors.data is not None
            told = [(error.line, error.code, error.param) for error in batch.errors.data]
            assert told == [(2, "missing_required_parameter", "method"), (3, "duplicate_custom_id", "custom_id")]
            assert batch.output_file_id is None and batch.error_file_id is None

    async def test_nothing_lies_in_redis_in_clear(self, serve: Serve, redis_url: str) -> None:
        async with serve() as served:
            lines = [line("zanzibar-1", messages=[{"role": "user", "content": "zanzibar"}])]
            batch = await ended(served.client, await begun(served.client, lines, metadata={"note": "zanzibar"}))
            with synchronous.Redis.from_url(redis_url) as client:
                for key in client.scan_iter("*"):
                    assert b"zanzibar" not in client.dump(key), key
            assert batch.status == "completed"

    async def test_a_response_is_stored_only_if_the_line_says_so(self, serve: Serve) -> None:
        async with serve() as served:
            body = {"input": "hello", "max_output_tokens": 2}
            lines = [line("kept", "/v1/responses", **body, store=True), line("not", "/v1/responses", **body)]
            batch = await ended(served.client, await begun(served.client, lines, endpoint="/v1/responses"))
            answers = await results(served.client, batch.output_file_id)
            assert {id: each["response"]["body"]["store"] for id, each in answers.items()} == {
                "kept": True,
                "not": False,
            }


class TestOrder:
    """Behind everybody else."""

    async def test_lines_are_of_the_lowest_class_whatever_they_say(self, serve: Serve, frames: FrameEngine) -> None:
        async with serve(engines={"small": [frames.address]}) as served:
            lines = [line("a"), line("b", service_tier="priority")]
            batch = await ended(served.client, await begun(served.client, lines))
            answers = await results(served.client, batch.output_file_id)
            assert {each["response"]["body"]["service_tier"] for each in answers.values()} == {"flex"}
            assert [request.service for request in frames.generated] == ["batch", "batch"]

    async def test_a_tenant_without_that_class_makes_no_batches(self, serve: Serve) -> None:
        async with serve() as served:
            key = await new_caller(served)
            await served.gateway.directory.write(Tenant(name="acme", services=["standard"]), actor="test")
            await served.gateway.view.refresh()
            with pytest.raises(openai.PermissionDeniedError, match="services"):
                await begun(served.client.with_options(api_key=key), [line("a")])

    async def test_so_many_lines_run_at_once(self, serve: Serve, frames: FrameEngine) -> None:
        """Of one tenant, however many batches it has; of the gateway."""
        settings = BatchSettings(lines_at_once=3, lines_at_once_per_tenant=2)
        async with serve(engines={"small": [frames.address]}, batches=settings) as served:
            frames.gate.clear()
            other = served.client.with_options(api_key=await new_caller(served))
            mine = [await begun(served.client, [line(f"{name}-{q}") for q in QUESTIONS]) for name in "ab"]
            await eventually(lambda: len(frames.generated) == 2)
            theirs = await begun(other, [line(question) for question in QUESTIONS])
            await eventually(lambda: len(frames.generated) == 3)
            await asyncio.sleep(0.2)
            assert len(frames.generated) == 3
            await eventually(lambda: metric(served, "roundhouse_batch_lines_running") == 3)
            await eventually(lambda: metric(served, "roundhouse_batch_lines_waiting") == 12)
            frames.gate.set()
            for batch in mine:
                assert (await ended(served.client, batch)).status == "completed"
            assert (await ended(other, theirs)).status == "completed"
            await eventually(lambda: metric(served, "roundhouse_batch_lines_running") == 0)

    async def test_half_of_a_limit_is_left_to_others(self, serve: Serve, frames: FrameEngine) -> None:
        """Lines wait for each other and are never refused, and an interactive request always finds room."""
        async with serve(engines={"small": [frames.address]}, limits={"concurrent_turns": 2}) as served:
            frames.gate.clear()
            batch = await begun(served.client, [line(question) for question in QUESTIONS])
            await eventually(lambda: len(frames.generated) == 1)
            asking = asyncio.create_task(served.client.completions.create(model="small", prompt="hello", max_tokens=1))
            await eventually(lambda: len(frames.generated) == 2)
            assert [request.service for request in frames.generated] == ["batch", "standard"]
            frames.gate.set()
            assert (await asking).usage
            done = await ended(served.client, batch)
            assert done.request_counts is not None and done.request_counts.completed == 5

    async def test_nobody_follows_a_line_s_answer(self, serve: Serve, frames: FrameEngine) -> None:
        """An equal request asks an engine itself, which serves it first."""
        async with serve(engines={"small": [frames.address]}) as served:
            frames.gate.clear()
            batch = await begun(served.client, [line("same")])
            await eventually(lambda: len(frames.generated) == 1)
            asking = asyncio.create_task(
                served.client.post("/chat/completions", body=line("same")["body"], cast_to=dict[str, Any])
            )
            await eventually(lambda: len(frames.generated) == 2)
            assert [request.service for request in frames.generated] == ["batch", "standard"]
            frames.gate.set()
            await asking
            assert (await ended(served.client, batch)).status == "completed"

    async def test_a_line_that_a_rate_refuses_waits(self, serve: Serve) -> None:
        """Its neighbours take what there is, and a wait is told in seconds."""
        limits = {"requests_per_minute": 240, "burst_seconds": 1}
        async with serve(limits=limits, batches=BatchSettings(share_of_limits=1)) as served:
            batch = await ended(served.client, await begun(served.client, [line(f"q{n}") for n in range(8)]))
            assert batch.request_counts is not None and batch.request_counts.completed == 8

    async def test_a_spent_budget_is_an_error(self, serve: Serve) -> None:
        price = PriceSettings(name="tiny-small", input=1_000_000_000, output=0)
        async with serve(limits={"spend_per_day": 30_000}, prices=[price]) as served:
            batch = await ended(served.client, await begun(served.client, [line(question) for question in QUESTIONS]))
            assert batch.status == "completed" and batch.request_counts is not None
            assert 0 < batch.request_counts.completed < 5
            errors = await results(served.client, batch.error_file_id)
            said = {
                (each["response"]["status_code"], each["response"]["body"]["error"]["code"]) for each in errors.values()
            }
            assert said == {(429, "insufficient_quota")}
            await served.settle()


class TestEnds:
    """How a batch ends before its lines do."""

    async def test_cancelled(self, serve: Serve, frames: FrameEngine) -> None:
        """What was answered stays; the rest gets an error; what was running is stopped."""
        settings = BatchSettings(lines_at_once_per_tenant=1)
        async with serve(engines={"small": [frames.address]}, batches=settings) as served:
            client = served.client
            frames.finish = "stop"

            def after_two(request: Generate) -> list[list[int]]:
                if len(frames.generated) > 2:
                    frames.gate.clear()
                return [[70]]

            frames.script = after_two
            batch = await begun(client, [line(question) for question in QUESTIONS])
            await eventually(lambda: len(frames.generated) == 3)
            cancelling = await client.batches.cancel(batch.id)
            assert cancelling.status == "cancelling" and cancelling.cancelling_at is not None
            batch = await ended(client, batch)
            assert batch.status == "cancelled" and batch.cancelled_at is not None
            counts = batch.request_counts
            assert counts is not None and (counts.completed, counts.failed) == (2, 3)
            answers, errors = await results(client, batch.output_file_id), await results(client, batch.error_file_id)
            assert answers.keys() | errors.keys() == set(QUESTIONS)
            assert {(each["response"], each["error"]["code"]) for each in errors.values()} == {
                (None, "batch_cancelled")
            }
            assert (await client.batches.cancel(batch.id)).status == "cancelled"
            frames.gate.set()
            await served.settle()

    async def test_expired(self, serve: Serve, frames: FrameEngine, monkeypatch: pytest.MonkeyPatch) -> None:
        async with serve(engines={"small": [frames.address]}) as served:
            frames.gate.clear()
            batch = await begun(served.client, [line(question) for question in QUESTIONS])
            await in_progress(served.client, batch)
            monkeypatch.setattr(state, "WINDOW", 0)
            batch = await ended(served.client, batch)
            assert batch.status == "expired" and batch.expired_at is not None and batch.output_file_id is None
            errors = await results(served.client, batch.error_file_id)
            assert errors.keys() == set(QUESTIONS)
            assert {each["error"]["code"] for each in errors.values()} == {"batch_expired"}
            with pytest.raises(openai.ConflictError, match="expired"):
                await served.client.batches.cancel(batch.id)

    async def test_without_its_file(self, serve: Serve, frames: FrameEngine, redis_url: str) -> None:
        """It was deleted, or Redis dropped it, before another gateway goes on."""
        async with serve(engines={"small": [frames.address]}) as served:
            frames.gate.clear()
            batch = await begun(served.client, [line(question) for question in QUESTIONS])
            await in_progress(served.client, batch)
        with synchronous.Redis.from_url(redis_url) as client:
            assert client.delete(FILE_KEY.format(tenant="demo", id=batch.input_file_id)) == 1
        async with serve(engines={"small": [frames.address]}) as served:
            batch = await ended(served.client, batch)
            assert batch.status == "failed" and batch.errors is not None and batch.errors.data is not None
            assert [error.code for error in batch.errors.data] == ["file_not_found"]

    async def test_when_its_key_is_revoked(self, serve: Serve, frames: FrameEngine) -> None:
        """The lines that are left are refused as that key is."""
        settings = BatchSettings(lines_at_once_per_tenant=1)
        async with serve(engines={"small": [frames.address]}, batches=settings) as served:
            frames.gate.clear()
            client = served.client.with_options(api_key=await new_caller(served))
            batch = await begun(client, [line(question) for question in QUESTIONS])
            await eventually(lambda: len(frames.generated) == 1)
            await served.gateway.directory.delete(Key, "k", actor="test")
            await served.gateway.view.refresh()
            frames.gate.set()
            done = None
            async with asyncio.timeout(20):
                while done is None or not done.ended:
                    done = await served.gateway.batches.get("acme", batch.id)
                    await asyncio.sleep(0.02)
            assert (done.progress.completed, done.progress.failed) == (1, 4)


class TestLoss:
    """What is lost is made again."""

    async def test_a_queued_batch_is_waited_for_until_it_is_stored(
        self, serve: Serve, frames: FrameEngine, redis_url: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """For a while: whoever was to store it may have been killed."""
        async with serve(engines={"small": [frames.address]}) as served:
            store = served.gateway.batches
            file = await uploaded(served.client, jsonl([line("a")]))
            made = BatchDocument(
                id=new_id("batch_"),
                principal=Principal("demo", "demo"),
                endpoint="/v1/chat/completions",
                input_file_id=file.id,
                created_at=int(time.time()),
            )
            await store.queue.add("demo", made.id)
            await asyncio.sleep(0.2)
            await store.create(made)
            assert (await ended(served.client, Batch.model_validate(made.shown()))).status == "completed"
            monkeypatch.setattr(worker, "STORING", 0.1)
            await store.queue.add("demo", new_id("batch_"))
            with synchronous.Redis.from_url(redis_url) as client:
                await eventually(lambda: not client.hlen(QUEUE_KEY))

    async def test_results_that_redis_dropped_are_made_again(
        self, serve: Serve, frames: FrameEngine, redis_url: str
    ) -> None:
        """Every line has one result at the end, and the counts are those of the files."""
        settings = BatchSettings(lines_at_once_per_tenant=1)
        async with serve(engines={"small": [frames.address]}, batches=settings) as served:
            frames.finish = "stop"

            def held(request: Generate) -> list[list[int]]:
                if len(frames.generated) == 4:
                    frames.gate.clear()
                return [[70]]

            frames.script = held
            batch = await begun(served.client, [line(question, temperature=1) for question in QUESTIONS])
            await eventually(lambda: not frames.gate.is_set())
            output = f"file-{batch.id.removeprefix('batch_')}-output"
            with synchronous.Redis.from_url(redis_url) as client:
                assert client.delete(FILE_KEY.format(tenant="demo", id=output)) == 1
            frames.gate.set()
            batch = await ended(served.client, batch)
            assert batch.request_counts is not None and batch.request_counts.completed == 5
            assert (await results(served.client, batch.output_file_id)).keys() == set(QUESTIONS)
            assert len(frames.generated) == 8
