"""`/v1/messages`, driven by the real `anthropic` client over a real socket."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anthropic
import httpx2
import pytest
from anthropic.types import Message, RawMessageStreamEvent
from pydantic import TypeAdapter

from engine.adapters.registry import AdapterRegistry
from engine.text.processor import TextProcessor
from tests.engine.adapters.zoo import write_adapter
from tests.gateway.conftest import KEY, Serve, Served, eventually
from tests.gateway.frame_engine import FrameEngine
from tests.gateway.protocol.test_anthropic import check
from tests.gateway.tools.functions import SCHEMAS, check_call

pytestmark = pytest.mark.anyio

USER: Any = [{"role": "user", "content": "hello"}]
ASK: Any = {"model": "small", "max_tokens": 8, "messages": USER}
UNENDED: Any = {"extra_body": {"ignore_eos": True}}
TOOLS: Any = [{"name": name, "input_schema": schema, "strict": True} for name, schema in SCHEMAS.items()]
CALL: Any = {**ASK, "max_tokens": 600, "tools": TOOLS, "tool_choice": {"type": "any"}}
EVENT: TypeAdapter[Any] = TypeAdapter(RawMessageStreamEvent)


@contextlib.asynccontextmanager
async def client(served: Served, **options: Any) -> AsyncIterator[anthropic.AsyncAnthropic]:
    given = {"base_url": served.url, "api_key": KEY, "max_retries": 0, **options}
    async with anthropic.AsyncAnthropic(**given) as made:
        yield made


async def test_a_whole_answer(serve: Serve) -> None:
    """Valid in Anthropic's types; the answer of a chat completion to the same question."""
    async with serve() as served, client(served) as asking:
        raw = await asking.messages.with_raw_response.create(**ASK, **UNENDED)
        chat = await served.client.chat.completions.create(
            model="small", messages=USER, max_tokens=8, temperature=0, **UNENDED
        )
        await served.settle()
    answer = Message.model_validate_json(raw.http_response.content, strict=True)
    check(answer)
    assert answer.id.startswith("msg_") and answer.model == "tiny-small"
    assert [block.type for block in answer.content] == ["text"]
    assert answer.content[0].text == chat.choices[0].message.content  # type: ignore[union-attr]
    assert (answer.stop_reason, answer.usage.output_tokens) == ("max_tokens", 8)
    assert raw.headers["request-id"] == raw.headers["x-request-id"]


async def test_a_stream(serve: Serve) -> None:
    """The client's helper makes the whole answer of it; all raw events are valid."""
    async with serve() as served, client(served) as asking:
        whole = await asking.messages.create(**ASK, **UNENDED)
        async with asking.messages.stream(**ASK, **UNENDED) as stream:
            text = "".join([piece async for piece in stream.text_stream])
            final = await stream.get_final_message()
        events = [event async for event in await asking.messages.create(**ASK, **UNENDED, stream=True)]
        async with httpx2.AsyncClient(headers={"x-api-key": KEY}) as plain:
            raw = await plain.post(f"{served.url}/v1/messages", json={**ASK, "stream": True})
        await served.settle()
    assert final.content[0].text == text == whole.content[0].text  # type: ignore[union-attr]
    assert final.stop_reason == "max_tokens"
    assert [events[0].type, events[-1].type] == ["message_start", "message_stop"]
    assert raw.text.startswith("event: message_start\ndata: {") and "event: ping\n" in raw.text
    lines = [json.loads(line[6:]) for line in raw.text.splitlines() if line.startswith("data: ")]
    for line in lines:
        if line["type"] != "ping":
            check(EVENT.validate_python(line, strict=True))
    assert "[DONE]" not in raw.text


async def test_calls_of_tools(serve: Serve) -> None:
    """Whole and streamed the same, with valid input; their results are answered."""
    seed: Any = {"extra_body": {"seed": 3, "temperature": 2.0, "roundhouse": {"cache": "no-store"}}}
    async with serve() as served, client(served) as asking:
        whole = await asking.messages.create(**CALL, **seed)
        async with asking.messages.stream(**CALL, **seed) as stream:
            final = await stream.get_final_message()
        named = await asking.messages.create(**{**CALL, "tool_choice": {"type": "tool", "name": "roll_dice"}})
        results: Any = [
            {"type": "tool_result", "tool_use_id": block.id, "content": "5"}
            for block in named.content
            if block.type == "tool_use"
        ]
        history = [*USER, {"role": "assistant", "content": named.content}, {"role": "user", "content": results}]
        after = await asking.messages.create(**{**ASK, "messages": history, "tools": TOOLS})
        await served.settle()
    assert [(block.type, block.name, block.input) for block in whole.content if block.type == "tool_use"] == [
        (block.type, block.name, block.input) for block in final.content if block.type == "tool_use"
    ]
    assert (named.stop_reason, [block.type for block in named.content]) == ("tool_use", ["tool_use"])
    assert named.content[0].name == "roll_dice"  # type: ignore[union-attr]
    check_call("roll_dice", json.dumps(named.content[0].input))  # type: ignore[union-attr]
    assert after.usage.input_tokens + (after.usage.cache_read_input_tokens or 0) > whole.usage.input_tokens


async def test_an_answer_that_was_begun_goes_on(serve: Serve) -> None:
    """As that of a completion to the prompt that ends there; counting tokens counts this prompt."""
    begun: Any = [*USER, {"role": "assistant", "content": "I am"}]
    async with serve() as served, client(served) as asking:
        answer = await asking.messages.create(**{**ASK, "messages": begun}, **UNENDED)
        counted = await asking.messages.count_tokens(model="small", messages=begun)
        raw = await served.client.completions.create(
            model="small", prompt="<|user|>hello\n<|assistant|>I am", max_tokens=8, extra_body={"ignore_eos": True}
        )
        await served.settle()
    assert answer.content[0].text == raw.choices[0].text  # type: ignore[union-attr]
    assert raw.usage is not None and counted.input_tokens == raw.usage.prompt_tokens


async def test_a_stop_sequence_is_named_also_by_the_cache(serve: Serve) -> None:
    async with serve() as served, client(served) as asking:
        full = await asking.messages.create(**{**ASK, "max_tokens": 24}, **UNENDED)
        text = full.content[0].text  # type: ignore[union-attr]
        stop = text[5:8]
        heard = []
        for _ in range(2):
            raw = await asking.messages.with_raw_response.create(
                **{**ASK, "max_tokens": 24}, stop_sequences=["never", stop], **UNENDED
            )
            answer = await raw.parse()
            said = "".join(block.text for block in answer.content if block.type == "text")
            heard.append((answer.stop_reason, answer.stop_sequence, said))
            outcome = raw.headers["x-roundhouse-cache"]
        await served.settle()
    assert heard == [("stop_sequence", stop, text[: text.index(stop)])] * 2
    assert outcome == "hit"


async def test_tokens_are_counted_as_a_turn_has_them(serve: Serve) -> None:
    """The same number as of the answer's usage, tools and system prompt included."""
    prompt: Any = {"model": "small", "messages": USER, "system": "be brief", "tools": TOOLS}
    async with serve() as served, client(served) as asking:
        counted = await asking.messages.count_tokens(**prompt)
        answer = await asking.messages.create(max_tokens=1, **prompt)
        with pytest.raises(anthropic.NotFoundError):
            await asking.messages.count_tokens(**{**prompt, "model": "nobody"})
        await served.settle()
    usage = answer.usage
    assert counted.input_tokens == usage.input_tokens + (usage.cache_read_input_tokens or 0)


async def test_errors_have_anthropics_shape(serve: Serve) -> None:
    """Status, type and the request's id; the client makes its own exceptions of them."""
    async with serve() as served, client(served) as asking:
        long = [{"role": "user", "content": "x" * 9000}]
        cases: list[tuple[type[anthropic.APIStatusError], str, dict[str, Any]]] = [
            (anthropic.BadRequestError, "invalid_request_error", {"max_tokens": 0}),
            (anthropic.BadRequestError, "invalid_request_error", {"messages": long}),
            (anthropic.NotFoundError, "not_found_error", {"model": "nobody"}),
        ]
        for stream in (False, True):
            for kind, name, change in cases:
                with pytest.raises(kind) as caught:
                    await asking.messages.create(**{**ASK, **change}, stream=stream)
                body: Any = caught.value.body
                assert (body["type"], body["error"]["type"]) == ("error", name)
                assert body["request_id"] == caught.value.request_id
        async with client(served, api_key="wrong") as stranger:
            with pytest.raises(anthropic.AuthenticationError, match="incorrect API key"):
                await stranger.messages.create(**ASK)
        async with client(served, api_key=None, auth_token=KEY) as bearer:
            await bearer.messages.create(**ASK)
        async with httpx2.AsyncClient() as plain:
            unknown = await plain.get(f"{served.url}/v1/messages/nothing")
        assert unknown.json()["error"]["type"] == "not_found_error"


async def test_limits_hold(serve: Serve) -> None:
    """Counting and answering are requests of the same limit; the client is told when to come back."""
    async with serve(limits={"requests_per_minute": 2}) as served, client(served) as asking:
        await asking.messages.create(**ASK)
        await asking.messages.count_tokens(model="small", messages=USER)
        for call in (asking.messages.create(**ASK), asking.messages.count_tokens(model="small", messages=USER)):
            with pytest.raises(anthropic.RateLimitError) as caught:
                await call
            assert int(caught.value.response.headers["retry-after"]) >= 1
        await served.settle()


async def test_a_drain_ends_a_stream_with_an_error(serve: Serve) -> None:
    async with serve() as served, client(served) as asking:
        stream = await asking.messages.create(**{**ASK, "max_tokens": 3000}, **UNENDED, stream=True)
        with pytest.raises(anthropic.APIStatusError, match="overloaded_error"):
            async for event in stream:
                if event.type == "content_block_delta":
                    await served.gateway.turns.drain(0)
        await served.settle()


async def test_an_adapter_answers_under_its_name(serve: Serve, model: Path, tmp_path: Path) -> None:
    registry = AdapterRegistry(str(tmp_path / "adapters"))
    version = registry.add(write_adapter(tmp_path / "adapter", model, "only q_proj", seed=1), model).version
    registry.point("pirate", version, model="tiny-small", tenants=("demo",))
    letter = TextProcessor.from_path(model).encode("a")[-1]
    async with (
        FrameEngine(tmp_path / "engine.sock", {version: letter}).serving() as engine,
        serve(engines={"small": [engine.address]}) as served,
        client(served) as asking,
    ):
        await eventually(lambda: "pirate" in served.gateway.adapters.visible("demo"))
        counted = await asking.messages.count_tokens(model="pirate", messages=USER)
        answer = await asking.messages.create(**{**ASK, "model": "pirate"})
        await served.settle()
    assert (answer.model, counted.input_tokens > 0) == ("pirate", True)
    assert answer.content[0].text.startswith("a")  # type: ignore[union-attr]
