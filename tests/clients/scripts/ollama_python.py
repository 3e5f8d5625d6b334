"""The ollama package: chat, generate, tools, formats, listing, errors."""

from typing import Any, Literal

from checks import CITY, KEY, MODEL, QUESTION, TOO_LONG, URL, check, run
from ollama import AsyncClient, Client, ResponseError
from pydantic import BaseModel

HEADERS = {"authorization": f"Bearer {KEY}"}
client = Client(URL, headers=HEADERS)
MESSAGES: Any = [{"role": "user", "content": QUESTION}]
SHORT: Any = {"num_predict": 16, "num_ctx": 4096, "temperature": 0}
FUNCTION: Any = {"name": "get_weather", "description": "Tells the weather.", "parameters": CITY}


class Weather(BaseModel):
    """A document that any model can fill in."""

    model_config = {"extra": "forbid"}
    city: Literal["Berlin", "Rome"]
    rain: bool


@check
def listed_and_shown() -> None:
    assert MODEL in [model.model for model in client.list().models]
    assert "completion" in (client.show(MODEL).capabilities or [])


@check
def chat() -> None:
    answer = client.chat(MODEL, MESSAGES, options=SHORT, keep_alive="5m", think=False)
    assert answer.message.content and answer.done and answer.eval_count


@check
def streamed_chat() -> None:
    parts = list(client.chat(MODEL, MESSAGES, options=SHORT, stream=True))
    whole = client.chat(MODEL, MESSAGES, options=SHORT)
    assert "".join(part.message.content or "" for part in parts) == whole.message.content != ""
    assert [part.done for part in parts][-2:] == [False, True]


@check
def several_turns() -> None:
    first = client.chat(MODEL, MESSAGES, options=SHORT)
    assert client.chat(MODEL, [*MESSAGES, first.message, {"role": "user", "content": "And?"}], options=SHORT).done


@check
def tools() -> None:
    """What a tool returned goes back under the tool's name; a model may call it or not."""
    offered: Any = [{"type": "function", "function": FUNCTION}]
    client.chat(MODEL, MESSAGES, tools=offered, options=SHORT)
    called: Any = {
        "role": "assistant",
        "tool_calls": [{"function": {"name": "get_weather", "arguments": {"city": "Rome"}}}],
    }
    output: Any = {"role": "tool", "tool_name": "get_weather", "content": "rain"}
    assert client.chat(MODEL, [*MESSAGES, called, output], tools=offered, options=SHORT).done


@check
def schema() -> None:
    answer = client.chat(MODEL, MESSAGES, format=Weather.model_json_schema())
    Weather.model_validate_json(answer.message.content or "")


@check
def generate() -> None:
    assert client.generate(MODEL, QUESTION, options=SHORT, system="Be brief.").response
    assert "".join(part.response for part in client.generate(MODEL, QUESTION, options=SHORT, stream=True, raw=True))


@check
async def asynchronous() -> None:
    assert (await AsyncClient(URL, headers=HEADERS).chat(MODEL, MESSAGES, options=SHORT)).message.content


@check
def errors() -> None:
    for model, messages, status in (
        ("nothing", MESSAGES, 404),
        (MODEL, [{"role": "user", "content": TOO_LONG}], 400),
    ):
        try:
            client.chat(model, messages)
        except ResponseError as error:
            assert error.status_code == status and error.error, error
            continue
        raise AssertionError("no ResponseError")


run()
