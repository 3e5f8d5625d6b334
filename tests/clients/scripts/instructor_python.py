"""instructor: typed answers by tools, by schemas and by responses, whole and while they arrive."""

import warnings
from typing import Any, Literal

import instructor
from checks import API, KEY, MODEL, check, run
from openai import AsyncOpenAI, OpenAI
from pydantic import BaseModel

MESSAGES: Any = [{"role": "user", "content": "What is the weather?"}]
GIVEN: Any = {"base_url": API, "api_key": KEY, "max_retries": 0}
ASKED: Any = {"model": MODEL, "messages": MESSAGES, "max_retries": 0}
warnings.simplefilter("ignore")


class Weather(BaseModel):
    """The weather in a city."""

    model_config = {"extra": "forbid"}
    city: Literal["Berlin", "Rome"]
    rain: bool


def client(mode: instructor.Mode) -> Any:
    return instructor.from_openai(OpenAI(**GIVEN), mode=mode)


@check
def tools() -> None:
    assert isinstance(client(instructor.Mode.TOOLS).create(response_model=Weather, **ASKED), Weather)


@check
def json_schema() -> None:
    assert isinstance(client(instructor.Mode.JSON_SCHEMA).create(response_model=Weather, **ASKED), Weather)


@check
def responses() -> None:
    asked: Any = {"model": MODEL, "input": MESSAGES[0]["content"], "max_retries": 0}
    answer = client(instructor.Mode.RESPONSES_TOOLS).responses.create(response_model=Weather, **asked)
    assert isinstance(answer, Weather)


@check
def partial() -> None:
    parts = list(client(instructor.Mode.TOOLS).create_partial(response_model=Weather, **ASKED))
    assert len(parts) > 1 and Weather.model_validate(parts[-1].model_dump())


@check
def with_completion() -> None:
    answer, raw = client(instructor.Mode.TOOLS).create_with_completion(response_model=Weather, **ASKED)
    assert isinstance(answer, Weather) and raw.usage.total_tokens


@check
async def asynchronous() -> None:
    asking: Any = instructor.from_openai(AsyncOpenAI(**GIVEN), mode=instructor.Mode.TOOLS)
    assert isinstance(await asking.create(response_model=Weather, **ASKED), Weather)


run()
