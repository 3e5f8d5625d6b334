"""pydantic-ai: agents over chat completions and over responses, with tools and typed output of each kind."""

from typing import Any, Literal

from checks import API, KEY, MODEL, QUESTION, TOO_LONG, check, run
from pydantic import BaseModel
from pydantic_ai import Agent, ModelHTTPError, NativeOutput, ToolOutput
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel, OpenAIResponsesModelSettings
from pydantic_ai.providers.openai import OpenAIProvider

SHORT: Any = {"max_tokens": 32, "temperature": 0}


class Weather(BaseModel):
    """The weather in a city."""

    city: Literal["Berlin", "Rome"]
    rain: bool


def models() -> dict[str, Any]:
    """Both kinds of models, for one event loop."""
    provider = OpenAIProvider(base_url=API, api_key=KEY)
    return {
        "chat": OpenAIChatModel(MODEL, provider=provider),
        "responses": OpenAIResponsesModel(MODEL, provider=provider),
    }


@check
async def runs() -> None:
    for name, model in models().items():
        result = await Agent(model, instructions="Be brief.").run(QUESTION, model_settings=SHORT)
        assert result.output, name


@check
async def streams() -> None:
    for name, model in models().items():
        async with Agent(model).run_stream(QUESTION, model_settings=SHORT) as result:
            assert "".join([text async for text in result.stream_text(delta=True)]), name


@check
async def several_turns() -> None:
    for name, model in models().items():
        agent = Agent(model)
        first = await agent.run(QUESTION, model_settings=SHORT)
        second = await agent.run("And?", message_history=first.all_messages(), model_settings=SHORT)
        assert second.output, name


@check
async def typed_output() -> None:
    """By a call of a tool and by a schema."""
    for name, model in models().items():
        for kind in (ToolOutput, NativeOutput):
            result = await Agent(model, output_type=kind(Weather)).run("Weather?", model_settings={"max_tokens": 200})
            assert isinstance(result.output, Weather), (name, kind)


@check
async def tool_loop() -> None:
    """A tool that is called, and the answer by a second call."""
    for name, model in models().items():
        agent = Agent(model, output_type=ToolOutput(Weather))

        @agent.tool_plain
        def get_weather(city: Literal["Berlin", "Rome"]) -> str:
            """Tell the weather."""
            return "rain"

        result = await agent.run("Weather?", model_settings={"max_tokens": 200})
        assert isinstance(result.output, Weather), name


@check
async def settings_of_responses() -> None:
    varied = OpenAIResponsesModelSettings(
        max_tokens=16,
        top_p=0.5,
        openai_truncation="auto",
        openai_reasoning_effort="low",
        openai_text_verbosity="low",
        openai_previous_response_id="auto",
    )
    assert (await Agent(models()["responses"]).run(QUESTION, model_settings=varied)).output


@check
async def error() -> None:
    for name, model in models().items():
        try:
            await Agent(model).run(TOO_LONG)
        except ModelHTTPError as error:
            assert error.status_code == 400, name
            continue
        raise AssertionError(f"{name}: no ModelHTTPError")


run()
