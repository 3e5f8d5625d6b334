"""Semantic Kernel: its chat service and agents, which send names with messages."""

from typing import Any, Literal

from checks import API, EMBEDDING_MODEL, KEY, MODEL, QUESTION, check, run
from openai import AsyncOpenAI
from pydantic import BaseModel
from semantic_kernel.agents import ChatCompletionAgent, ChatHistoryAgentThread
from semantic_kernel.connectors.ai.function_choice_behavior import FunctionChoiceBehavior
from semantic_kernel.connectors.ai.open_ai import (
    OpenAIChatCompletion,
    OpenAIChatPromptExecutionSettings,
    OpenAITextEmbedding,
)
from semantic_kernel.contents import (
    AuthorRole,
    ChatHistory,
    ChatMessageContent,
    FunctionCallContent,
    FunctionResultContent,
)
from semantic_kernel.functions import KernelArguments, kernel_function
from semantic_kernel.kernel import Kernel


class Weather(BaseModel):
    """A document that any model can fill in."""

    city: Literal["Berlin", "Rome"]
    rain: bool


class Plugin:
    """One function."""

    @kernel_function
    def get_weather(self, city: str) -> str:
        """Tell the weather."""
        return f"rain in {city}"


def service() -> OpenAIChatCompletion:
    return OpenAIChatCompletion(ai_model_id=MODEL, async_client=AsyncOpenAI(base_url=API, api_key=KEY))


def history() -> ChatHistory:
    made = ChatHistory(system_message="Be brief.")
    made.add_user_message(QUESTION)
    return made


@check
async def chat() -> None:
    short = OpenAIChatPromptExecutionSettings(max_tokens=16)
    [answer] = await service().get_chat_message_contents(history(), short)
    assert answer.content


@check
async def streamed_chat() -> None:
    short = OpenAIChatPromptExecutionSettings(max_tokens=16)
    parts = [part async for part in service().get_streaming_chat_message_content(history(), short)]
    assert "".join(str(part) for part in parts)


@check
async def typed_output() -> None:
    settings = OpenAIChatPromptExecutionSettings(max_tokens=200, response_format=Weather)
    [answer] = await service().get_chat_message_contents(history(), settings)
    Weather.model_validate_json(str(answer))


@check
async def functions() -> None:
    """Offered, with a call and what it returned before; a model may call once more or not."""
    kernel = Kernel()
    kernel.add_plugin(Plugin(), "weather")
    settings = OpenAIChatPromptExecutionSettings(
        max_tokens=16, function_choice_behavior=FunctionChoiceBehavior.Auto(auto_invoke=False)
    )
    made = history()
    given: Any = {"id": "call_1", "name": "weather-get_weather"}
    call = FunctionCallContent(arguments='{"city": "Rome"}', **given)
    made.add_message(ChatMessageContent(role=AuthorRole.ASSISTANT, items=[call]))
    made.add_message(ChatMessageContent(role=AuthorRole.TOOL, items=[FunctionResultContent(result="rain", **given)]))
    [answer] = await service().get_chat_message_contents(made, settings, kernel=kernel)
    assert answer.items


@check
async def agent() -> None:
    """Two turns of a thread."""
    arguments = KernelArguments(settings=OpenAIChatPromptExecutionSettings(max_tokens=16))
    made = ChatCompletionAgent(service=service(), name="assistant", instructions="Be brief.", arguments=arguments)
    thread: Any = ChatHistoryAgentThread()
    for question in (QUESTION, "And?"):
        answer = await made.get_response(messages=question, thread=thread)
        assert str(answer)


if EMBEDDING_MODEL:

    @check
    async def embeddings() -> None:
        made = OpenAITextEmbedding(ai_model_id=EMBEDDING_MODEL, async_client=AsyncOpenAI(base_url=API, api_key=KEY))
        assert len(await made.generate_embeddings(["one", "two"])) == 2


run()
