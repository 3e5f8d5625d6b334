"""Structured output over a real socket: what is asked for is what comes, or a 400 and nothing else."""

from __future__ import annotations

import json
import re
from typing import Any, Literal

import jsonschema
import openai
import pytest
from pydantic import BaseModel, Field

from gateway.config.settings import RouterSettings
from tests.gateway.conftest import Serve, Served, receive, send, until_end
from tests.gateway.limits.use import STILL

pytestmark = pytest.mark.anyio

USER: Any = [{"role": "user", "content": "hello"}]
BAD_SCHEMA = {"type": "json_schema", "name": "bad", "schema": {"type": "strange"}}
BAD_REGEX = {"type": "regex", "pattern": "(["}


def wrong(error: openai.APIStatusError, param: str) -> None:
    """Check that one field was refused, and how."""
    assert (error.status_code, error.type, error.code) == (400, "invalid_request_error", "invalid_value")
    assert error.param == param
    assert error.message.find(param) >= 0


class City(BaseModel):
    """Small enough for a model that answers at random to come to an end."""

    name: Literal["Berlin", "Rome"]
    size: int = Field(ge=0, le=9)
    twin: Literal["Oslo"] | None


SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 5},
        "tags": {"type": "array", "items": {"enum": ["a", "b", 3, None]}, "maxItems": 3},
        "inner": {"$ref": "#/$defs/inner"},
    },
    "required": ["name", "inner"],
    "additionalProperties": False,
    "$defs": {
        "inner": {
            "type": "object",
            "properties": {"ok": {"type": "boolean"}, "n": {"type": "integer", "minimum": -5, "maximum": 99}},
            "required": ["ok"],
            "additionalProperties": False,
        }
    },
}
FORMAT: dict[str, Any] = {"type": "json_schema", "name": "thing", "schema": SCHEMA, "strict": True}
RANDOM: dict[str, Any] = {"temperature": 1.0, "max_output_tokens": 400}


class TestServed:
    """A model that answers at random gives what was asked for all the same."""

    @pytest.mark.parametrize("seed", range(4))
    async def test_a_schema_over_every_path(self, serve: Serve, seed: int) -> None:
        """Responses as JSON, as events and over the WebSocket; both completion endpoints. One seed, one answer."""
        async with serve() as served:
            more = {"extra_body": {"seed": seed}}
            create: Any = {"model": "auto", "input": "hello", "text": {"format": FORMAT}, **RANDOM}
            whole = await served.client.responses.create(**create, **more)
            stream = await served.client.responses.create(**create, **more, stream=True)
            events = [event async for event in stream]
            async with served.connect() as socket:
                await send(socket, type="response.create", **create, seed=seed)
                received = await until_end(lambda: receive(socket))
            chat = await served.client.chat.completions.create(
                model="auto",
                messages=USER,
                response_format={"type": "json_schema", "json_schema": {"name": "thing", "schema": SCHEMA}},
                temperature=1,
                max_tokens=400,
                seed=seed,
            )
            raw = await served.client.completions.create(
                model="auto",
                prompt="hello",
                temperature=1,
                max_tokens=400,
                seed=seed,
                extra_body={"structured_outputs": {"json": SCHEMA}},
            )
            await served.settle()
        assert whole.status == "completed"
        assert [choice.finish_reason for choice in (*chat.choices, *raw.choices)] == ["stop", "stop"]
        for text in (whole.output_text, chat.choices[0].message.content, raw.choices[0].text):
            jsonschema.validate(json.loads(text or ""), SCHEMA)
        assert events[-1].type == "response.completed"
        assert events[-1].response.output_text == whole.output_text == chat.choices[0].message.content
        assert received[-1]["response"]["output"][0]["content"][0]["text"] == whole.output_text
        assert received[-1]["response"]["text"] == {"format": FORMAT}

    async def test_the_clients_parse_helpers(self, serve: Serve) -> None:
        """A Pydantic model in, one out: whole and streamed, in both APIs."""
        async with serve() as served:
            responses, completions = served.client.responses, served.client.chat.completions
            common: Any = {"model": "auto", "temperature": 1.0}
            parsed = await responses.parse(**common, input="hi", text_format=City, max_output_tokens=200)
            async with responses.stream(**common, input="hi", text_format=City, max_output_tokens=200) as stream:
                streamed = await stream.get_final_response()
            chat = await completions.parse(**common, messages=USER, response_format=City, max_tokens=200)
            async with completions.stream(**common, messages=USER, response_format=City, max_tokens=200) as chunks:
                final = await chunks.get_final_completion()
            await served.settle()
        cities = (
            parsed.output_parsed,
            streamed.output_parsed,
            chat.choices[0].message.parsed,
            final.choices[0].message.parsed,
        )
        assert all(isinstance(city, City) for city in cities)

    @pytest.mark.parametrize(
        ("format", "pattern"),
        [
            ({"type": "regex", "pattern": "[0-9]{3}-(a|b)/x"}, "[0-9]{3}-(a|b)/x"),
            ({"type": "choice", "choices": ["yes", "no", "peut-\u00eatre"]}, "yes|no|peut-\u00eatre"),
            ({"type": "grammar", "definition": 'start: "a" DIGIT{2}\nDIGIT: /[0-9]/'}, "a[0-9]{2}"),
            ({"type": "grammar", "syntax": "gbnf", "definition": 'root ::= "a" [0-9] "b"?\n'}, "a[0-9]b?"),
            ({"type": "grammar", "syntax": "regex", "definition": "x{2,4}"}, "x{2,4}"),
        ],
    )
    async def test_what_is_ours(self, serve: Serve, format: Any, pattern: str) -> None:
        """Expressions, choices and grammars, in both APIs."""
        async with serve() as served:
            answer = await served.client.responses.create(model="auto", input="hi", text={"format": format}, **RANDOM)
            chat = await served.client.chat.completions.create(
                model="auto", messages=USER, response_format=format, temperature=1, n=3
            )
            await served.settle()
        for text in (answer.output_text, *(choice.message.content or "" for choice in chat.choices)):
            assert re.fullmatch(pattern, text), text

    async def test_a_keyword_that_cannot_be_enforced(self, serve: Serve) -> None:
        """An error if the schema is strict, left out if it is not."""
        odd = {**SCHEMA, "unevaluatedProperties": False}
        async with serve() as served:
            with pytest.raises(openai.BadRequestError) as caught:
                await served.client.responses.create(input="hi", text={"format": {**FORMAT, "schema": odd}}, **RANDOM)
            wrong(caught.value, "text.format.schema")
            loose: Any = {"format": {**FORMAT, "schema": odd, "strict": False}}
            answer = await served.client.responses.create(input="hi", text=loose, **RANDOM)
        jsonschema.validate(json.loads(answer.output_text), SCHEMA)

    async def test_an_answer_that_is_cut_off_says_so(self, serve: Serve) -> None:
        """It is the beginning of one that would have kept to the format."""
        async with serve() as served:
            answer = await served.client.responses.create(
                input="hi", text={"format": {"type": "regex", "pattern": "(abc){20}"}}, max_output_tokens=3
            )
            with pytest.raises(openai.LengthFinishReasonError):
                await served.client.chat.completions.parse(
                    model="auto", messages=USER, response_format=City, max_tokens=3
                )
        assert answer.status == "incomplete"
        assert ("abc" * 20).startswith(answer.output_text)

    async def test_what_the_cache_keeps(self, serve: Serve) -> None:
        """Answers by format; never one that a stop string has cut out of it."""
        async with serve() as served:

            async def outcome(**body: Any) -> str:
                body = {"input": "hi", "max_output_tokens": 400, "temperature": 1, "seed": 1, **body}
                response = await served.client.responses.with_raw_response.create(extra_body=body)
                return response.headers["x-roundhouse-cache"]

            choice = {"format": {"type": "choice", "choices": ["yes", "yep"]}}
            other = {"format": {"type": "choice", "choices": ["yes", "yea"]}}
            assert [await outcome(text=choice) for _ in range(2)] == ["miss", "hit"]
            assert await outcome(text=other) == "miss"
            assert [await outcome(text=choice, stop="y") for _ in range(2)] == ["miss", "miss"]


class TestRefused:
    """Only the engine knows what it cannot compile; the client still gets a 400."""

    @pytest.mark.parametrize("stream", [False, True])
    @pytest.mark.parametrize(("format", "param"), [(BAD_SCHEMA, "schema"), (BAD_REGEX, "pattern")])
    async def test_by_responses(self, serve: Serve, stream: bool, format: Any, param: str) -> None:
        """Streamed or not: the status is that of the response, before its first event."""
        async with serve(limits=STILL) as served:
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
        async with serve(limits=STILL) as served:
            with pytest.raises(openai.BadRequestError) as caught:
                await served.client.chat.completions.create(
                    model="auto", messages=USER, response_format=format, stream=stream, max_tokens=4
                )
            wrong(caught.value, "response_format.json_schema.schema")
            await unspent(served)

    async def test_by_completions(self, serve: Serve) -> None:
        """In vLLM's spelling."""
        async with serve(limits=STILL) as served:
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


async def test_a_grammar_that_is_too_costly_to_follow_is_no_fault_of_the_engine(serve: Serve) -> None:
    """It ends its own answers with an error that names it; the engine stays in service for the others."""
    costly: Any = {"type": "grammar", "definition": 'start: s\ns: s s | s s s | "x" | "xx"'}
    async with serve(router=RouterSettings(breaker_failures=1)) as served:
        for _ in range(2):
            with pytest.raises(openai.BadRequestError) as caught:
                await served.client.responses.create(
                    input="hi",
                    text={"format": costly},
                    max_output_tokens=400,
                    extra_body={"ignore_eos": True},
                )
            wrong(caught.value, "text.format.definition")
            assert len(caught.value.message) < 1000
        answer = await served.client.responses.create(input="hi", max_output_tokens=1)
        assert answer.model == "tiny-small"
        await served.settle()


async def unspent(served: Served) -> None:
    """A refused request leaves nothing behind and costs no token: all that is missing is what the next turn used."""
    await served.settle()
    async with served.connect() as socket:
        await send(socket, type="response.create", input="hi", max_output_tokens=1)
        events = [await receive(socket)]
        while not events[-1]["type"].startswith(("response.completed", "response.incomplete")):
            events.append(await receive(socket))
    (limits,) = (event["limits"] for event in events if event["type"] == "roundhouse.limits")
    used = {limit["name"]: limit["limit"] - limit["remaining"] for limit in limits}
    usage = events[-1]["response"]["usage"]
    assert used == {f"{kind}_per_minute": usage[kind] for kind in ("input_tokens", "output_tokens")}
