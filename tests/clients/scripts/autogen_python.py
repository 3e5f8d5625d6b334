"""AutoGen: its client, and agents and teams with their defaults, which send names with messages."""

from typing import Any, Literal

from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.conditions import MaxMessageTermination
from autogen_agentchat.teams import RoundRobinGroupChat
from autogen_core.models import (
    AssistantMessage,
    FunctionExecutionResult,
    FunctionExecutionResultMessage,
    ModelFamily,
    UserMessage,
)
from autogen_core.tools import FunctionTool
from autogen_ext.models.openai import OpenAIChatCompletionClient
from checks import API, KEY, MODEL, QUESTION, check, run
from pydantic import BaseModel

INFO: Any = {
    "vision": False,
    "function_calling": True,
    "json_output": True,
    "structured_output": True,
    "family": ModelFamily.UNKNOWN,
}


class Weather(BaseModel):
    """A document that any model can fill in."""

    city: Literal["Berlin", "Rome"]
    rain: bool


async def get_weather(city: Literal["Berlin", "Rome"]) -> str:
    """Tell the weather."""
    return f"rain in {city}"


def client() -> Any:
    given: Any = {"model": MODEL, "base_url": API, "api_key": KEY, "max_retries": 0, "model_info": INFO}
    return OpenAIChatCompletionClient(max_tokens=200, **given)


@check
async def create() -> None:
    result = await client().create([UserMessage(content=QUESTION, source="user")])
    assert result.content and result.usage.completion_tokens


@check
async def stream() -> None:
    parts = [part async for part in client().create_stream([UserMessage(content=QUESTION, source="user")])]
    assert "".join(part for part in parts if isinstance(part, str)) == parts[-1].content


@check
async def typed_output() -> None:
    result = await client().create([UserMessage(content="Weather?", source="user")], json_output=Weather)
    Weather.model_validate_json(result.content)


@check
async def tool_loop() -> None:
    tool = FunctionTool(get_weather, "Tells the weather.", strict=True)
    asked: Any = [UserMessage(content="What is the weather in Rome?", source="user")]
    called = await client().create(asked, tools=[tool], tool_choice="required")
    outputs = [
        FunctionExecutionResult(content="rain", name=call.name, call_id=call.id, is_error=False)
        for call in called.content
    ]
    more = [
        AssistantMessage(content=called.content, source="assistant"),
        FunctionExecutionResultMessage(content=outputs),
    ]
    assert outputs and (await client().create([*asked, *more])).content


@check
async def agent() -> None:
    made = AssistantAgent("assistant", client(), tools=[get_weather], system_message="Be brief.")
    assert (await made.run(task=QUESTION)).messages[-1].content


@check
async def team() -> None:
    members = [AssistantAgent(name, client()) for name in ("one", "other")]
    result = await RoundRobinGroupChat(members, termination_condition=MaxMessageTermination(3)).run(task=QUESTION)
    assert len(result.messages) == 3


run()
