"""The anthropic package: messages with their types strictly, streams, tools, documents, counting, errors."""

import json
from typing import Any, Literal

import anthropic
from anthropic import Anthropic, AsyncAnthropic
from anthropic.types import Message, RawMessageStreamEvent
from checks import CITY, KEY, MODEL, QUESTION, TOO_LONG, URL, check, run
from pydantic import BaseModel, TypeAdapter

client = Anthropic(base_url=URL, api_key=KEY, max_retries=0)
MESSAGES: Any = [{"role": "user", "content": QUESTION}]
SHORT: Any = {"model": MODEL, "max_tokens": 16, "messages": MESSAGES}
TOOLS: Any = [{"name": "get_weather", "description": "Tells the weather.", "input_schema": CITY}]


class Weather(BaseModel):
    """A document that any model can fill in."""

    city: Literal["Berlin", "Rome"]
    rain: bool


@check
def models() -> None:
    assert MODEL in [model.id for model in client.models.list()]


@check
def message() -> None:
    raw = client.messages.with_raw_response.create(**SHORT)
    whole = Message.model_validate_json(raw.http_response.content, strict=True)
    assert whole.content[0].type == "text" and whole.content[0].text and whole.usage.output_tokens <= 16


@check
def streamed_message() -> None:
    adapter: TypeAdapter[Any] = TypeAdapter(RawMessageStreamEvent)
    with client.messages.with_streaming_response.create(stream=True, **SHORT) as stream:
        lines = [line.removeprefix("data: ") for line in stream.iter_lines() if line.startswith("data: ")]
    events = [adapter.validate_python(json.loads(line), strict=True) for line in lines if '"ping"' not in line]
    assert [events[0].type, events[-1].type] == ["message_start", "message_stop"]


@check
def stream_helper() -> None:
    with client.messages.stream(**SHORT) as stream:
        text = "".join(stream.text_stream)
        assert stream.get_final_text() == text != ""


@check
def several_turns() -> None:
    first = client.messages.create(**SHORT)
    more: Any = [*MESSAGES, {"role": "assistant", "content": first.content}, {"role": "user", "content": "And?"}]
    assert client.messages.create(model=MODEL, max_tokens=16, messages=more, system="Be brief.").content


@check
def tool_loop() -> None:
    asked: Any = {"model": MODEL, "max_tokens": 200, "tools": TOOLS}
    called = client.messages.create(messages=MESSAGES, tool_choice={"type": "any"}, **asked)
    assert called.stop_reason == "tool_use"
    calls: Any = [block for block in called.content if block.type == "tool_use"]
    assert calls[0].input["city"] in ("Berlin", "Rome")
    results = [{"type": "tool_result", "tool_use_id": call.id, "content": "rain"} for call in calls]
    more: Any = [*MESSAGES, {"role": "assistant", "content": called.content}, {"role": "user", "content": results}]
    assert client.messages.create(messages=more, tool_choice={"type": "none"}, **asked).content


@check
def streamed_tool_call() -> None:
    choice: Any = {"type": "tool", "name": "get_weather"}
    with client.messages.stream(
        model=MODEL, max_tokens=200, messages=MESSAGES, tools=TOOLS, tool_choice=choice
    ) as stream:
        block: Any = stream.get_final_message().content[0]
    assert block.input["city"] in ("Berlin", "Rome")


@check
def parsed_message() -> None:
    answer = client.messages.parse(model=MODEL, max_tokens=200, messages=MESSAGES, output_format=Weather)
    assert isinstance(answer.parsed_output, Weather)


@check
def parameters() -> None:
    """Those that have no effect here are accepted, as at Anthropic."""
    answer = client.messages.create(
        system=[{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}],
        stop_sequences=["\n\n"],
        metadata={"user_id": "somebody"},
        service_tier="auto",
        thinking={"type": "disabled"},
        extra_body={"temperature": 0.5, "top_p": 0.9, "top_k": 40},
        **SHORT,
    )
    assert answer.stop_reason in ("end_turn", "max_tokens", "stop_sequence")


@check
def count_tokens() -> None:
    assert client.messages.count_tokens(model=MODEL, messages=MESSAGES, tools=TOOLS).input_tokens > 10


@check
async def asynchronous() -> None:
    async with AsyncAnthropic(base_url=URL, api_key=KEY) as many:
        assert (await many.messages.create(**SHORT)).content


@check
def errors() -> None:
    for asking, change, expected in (
        (client, {"messages": [{"role": "user", "content": TOO_LONG}]}, anthropic.BadRequestError),
        (client, {"model": "nothing"}, anthropic.NotFoundError),
        (client.with_options(api_key="wrong"), {}, anthropic.AuthenticationError),
    ):
        try:
            asking.messages.create(**{**SHORT, **change})
        except expected as error:
            assert isinstance(error.body, dict) and error.body["type"] == "error"
            continue
        raise AssertionError(f"no {expected.__name__}")


run()
