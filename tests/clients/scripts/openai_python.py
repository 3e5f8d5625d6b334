"""openai-python: everything that it has for what Roundhouse serves, with all answers strictly of its own types."""

import asyncio
import json
from typing import Any, Literal

import openai
from checks import API, CITY, EMBEDDING_MODEL, KEY, MODEL, QUESTION, TOO_LONG, check, run
from openai import AsyncOpenAI, OpenAI
from openai.types import Completion
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.responses import Response, ResponsesServerEvent, ResponseStreamEvent
from pydantic import BaseModel, TypeAdapter

client = OpenAI(base_url=API, api_key=KEY, max_retries=0)
MESSAGES: Any = [{"role": "user", "content": QUESTION}]
FUNCTION: Any = {"name": "get_weather", "description": "Tells the weather.", "parameters": CITY, "strict": True}
SHORT: Any = {"model": MODEL, "max_output_tokens": 16}
SHORT_CHAT: Any = {"model": MODEL, "max_completion_tokens": 16, "messages": MESSAGES}
ENDS = ("response.completed", "response.incomplete", "response.failed", "error")


class Weather(BaseModel):
    """A document that any model can fill in, as its grammar leaves nothing else."""

    city: Literal["Berlin", "Rome"]
    rain: bool


def sent_events(stream: Any, of: Any) -> list[Any]:
    """The events of a raw stream, each strictly of a type."""
    adapter = TypeAdapter(of)
    lines = [line.removeprefix("data: ") for line in stream.iter_lines() if line.startswith("data: ")]
    return [adapter.validate_python(json.loads(line), strict=True) for line in lines if line != "[DONE]"]


def refused(call: Any, error: type[openai.APIStatusError], code: str) -> None:
    """Check that a call raises an error with a code."""
    try:
        call()
    except error as caught:
        assert caught.code == code, caught.code
    else:
        raise AssertionError(f"no {error.__name__}")


@check
def models() -> None:
    listed = [model.id for model in client.models.list()]
    assert MODEL in listed
    assert client.models.retrieve(MODEL).id == MODEL


@check
def response() -> None:
    raw = client.responses.with_raw_response.create(input=QUESTION, **SHORT)
    whole = Response.model_validate_json(raw.http_response.content, strict=True)
    assert whole.output_text and whole.usage and whole.usage.output_tokens <= 16


@check
def streamed_response() -> None:
    with client.responses.with_streaming_response.create(input=QUESTION, stream=True, **SHORT) as stream:
        events = sent_events(stream, ResponseStreamEvent)
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert events[0].type == "response.created" and events[-1].type in ENDS[:2]
    assert text == events[-1].response.output_text != ""


@check
def stream_helper() -> None:
    with client.responses.stream(model=MODEL, input=QUESTION, max_output_tokens=400) as stream:
        text = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
        assert stream.get_final_response().output_text == text != ""


@check
def parsed_response() -> None:
    answer = client.responses.parse(model=MODEL, input="What is the weather?", text_format=Weather)
    assert isinstance(answer.output_parsed, Weather)


@check
def conversation() -> None:
    """By `previous_response_id`, and by sending the items again."""
    first = client.responses.create(input=QUESTION, **SHORT)
    second = client.responses.create(input="And its licence?", previous_response_id=first.id, **SHORT)
    assert first.usage and second.usage and second.usage.input_tokens > first.usage.input_tokens
    items: Any = [*MESSAGES, *first.output, {"role": "user", "content": "And its licence?"}]
    again = client.responses.create(input=items, **SHORT)
    assert again.usage and again.usage.input_tokens == second.usage.input_tokens
    reference: Any = [{"type": "item_reference", "id": first.output[0].id}, {"role": "user", "content": "And?"}]
    assert client.responses.create(input=reference, **SHORT).output_text


@check
def function_call() -> None:
    tools: Any = [{"type": "function", **FUNCTION}]
    first = client.responses.create(model=MODEL, input="Weather?", tools=tools, tool_choice="required")
    calls = [item for item in first.output if item.type == "function_call"]
    assert calls and json.loads(calls[0].arguments)["city"] in ("Berlin", "Rome")
    outputs: Any = [{"type": "function_call_output", "call_id": call.call_id, "output": "rain"} for call in calls]
    assert client.responses.create(input=outputs, previous_response_id=first.id, tools=tools, **SHORT).output


@check
def streamed_function_call() -> None:
    tools: Any = [{"type": "function", **FUNCTION}]
    choice: Any = {"type": "function", "name": "get_weather"}
    create = client.responses.with_streaming_response.create
    with create(model=MODEL, input="Weather?", tools=tools, tool_choice=choice, stream=True) as stream:
        events = sent_events(stream, ResponseStreamEvent)
    arguments = "".join(event.delta for event in events if event.type == "response.function_call_arguments.delta")
    assert events[-1].response.output[0].arguments == arguments
    assert json.loads(arguments)["city"] in ("Berlin", "Rome")


@check
def stored_response() -> None:
    """Retrieved whole and as a stream, with its input, and deleted."""
    made = client.responses.create(input=QUESTION, metadata={"number": "1"}, **SHORT)
    kept = client.responses.retrieve(made.id)
    assert kept.output_text == made.output_text and kept.metadata == {"number": "1"}
    events = list(client.responses.retrieve(made.id, stream=True, starting_after=1))
    assert events[0].sequence_number > 1 and events[-1].type in ENDS[:2]
    assert len(list(client.responses.input_items.list(made.id))) == 1
    client.responses.delete(made.id)
    refused(lambda: client.responses.retrieve(made.id), openai.NotFoundError, "response_not_found")


@check
def cancelled_response() -> None:
    stream = client.responses.create(
        model=MODEL, input=QUESTION, stream=True, max_output_tokens=1500, extra_body={"ignore_eos": True}
    )
    first = next(iter(stream))
    assert first.type == "response.created"
    assert client.responses.cancel(first.response.id).status == "cancelled"
    assert list(stream)[-1].type == "response.incomplete"


@check
def response_parameters() -> None:
    """Those that have no effect here are accepted, as at OpenAI."""
    answer = client.responses.create(
        input=QUESTION,
        truncation="auto",
        reasoning={"effort": "low", "summary": "auto"},
        text={"verbosity": "low"},
        include=["message.output_text.logprobs"],
        top_logprobs=2,
        service_tier="flex",
        prompt_cache_key="key",
        safety_identifier="somebody",
        parallel_tool_calls=False,
        top_p=0.5,
        temperature=0.5,
        **SHORT,
    )
    part: Any = answer.output[0]
    assert len(part.content[0].logprobs[0].top_logprobs) == 2


@check
def chat_completion() -> None:
    raw = client.chat.completions.with_raw_response.create(**SHORT_CHAT)
    whole = ChatCompletion.model_validate_json(raw.http_response.content, strict=True)
    assert whole.choices[0].message.content and whole.usage


@check
def streamed_chat_completion() -> None:
    usage: Any = {"include_usage": True}
    create = client.chat.completions.with_streaming_response.create
    with create(stream=True, stream_options=usage, **SHORT_CHAT) as stream:
        chunks = sent_events(stream, ChatCompletionChunk)
    assert chunks[-1].usage and not chunks[-1].choices
    whole = client.chat.completions.create(**SHORT_CHAT).choices[0].message.content
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == whole


@check
def chat_tool_loop() -> None:
    tools: Any = [{"type": "function", "function": FUNCTION}]
    asked: Any = {"model": MODEL, "tools": tools, "max_completion_tokens": 200}
    first = client.chat.completions.create(messages=MESSAGES, tool_choice="required", **asked)
    message = first.choices[0].message
    assert first.choices[0].finish_reason == "tool_calls" and message.tool_calls
    outputs = [{"role": "tool", "tool_call_id": call.id, "content": "rain"} for call in message.tool_calls]
    second = client.chat.completions.create(messages=[*MESSAGES, message, *outputs], **asked)
    assert second.choices[0].message.role == "assistant"


@check
def streamed_chat_tool_call() -> None:
    tools: Any = [openai.pydantic_function_tool(Weather)]
    with client.chat.completions.stream(
        model=MODEL, messages=MESSAGES, tools=tools, tool_choice="required", parallel_tool_calls=False
    ) as stream:
        kinds = {event.type for event in stream}
        [call] = stream.get_final_completion().choices[0].message.tool_calls or []
    assert "tool_calls.function.arguments.done" in kinds
    assert isinstance(call.function.parsed_arguments, Weather)


@check
def parsed_chat_completion() -> None:
    answer = client.chat.completions.parse(model=MODEL, messages=MESSAGES, response_format=Weather)
    assert isinstance(answer.choices[0].message.parsed, Weather)


@check
def chat_parameters() -> None:
    answer = client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "system", "content": "Be brief.", "name": "rules"}, {**MESSAGES[0], "name": "Ann"}],
        n=2,
        seed=7,
        stop=["\n\n"],
        logprobs=True,
        top_logprobs=2,
        max_tokens=8,
        presence_penalty=0.1,
        frequency_penalty=0.1,
        logit_bias={"5": -100},
        reasoning_effort="low",
        verbosity="low",
        store=False,
        user="somebody",
    )
    assert len(answer.choices) == 2
    assert answer.choices[0].logprobs and answer.choices[0].logprobs.content


@check
def completion() -> None:
    raw = client.completions.with_raw_response.create(model=MODEL, prompt=["one", "two"], max_tokens=4, logprobs=1)
    whole = Completion.model_validate_json(raw.http_response.content, strict=True)
    assert [choice.index for choice in whole.choices] == [0, 1]
    stream = client.completions.create(model=MODEL, prompt="one", max_tokens=4, stream=True)
    assert [chunk.choices[0].finish_reason for chunk in stream][-1] in ("stop", "length")


if EMBEDDING_MODEL:

    @check
    def embeddings() -> None:
        """As base64, which the client asks for by itself, and as numbers."""
        answer = client.embeddings.create(model=EMBEDDING_MODEL, input=["one", "two"])
        plain = client.embeddings.create(model=EMBEDDING_MODEL, input="one", encoding_format="float")
        assert len(answer.data) == 2
        pairs = zip(answer.data[0].embedding, plain.data[0].embedding, strict=True)
        assert all(abs(one - other) < 1e-5 for one, other in pairs)


@check
def errors() -> None:
    """Each is raised as the class that a program catches."""
    refused(
        lambda: client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": TOO_LONG}]),
        openai.BadRequestError,
        "context_length_exceeded",
    )
    refused(lambda: client.responses.create(model="nothing", input="hi"), openai.NotFoundError, "model_not_found")
    refused(client.with_options(api_key="wrong").models.list, openai.AuthenticationError, "invalid_api_key")
    unknown = {"no_such_parameter": 1}
    refused(
        lambda: client.responses.create(input="hi", extra_body=unknown, **SHORT),
        openai.BadRequestError,
        "unknown_parameter",
    )
    try:
        client.chat.completions.parse(model=MODEL, messages=MESSAGES, response_format=Weather, max_tokens=1)
    except openai.LengthFinishReasonError:
        return
    raise AssertionError("no LengthFinishReasonError")


@check
async def many_at_once() -> None:
    async with AsyncOpenAI(base_url=API, api_key=KEY, max_retries=0) as many:
        answers = await asyncio.gather(*(many.responses.create(input=f"{n}?", **SHORT) for n in range(8)))
    assert len({answer.id for answer in answers}) == 8


def events_of(connection: Any) -> list[Any]:
    """The events of one turn of a connection, each strictly of its type."""
    adapter: TypeAdapter[Any] = TypeAdapter(ResponsesServerEvent)
    events: list[Any] = []
    while not events or events[-1].type not in ENDS:
        events.append(adapter.validate_python(json.loads(connection.recv_bytes()), strict=True))
    return events


@check
def websocket() -> None:
    """Two turns that are not stored, a call, and what is refused."""
    with client.responses.connect() as connection:
        connection.response.create(input=QUESTION, store=False, **SHORT)
        first = events_of(connection)[-1].response
        connection.response.create(input="And?", previous_response_id=first.id, store=False, **SHORT)
        second = events_of(connection)[-1].response
        assert second.usage.input_tokens > first.usage.input_tokens
        connection.response.create(
            model=MODEL, input="Weather?", tools=[{"type": "function", **FUNCTION}], tool_choice="required"
        )
        assert events_of(connection)[-1].response.output[0].type == "function_call"
        connection.response.create(model="nothing", input=QUESTION)
        assert events_of(connection)[-1].error.code == "model_not_found"
        connection.response.steer(input=MESSAGES, previous_response_id=first.id)
        assert json.loads(connection.recv_bytes())["type"] == "response.steer.failed"


@check
async def websocket_lanes() -> None:
    """Two turns side by side on one connection."""
    async with (
        AsyncOpenAI(base_url=API, api_key=KEY) as one,
        one.responses.connect() as connection,
    ):
        for lane in ("left", "right"):
            await connection.response.create(input=f"{lane}?", stream_id=lane, **SHORT)
        ended: set[str | None] = set()
        async for event in connection:
            if event.type in ENDS[:2]:
                ended.add(event.stream_id)
            if ended == {"left", "right"}:
                break


run()
