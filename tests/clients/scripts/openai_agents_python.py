"""OpenAI's Agents SDK: its three ways to reach a model, each with tools, typed output, handoffs and sessions."""

import contextlib
from collections.abc import AsyncIterator
from typing import Any, Literal

from agents import (
    Agent,
    ModelSettings,
    OpenAIProvider,
    RunConfig,
    Runner,
    SQLiteSession,
    function_tool,
    handoff,
    set_tracing_disabled,
)
from checks import API, KEY, MODEL, QUESTION, check, run
from openai import AsyncOpenAI
from pydantic import BaseModel

WAYS: dict[str, Any] = {
    "chat": {"use_responses": False},
    "responses": {"use_responses": True},
    "websocket": {"use_responses": True, "use_responses_websocket": True},
}
SHORT = ModelSettings(max_tokens=600, temperature=0)
MUST_CALL = ModelSettings(max_tokens=200, tool_choice="required", parallel_tool_calls=False)
set_tracing_disabled(True)


class Weather(BaseModel):
    """A document that any model can fill in."""

    city: Literal["Berlin", "Rome"]
    rain: bool


@contextlib.asynccontextmanager
async def each_way() -> AsyncIterator[dict[str, RunConfig]]:
    """Ways to reach the model, for as long as an event loop runs."""
    async with AsyncOpenAI(base_url=API, api_key=KEY) as client:
        providers = {name: OpenAIProvider(openai_client=client, **options) for name, options in WAYS.items()}
        try:
            yield {name: RunConfig(model_provider=provider) for name, provider in providers.items()}
        finally:
            for provider in providers.values():
                await provider.aclose()


@check
async def runs() -> None:
    async with each_way() as ways:
        for name, way in ways.items():
            agent = Agent(name="assistant", instructions="Be brief.", model=MODEL, model_settings=SHORT)
            result = await Runner.run(agent, QUESTION, run_config=way)
            assert result.final_output and result.context_wrapper.usage.output_tokens, name


@check
async def streamed_runs() -> None:
    async with each_way() as ways:
        for name, way in ways.items():
            result = Runner.run_streamed(
                Agent(name="assistant", model=MODEL, model_settings=SHORT), QUESTION, run_config=way
            )
            kinds = [event.data.type async for event in result.stream_events() if event.type == "raw_response_event"]
            assert "response.output_text.delta" in kinds and result.final_output, name


@check
async def tools() -> None:
    """The second request of a run has the call and what the tool returned."""
    asked: list[str] = []

    @function_tool
    def get_weather(city: Literal["Berlin", "Rome"]) -> str:
        """Tell the weather."""
        asked.append(city)
        return "rain"

    async with each_way() as ways:
        for name, way in ways.items():
            asked.clear()
            agent = Agent(name="assistant", model=MODEL, tools=[get_weather], model_settings=MUST_CALL)
            result = await Runner.run(agent, "Weather?", run_config=way)
            assert len(asked) == 1 and len(result.raw_responses) == 2, name


@check
async def typed_output() -> None:
    async with each_way() as ways:
        for name, way in ways.items():
            agent = Agent(name="assistant", model=MODEL, output_type=Weather)
            assert isinstance((await Runner.run(agent, "Weather?", run_config=way)).final_output, Weather), name


@check
async def handoffs() -> None:
    async with each_way() as ways:
        for name, way in ways.items():
            other = Agent(name="other", model=MODEL, model_settings=SHORT)
            first = Agent(name="first", model=MODEL, handoffs=[handoff(other)], model_settings=MUST_CALL)
            assert (await Runner.run(first, QUESTION, run_config=way)).last_agent.name == "other", name


@check
async def sessions() -> None:
    """Kept by the client, and by the server."""
    async with each_way() as ways:
        agent = Agent(name="assistant", model=MODEL, model_settings=SHORT)
        for name, way in ways.items():
            session = SQLiteSession(name)
            for question in (QUESTION, "And?"):
                result = await Runner.run(agent, question, session=session, run_config=way)
            assert len(result.to_input_list()) >= 2, name
        for name in ("responses", "websocket"):
            first = await Runner.run(agent, QUESTION, run_config=ways[name])
            second = await Runner.run(agent, "And?", previous_response_id=first.last_response_id, run_config=ways[name])
            used = second.context_wrapper.usage.input_tokens
            assert used > first.context_wrapper.usage.input_tokens, name


@check
async def settings() -> None:
    varied = ModelSettings(
        max_tokens=600, temperature=0, top_p=0.5, truncation="auto", verbosity="low", store=False, metadata={"a": "b"}
    )
    async with each_way() as ways:
        for name in ("responses", "websocket"):
            agent = Agent(name="assistant", model=MODEL, model_settings=varied)
            assert (await Runner.run(agent, QUESTION, run_config=ways[name])).final_output, name


run()
