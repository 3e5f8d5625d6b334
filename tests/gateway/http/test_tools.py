"""Function calls over a real socket, made by models that answer at random and are held to a grammar."""

from __future__ import annotations

from typing import Any, Literal

import openai
import pytest
from openai.types.responses import ResponsesServerEvent
from pydantic import BaseModel, TypeAdapter

from gateway.tools.formats import FORMATS
from tests.gateway.conftest import Serve, receive, send, until_end
from tests.gateway.tools.functions import RANDOM, TOOLS, check_call

pytestmark = pytest.mark.anyio

NESTED: Any = [{"type": "function", "function": {k: v for k, v in tool.items() if k != "type"}} for tool in TOOLS]
USER: Any = [{"role": "user", "content": "hello"}]
CHAT: dict[str, Any] = {"model": "auto", "temperature": 2.0, "max_tokens": 600, "messages": USER}
ADAPTER: TypeAdapter[Any] = TypeAdapter(ResponsesServerEvent)
FORMAT_NAMES = [format.name for format in FORMATS]


class GetWeather(BaseModel):
    """A function as the client's helpers have it."""

    city: Literal["Berlin", "Rome"]


class TestResponses:
    """`/v1/responses`."""

    @pytest.mark.parametrize("parser", FORMAT_NAMES)
    async def test_a_call_that_is_required(self, serve: Serve, parser: str) -> None:
        """In every format: calls and nothing else, with valid arguments."""
        ended = 0
        async with serve(pool={"tool_parser": parser}) as served:
            for seed in range(4):
                answer = await served.client.responses.create(
                    input="hi", tools=TOOLS, tool_choice="required", extra_body={"seed": seed}, **RANDOM
                )
                # At random a model may call and call until its limit.
                cut = answer.status == "incomplete"
                assert answer.output
                for item in answer.output[:-1] if cut else answer.output:
                    assert item.type == "function_call"
                    assert item.status == "completed" and item.call_id.startswith("call_")
                    check_call(item.name, item.arguments)
                    ended += 1
                assert len({item.id for item in answer.output}) == len(answer.output)
            await served.settle()
        assert ended

    async def test_a_function_that_is_named(self, serve: Serve) -> None:
        """That one, once."""
        async with serve() as served:
            for seed in range(3):
                answer = await served.client.responses.create(
                    input="hi",
                    tools=TOOLS,
                    tool_choice={"type": "function", "name": "roll_dice"},
                    extra_body={"seed": seed},
                    **RANDOM,
                )
                (item,) = answer.output
                assert item.type == "function_call" and item.name == "roll_dice"
                check_call(item.name, item.arguments)
        assert answer.tool_choice.model_dump() == {"type": "function", "name": "roll_dice"}  # type: ignore[union-attr]

    async def test_some_of_the_tools(self, serve: Serve) -> None:
        """All are shown, the others are never called; at most one call if calls may not be parallel."""
        choice: Any = {
            "type": "allowed_tools",
            "mode": "required",
            "tools": [{"type": "function", "name": "get_weather"}],
        }
        async with serve() as served:
            for seed in range(4):
                answer = await served.client.responses.create(
                    input="hi",
                    tools=TOOLS,
                    tool_choice=choice,
                    parallel_tool_calls=False,
                    extra_body={"seed": seed},
                    **RANDOM,
                )
                assert [item.name for item in answer.output if item.type == "function_call"] == ["get_weather"]
                assert (answer.parallel_tool_calls, len(answer.tools)) == (False, 2)

    @pytest.mark.parametrize("choice", ["auto", "none"])
    async def test_tools_that_need_not_be_called(self, serve: Serve, choice: Any) -> None:
        """A model that says something else says it; with `none` it is not even shown the tools."""
        loose = [{**tool, "strict": False} for tool in TOOLS]
        async with serve() as served:
            common: Any = {"input": "hi", "model": "auto", "max_output_tokens": 8}
            plain = await served.client.responses.create(**common)
            answer = await served.client.responses.create(tools=loose, tool_choice=choice, **common)
        assert [item.type for item in answer.output] == ["message"]
        assert answer.usage is not None and plain.usage is not None
        assert (answer.usage.input_tokens == plain.usage.input_tokens) == (choice == "none")
        if choice == "none":
            assert answer.output_text == plain.output_text

    async def test_text_of_a_format_or_calls(self, serve: Serve) -> None:
        """Both are held to what was asked for. The model is biased towards the beginning of the one or the other."""
        async with serve() as served:
            (pool,) = served.gateway.engines.pools
            for begin, kind in (("yes", "message"), ("<tool_call>", "function_call")):
                answer = await served.client.responses.create(
                    input="hi",
                    tools=TOOLS,
                    parallel_tool_calls=False,
                    text={"format": {"type": "choice", "choices": ["yes", "no"]}},  # type: ignore[arg-type]
                    extra_body={"logit_bias": {str(pool.text.encode(begin)[0]): 100}},
                    **RANDOM,
                )
                (item,) = answer.output
                assert item.type == kind
                if item.type == "function_call":
                    check_call(item.name, item.arguments)
                else:
                    assert answer.output_text == "yes"

    async def test_events(self, serve: Serve) -> None:
        """As server-sent events, over the WebSocket and resumed: the same items, valid in OpenAI's types."""
        create: Any = {**RANDOM, "input": "hi", "tools": TOOLS, "tool_choice": "required"}
        async with serve() as served:
            stream = await served.client.responses.create(
                **create, stream=True, extra_body={"seed": 3}, extra_headers={"x-roundhouse-events": "true"}
            )
            events = [event.to_dict() async for event in stream]
            resumed = await served.client.responses.retrieve(
                events[0]["response"]["id"],
                stream=True,
                starting_after=7,
                extra_headers={"x-roundhouse-events": "true"},
            )
            rest = [event.to_dict() async for event in resumed]
            async with served.connect() as socket:
                await send(socket, type="response.create", **create, seed=3)
                received = await until_end(lambda: receive(socket))
            async with served.client.responses.connect() as connection:
                await connection.response.create(**create)
                async for last in connection:
                    if last.type in ("response.completed", "response.incomplete", "error"):
                        break
            await served.settle()
        for item in last.response.output[:-1]:  # type: ignore[union-attr]
            check_call(item.name, item.arguments)  # type: ignore[union-attr]
        for event in received:
            if not event["type"].startswith("roundhouse."):
                ADAPTER.validate_python(event, strict=True)
        assert [event["sequence_number"] for event in events] == list(range(len(events)))
        assert all(event["sequence_number"] > 7 for event in rest)
        assert rest[-1] == events[-1]
        for told in (events, received):
            output = told[-1]["response"]["output"]
            for index, item in enumerate(output):
                about = [event for event in told if event.get("output_index") == index]
                assert about[0]["type"] == "response.output_item.added"
                assert (about[0]["item"]["name"], about[0]["item"]["arguments"]) == (item["name"], "")
                deltas = [event["delta"] for event in about if event["type"].endswith("arguments.delta")]
                assert "".join(deltas) == item["arguments"] == about[-2]["arguments"]
                assert about[-1]["item"] == item
        names = [[item["name"] for item in told[-1]["response"]["output"]] for told in (events, received)]
        assert names[0] == names[1]

    async def test_the_clients_stream_helper(self, serve: Serve) -> None:
        """`client.responses.stream` with a Pydantic function: snapshots, and arguments parsed."""
        tool = openai.pydantic_function_tool(GetWeather, name="get_weather")["function"]
        async with serve() as served:
            create: Any = {**RANDOM, "input": "hi", "tools": [{"type": "function", **tool}], "tool_choice": "required"}
            async with served.client.responses.stream(**create) as stream:
                snapshots = [event.snapshot async for event in stream if event.type.endswith("arguments.delta")]
                final = await stream.get_final_response()
            await served.settle()
        first = final.output[0]
        assert first.type == "function_call"
        assert first.parsed_arguments in ({"city": "Berlin"}, {"city": "Rome"})
        assert snapshots[-1] == final.output[-1].arguments  # type: ignore[union-attr]

    async def test_a_conversation_with_a_tool(self, serve: Serve) -> None:
        """The call is answered by id, within the chain of responses or with the whole conversation."""
        async with serve() as served:
            responses = served.client.responses
            first = await responses.create(
                input="hi", tools=TOOLS, tool_choice={"type": "function", "name": "roll_dice"}, **RANDOM
            )
            (call,) = first.output
            assert call.type == "function_call"
            output: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "5"}
            short: Any = {"model": "auto", "max_output_tokens": 4, "tools": TOOLS, "tool_choice": "none"}
            chained = await responses.create(previous_response_id=first.id, input=[output], **short)
            whole = await responses.create(input=[*USER_ITEMS, call.to_dict(), output], **short)
            assert chained.usage is not None and whole.usage is not None
            assert chained.usage.input_tokens == whole.usage.input_tokens
            assert chained.output_text == whole.output_text
            with pytest.raises(openai.BadRequestError) as caught:
                await responses.create(
                    previous_response_id=first.id, input=[{**output, "call_id": "call_other"}], **short
                )
            assert caught.value.param == "input"
            await served.settle()

    async def test_a_call_that_is_cut_off_is_incomplete(self, serve: Serve) -> None:
        """Its output is taken all the same, as it is from a client that sends the whole conversation."""
        endless = {"type": "object", "properties": {"a": {"type": "string", "minLength": 500}}, "required": ["a"]}
        async with serve() as served:
            first = await served.client.responses.create(
                input="hi",
                model="auto",
                tools=[{"type": "function", "name": "f", "parameters": endless, "strict": True}],
                tool_choice="required",
                max_output_tokens=90,
            )
            assert first.status == "incomplete"
            (call,) = first.output
            assert call.type == "function_call" and call.status == "incomplete"
            output: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "5"}
            following: Any = {"model": "auto", "max_output_tokens": 1, "extra_body": {"ignore_eos": True}}
            stateful = await served.client.responses.create(previous_response_id=first.id, input=[output], **following)
            whole: Any = [{"role": "user", "content": "hi"}, call.to_dict(), output]
            stateless = await served.client.responses.create(input=whole, **following)
            assert stateful.usage is not None and stateless.usage is not None
            assert stateful.usage.input_tokens == stateless.usage.input_tokens

    @pytest.mark.parametrize("stream", [False, True])
    async def test_a_schema_that_cannot_be_compiled(self, serve: Serve, stream: bool) -> None:
        """A 400 that names the function's schema; a function that is not strict is never compiled in `auto`."""
        bad: Any = {"type": "function", "name": "f", "parameters": {"properties": {"a": {"type": "strange"}}}}
        async with serve() as served:
            with pytest.raises(openai.BadRequestError) as caught:
                await served.client.responses.create(
                    input="hi", tools=[{**bad, "strict": True}], stream=stream, max_output_tokens=4
                )
            assert (caught.value.param, caught.value.code) == ("tools[0].parameters", "invalid_value")
            answer = await served.client.responses.create(
                input="hi", tools=[{**bad, "strict": False}], max_output_tokens=4
            )
            assert answer.status in ("completed", "incomplete")
            await served.settle()


USER_ITEMS: list[Any] = [{"role": "user", "content": "hi"}]


class TestChatCompletions:
    """`/v1/chat/completions`."""

    async def test_whole(self, serve: Serve) -> None:
        """Several answers, each with calls and without content."""
        async with serve() as served:
            answer = await served.client.chat.completions.create(
                **CHAT, tools=NESTED, tool_choice="required", n=4, seed=1
            )
            await served.settle()
        assert len(answer.choices) == 4
        for choice in answer.choices:
            assert (choice.finish_reason, choice.message.content) == ("tool_calls", None)
            assert choice.message.tool_calls
            for call in choice.message.tool_calls:
                assert call.type == "function"
                check_call(call.function.name, call.function.arguments)

    async def test_chunks(self, serve: Serve) -> None:
        """A call's first chunk has its id and name; together they are the whole answer."""
        create: Any = {**CHAT, "tools": NESTED, "tool_choice": "required", "n": 2, "seed": 1}
        async with serve() as served:
            whole = await served.client.chat.completions.create(**create)
            chunks = [chunk async for chunk in await served.client.chat.completions.create(**create, stream=True)]
            await served.settle()
        for choice in whole.choices:
            mine = [chunk.choices[0] for chunk in chunks if chunk.choices[0].index == choice.index]
            assert mine[0].delta.role == "assistant"
            assert mine[-1].finish_reason == "tool_calls"
            for index, call in enumerate(choice.message.tool_calls or []):
                assert call.type == "function"
                pieces = [part for one in mine for part in one.delta.tool_calls or [] if part.index == index]
                assert pieces[0].id and pieces[0].type == "function"
                assert pieces[0].function is not None and pieces[0].function.name == call.function.name
                assert all(piece.id is None for piece in pieces[1:])
                arguments = "".join(piece.function.arguments or "" for piece in pieces if piece.function)
                assert arguments == call.function.arguments

    async def test_the_clients_helpers(self, serve: Serve) -> None:
        """`parse` and `stream` with a Pydantic function give it back with its arguments."""
        tools = [openai.pydantic_function_tool(GetWeather)]
        async with serve() as served:
            create: Any = {**CHAT, "tools": tools, "tool_choice": "required", "parallel_tool_calls": False}
            parsed = await served.client.chat.completions.parse(**create)
            async with served.client.chat.completions.stream(**create) as stream:
                final = await stream.get_final_completion()
            await served.settle()
        for answer in (parsed, final):
            (call,) = answer.choices[0].message.tool_calls or []
            assert isinstance(call.function.parsed_arguments, GetWeather)

    async def test_a_tool_loop(self, serve: Serve) -> None:
        """The assistant's message goes back as it came, with the output behind it."""
        async with serve() as served:
            completions = served.client.chat.completions
            first = await completions.create(**CHAT, tools=NESTED, tool_choice="required")
            message = first.choices[0].message
            outputs = [{"role": "tool", "tool_call_id": call.id, "content": "5"} for call in message.tool_calls or []]
            said: Any = [*USER, message.to_dict(), *outputs]
            second = await completions.create(**{**CHAT, "messages": said, "max_tokens": 4}, tools=NESTED)
            await served.settle()
        assert second.usage is not None and first.usage is not None
        assert second.usage.prompt_tokens > first.usage.prompt_tokens


class TestCache:
    """Calls are never answered from the cache, and answers that go by their outputs are not either."""

    async def test_calls_are_not_stored(self, serve: Serve) -> None:
        """Though the same request would give the same call."""
        async with serve() as served:
            create: Any = {
                "input": "hi",
                "tools": TOOLS,
                "tool_choice": "required",
                "extra_body": {"seed": 1},
                **RANDOM,
            }
            outcomes = []
            for _ in range(2):
                response = await served.client.responses.with_raw_response.create(**create)
                outcomes.append(response.headers["x-roundhouse-cache"])
                (call, *_) = response.parse().output
                output: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "5"}  # type: ignore[union-attr]
                after = await served.client.responses.with_raw_response.create(
                    model="auto", input=[*USER_ITEMS, call.to_dict(), output], max_output_tokens=2
                )
                outcomes.append(after.headers["x-roundhouse-cache"])
        assert outcomes == ["miss", "bypass", "miss", "bypass"]

    async def test_tools_are_a_part_of_the_key(self, serve: Serve) -> None:
        """An answer in words to a request with tools is another one's without."""
        choice: Any = {"format": {"type": "choice", "choices": ["yes"]}}
        async with serve() as served:

            async def outcome(**body: Any) -> str:
                create: Any = {"input": "hi", "text": choice, "max_output_tokens": 400, **body}
                response = await served.client.responses.with_raw_response.create(**create)
                return response.headers["x-roundhouse-cache"]

            assert [await outcome(), await outcome(tools=TOOLS, tool_choice="none")] == ["miss", "miss"]
            assert [await outcome(), await outcome(tools=TOOLS, tool_choice="none")] == ["hit", "hit"]
