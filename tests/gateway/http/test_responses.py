"""`/v1/responses` as the `openai` package sees it: unmodified, with nothing but a base URL and a key."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest
from openai.types.responses import Response, ResponsesServerEvent
from pydantic import TypeAdapter

from gateway.config.settings import CacheSettings
from tests.engine.checkpoints import EOS
from tests.gateway.conftest import KEY, Serve, Served, eventually

pytestmark = pytest.mark.anyio

ADAPTER: TypeAdapter[Any] = TypeAdapter(ResponsesServerEvent)
LONG: dict[str, Any] = {"max_output_tokens": 3000, "extra_body": {"ignore_eos": True, "temperature": 1, "seed": 3}}
"""Parameters of an answer that is still running when a test acts on it."""


class TestWebSocket:
    """`client.responses.connect()`."""

    async def test_async(self, serve: Serve) -> None:
        """Two turns of a conversation over one connection."""
        async with serve() as served, served.client.responses.connect() as connection:
            await connection.response.create(model="auto", input="hello", max_output_tokens=4)
            first = [event async for event in _turn(connection)]
            previous = first[-1].response
            await connection.response.create(
                model="auto", input="again", max_output_tokens=4, previous_response_id=previous.id
            )
            second = [event async for event in _turn(connection)]
        assert first[0].type == "response.created"
        assert (
            "".join(event.delta for event in first if event.type == "response.output_text.delta")
            == previous.output_text
        )
        assert second[-1].response.previous_response_id == previous.id
        assert second[-1].response.usage.input_tokens > previous.usage.input_tokens

    # What the client does inside, not how we use it.
    @pytest.mark.filterwarnings(r"ignore:connect\(\) must be used as a context manager:DeprecationWarning")
    async def test_sync(self, serve: Serve) -> None:
        """The same from a program without an event loop."""

        def converse(base_url: str) -> list[str]:
            with openai.OpenAI(base_url=base_url, api_key=KEY).responses.connect() as connection:
                connection.response.create(model="small", input="hello", max_output_tokens=4, stream_id="lane")
                types = []
                for event in connection:
                    types.append(event.type)
                    assert event.stream_id == "lane"
                    if event.type in ("response.completed", "response.incomplete"):
                        break
                return types

        async with serve() as served:
            types = await asyncio.to_thread(converse, served.base_url)
        assert types[0] == "response.created"
        assert types[-1] in ("response.completed", "response.incomplete")

    async def test_every_event_of_openais_is_valid_in_openais_types(self, serve: Serve) -> None:
        """Strict validation, which the client itself does not do; with log-probabilities and a stream id."""
        async with serve() as served, served.client.responses.connect() as connection:
            await connection.response.create(
                input="hello",
                max_output_tokens=4,
                stream_id="a",
                top_logprobs=2,
                include=["message.output_text.logprobs"],
                metadata={"a": "b"},
            )
            kinds = set()
            while not kinds & {"response.completed", "response.incomplete"}:
                event = json.loads(await connection.recv_bytes())
                kinds.add(event["type"])
                ADAPTER.validate_python(event, strict=True)
        assert "response.output_text.delta" in kinds

    async def test_errors_are_openais_too(self, serve: Serve) -> None:
        """A `ResponseWsError` with code and parameter; the connection goes on."""
        async with serve() as served, served.client.responses.connect() as connection:
            await connection.response.create(input="x", previous_response_id="resp_unknown")
            event = json.loads(await connection.recv_bytes())
            ADAPTER.validate_python(event, strict=True)
            assert event["status"] == 400
            assert event["error"]["code"] == "previous_response_not_found"
            assert event["error"]["param"] == "previous_response_id"
            await connection.response.create(input="x", max_output_tokens=1)
            assert (await connection.recv()).type == "response.created"


class TestCreate:
    """`client.responses.create()`."""

    async def test_at_once(self, serve: Serve) -> None:
        """The whole response, valid in OpenAI's type."""
        async with serve() as served:
            raw = await served.client.responses.with_raw_response.create(
                model="auto", input="hello", instructions="be brief", max_output_tokens=4, metadata={"k": "v"}
            )
            response = Response.model_validate_json(raw.http_response.content, strict=True)
            await served.settle()
        assert response.status in ("completed", "incomplete")
        assert response.output_text
        assert response.instructions == "be brief"
        assert response.metadata == {"k": "v"}
        assert response.model == "tiny-small"
        assert raw.headers["x-request-id"].startswith("req_")

    async def test_as_a_stream(self, serve: Serve) -> None:
        """Server-sent events, numbered, ending with the response."""
        async with serve() as served:
            stream = await served.client.responses.create(model="auto", input="hello", max_output_tokens=4, stream=True)
            events = [event async for event in stream]
            stream = await served.client.responses.retrieve(events[0].response.id, stream=True)
            again = [event async for event in stream]
            asked = {"x-roundhouse-events": "true"}
            stream = await served.client.responses.retrieve(events[0].response.id, stream=True, extra_headers=asked)
            more = [event.type async for event in stream]
        for event in (*events, *again):
            ADAPTER.validate_python(event.to_dict(), strict=True)
        assert {each for each in more if each.startswith("roundhouse.")} == {"roundhouse.route", "roundhouse.limits"}
        assert events[0].type == "response.created"
        assert [event.sequence_number for event in events] == list(range(len(events)))
        assert [event.sequence_number for event in again] == list(range(len(events)))
        text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
        assert events[-1].response.output_text == text

    async def test_the_clients_stream_helper_understands_us(self, serve: Serve) -> None:
        """It checks order and accumulates; our own events must not disturb it."""
        async with serve() as served:
            ending = {"min_tokens": 5, "logit_bias": {str(EOS): 100}}
            async with served.client.responses.stream(model="auto", input="hello", extra_body=ending) as stream:
                deltas = [event.delta async for event in stream if event.type == "response.output_text.delta"]
            assert "".join(deltas) == (await stream.get_final_response()).output_text != ""

    async def test_the_same_seed_gives_the_same_text(self, serve: Serve) -> None:
        """Sampling fields beyond OpenAI's go through `extra_body`."""
        async with serve(cache=CacheSettings(enabled=False)) as served:
            texts = [await _sample(served, seed) for seed in (1, 1, 2)]
        assert texts[0] == texts[1] != texts[2]

    async def test_warm_up_answers_with_an_empty_response_that_can_be_continued(self, serve: Serve) -> None:
        """`generate: false` puts the prompt into the prefix cache."""
        prompt = "a long introduction " * 20
        async with serve() as served:
            warm = await served.client.responses.create(model="small", input=prompt, extra_body={"generate": False})
            assert (warm.status, warm.output, warm.usage.output_tokens) == ("completed", [], 0)
            answer = await served.client.responses.create(
                model="small", input="go on", previous_response_id=warm.id, max_output_tokens=2
            )
            await served.settle()
        assert answer.usage is not None
        assert answer.usage.input_tokens_details.cached_tokens >= warm.usage.input_tokens // 2

    async def test_logprobs_cover_the_text(self, serve: Serve) -> None:
        """One entry per token, whose bytes make the text."""
        async with serve() as served:
            response = await served.client.responses.create(
                model="auto",
                input="Say hello.",
                max_output_tokens=8,
                top_logprobs=3,
                include=["message.output_text.logprobs"],
                extra_body={"ignore_eos": True},
            )
        part = response.output[0].content[0]
        assert len(part.logprobs) == 8
        spelled = b"".join(bytes(entry.bytes) for entry in part.logprobs)
        assert spelled.decode(errors="replace") == part.text
        assert all(len(entry.top_logprobs) == 3 for entry in part.logprobs)
        assert all(entry.logprob <= entry.top_logprobs[0].logprob + 1e-6 for entry in part.logprobs)

    async def test_a_client_that_goes_away_leaves_an_orphan_that_ends(self, serve: Serve) -> None:
        """Nobody watches any more: the turn is cancelled after the orphan timeout."""
        async with serve(turns={"orphan_timeout": 0.05}) as served:
            stream = await served.client.responses.create(model="auto", input="x", stream=True, **LONG)
            async for event in stream:
                if event.type == "response.output_text.delta":
                    break
            await stream.close()
            await served.settle()
            assert served.gateway.turns.retained == 1

    async def test_a_client_that_never_reads_its_stream_is_cut_off(self, serve: Serve) -> None:
        """Its viewers go when the socket has been full for too long, and the connection after them."""
        metadata = {str(key): "x" * 512 for key in range(16)}  # comes back in three events
        async with serve(server={"send_timeout": 0.2}) as served:
            made = await served.client.responses.create(model="auto", input="x", max_output_tokens=1, metadata=metadata)
            await served.client.close()
            connections = served.server.server_state.connections
            await eventually(lambda: not connections)
            reader, writer = await asyncio.open_connection("127.0.0.1", served.port, limit=1024)
            asked = f"GET /v1/responses/{made.id}?stream=true HTTP/1.1\r\nhost: 127.0.0.1\r\n"
            head = f"{asked}authorization: Bearer {KEY}\r\n\r\n"
            writer.write(head.encode() * 1000)  # some 25 kB each
            await reader.readuntil(b"\r\n")
            await eventually(lambda: not connections)
            await served.settle()
            writer.transport.abort()


class TestRead:
    """`client.responses.retrieve()` and `cancel()`."""

    async def test_a_finished_response_can_be_read_again(self, serve: Serve) -> None:
        """It is the same object."""
        async with serve() as served:
            made = await served.client.responses.create(model="auto", input="hello", max_output_tokens=4)
            assert await served.client.responses.retrieve(made.id) == made

    async def test_resume_gives_exactly_what_comes_after(self, serve: Serve) -> None:
        """From every number that the client may have seen last."""
        async with serve() as served:
            stream = await served.client.responses.create(
                model="auto", input="x", stream=True, max_output_tokens=12, extra_body={"temperature": 1, "seed": 1}
            )
            events = [event async for event in stream]
            whole, last = events[-1].response.output_text, events[-1].sequence_number
            response_id = events[0].response.id
            seen = ""
            for event in events[:-1]:
                if event.type == "response.output_text.delta":
                    seen += event.delta
                rest = await served.client.responses.retrieve(
                    response_id, stream=True, starting_after=event.sequence_number
                )
                later = [e async for e in rest]
                assert [e.sequence_number for e in later] == list(range(event.sequence_number + 1, last + 1))
                assert seen + "".join(e.delta for e in later if e.type == "response.output_text.delta") == whole

    @pytest.mark.parametrize(
        ("query", "param"),
        [
            ("stream=maybe", "stream"),
            ("stream=true&starting_after=x", "starting_after"),
            ("stream=true&starting_after=--1", "starting_after"),
            ("stream=true&starting_after=" + 5000 * "9", "starting_after"),
        ],
        ids=lambda value: value[:40],
    )
    async def test_what_cannot_be_meant_is_refused_by_name(self, serve: Serve, query: str, param: str) -> None:
        async with serve() as served:
            made = await served.client.responses.create(model="auto", input="x", max_output_tokens=1)
            with pytest.raises(openai.BadRequestError) as caught:
                await served.client.get(f"/responses/{made.id}?{query}", cast_to=dict[str, Any])
        assert (caught.value.param, caught.value.code) == (param, "invalid_value")

    async def test_cancel_keeps_the_text_so_far(self, serve: Serve) -> None:
        """The stream ends, the response is `cancelled`, the engine is free; again it changes nothing."""
        async with serve() as served:
            stream = await served.client.responses.create(model="auto", input="x", stream=True, **LONG)
            events = []
            async for event in stream:
                events.append(event)
                if event.type == "response.output_text.delta" and len(events) < 10:
                    cancelled = await served.client.responses.cancel(events[0].response.id)
            await served.settle()
            again = await served.client.responses.cancel(cancelled.id)
        assert cancelled.status == "cancelled"
        assert again == cancelled
        text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
        assert text == cancelled.output_text != ""
        assert events[-1].type == "response.incomplete"
        assert events[-1].response.status == "cancelled"

    async def test_an_unknown_response_is_not_found(self, serve: Serve) -> None:
        """In OpenAI's error shape."""
        async with serve() as served:
            with pytest.raises(openai.NotFoundError) as caught:
                await served.client.responses.retrieve("resp_unknown")
        assert caught.value.code == "response_not_found"


class TestRefusals:
    """What is told with an HTTP status, before anything is streamed."""

    @pytest.mark.parametrize(
        ("body", "status", "code", "param"),
        [
            (b"{", 400, "invalid_json", None),
            (b'"\xff"', 400, "invalid_json", None),
            (b"[]", 400, "invalid_json", None),
            (b'{"input": "x", "model": "gpt-6"}', 404, "model_not_found", "model"),
            (b'{"input": "x", "max_output_tokens": 1000000}', 400, "request_exceeds_limit", "max_output_tokens"),
            (b'{"input": "x", "max_output_tokens": 5000}', 400, "context_length_exceeded", "input"),
            (b'{"input": "' + b"long " * 5000 + b'"}', 400, "context_length_exceeded", "input"),
            (b'{"input": "x", "min_tokens": 9, "max_output_tokens": 8}', 400, "invalid_request", "min_tokens"),
            (b'{"input": "x", "logit_bias": {"999999": 1}}', 400, "invalid_request", "logit_bias"),
            (b'{"input": "x", "background": true, "store": false}', 400, "invalid_value", "background"),
            (b'{"input": "x", "moderation": {}}', 400, "unsupported_parameter", "moderation"),
            (b'{"input": "' + b"x" * 1_100_000 + b'"}', 413, "request_too_large", None),
        ],
        ids=lambda value: value[:40].decode(errors="replace") if isinstance(value, bytes) else None,
    )
    async def test_a_bad_request(self, serve: Serve, body: bytes, status: int, code: str, param: str | None) -> None:
        """Names the field; costs nothing but this request."""
        async with serve() as served:
            with pytest.raises(openai.APIStatusError) as caught:
                await served.client.post(
                    "/responses",
                    cast_to=object,
                    content=body,
                    options={"headers": {"content-type": "application/json"}},
                )
            await served.settle()
        assert caught.value.status_code == status
        assert (caught.value.code, caught.value.param) == (code, param)

    async def test_a_wrong_key(self, serve: Serve) -> None:
        """401 for every endpoint that costs something."""
        async with serve() as served:
            with pytest.raises(openai.AuthenticationError):
                await served.client.with_options(api_key="wrong").responses.create(input="x")

    async def test_over_the_limit(self, serve: Serve) -> None:
        """429 says when to come back."""
        async with serve(limits={"output_tokens_per_minute": 25, "concurrent_turns": 5}) as served:
            await served.client.responses.create(
                model="auto", input="x", max_output_tokens=20, extra_body={"ignore_eos": True}
            )
            with pytest.raises(openai.RateLimitError) as caught:
                await served.client.responses.create(model="auto", input="y", max_output_tokens=20)
            await served.settle()
        assert int(caught.value.response.headers["retry-after"]) > 0


async def _turn(connection: Any) -> AsyncIterator[Any]:
    async for event in connection:
        yield event
        if event.type in ("response.completed", "response.incomplete", "response.failed", "error"):
            return


async def _sample(served: Served, seed: int) -> str:
    response = await served.client.responses.create(
        model="auto", input="hello", temperature=1, max_output_tokens=12, extra_body={"seed": seed, "ignore_eos": True}
    )
    return response.output_text
