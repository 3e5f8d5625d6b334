"""LlamaIndex: chat, completion, streams, tools, structured output, embeddings, for servers like OpenAI's."""

from typing import Any, Literal

from checks import API, EMBEDDING_MODEL, KEY, MODEL, QUESTION, check, run
from llama_index.core.llms import ChatMessage
from llama_index.core.tools import FunctionTool
from llama_index.embeddings.openai_like import OpenAILikeEmbedding
from llama_index.llms.openai_like import OpenAILike
from pydantic import BaseModel

GIVEN: Any = {"model": MODEL, "api_base": API, "api_key": KEY, "max_retries": 0, "context_window": 2048}
llm = OpenAILike(is_chat_model=True, is_function_calling_model=True, max_tokens=200, temperature=0, **GIVEN)
structured = OpenAILike(
    is_chat_model=True, is_function_calling_model=True, should_use_structured_outputs=True, max_tokens=200, **GIVEN
)
MESSAGES = [ChatMessage(role="system", content="Be brief."), ChatMessage(role="user", content=QUESTION)]


class Weather(BaseModel):
    """The weather in a city."""

    city: Literal["Berlin", "Rome"]
    rain: bool


def get_weather(city: Literal["Berlin", "Rome"]) -> str:
    """Tell the weather."""
    return f"rain in {city}"


@check
def chat() -> None:
    assert llm.chat(MESSAGES).message.content


@check
def streamed_chat() -> None:
    assert "".join(part.delta or "" for part in llm.stream_chat(MESSAGES)) == llm.chat(MESSAGES).message.content


@check
def complete() -> None:
    assert llm.complete(QUESTION).text
    assert OpenAILike(is_chat_model=False, max_tokens=8, **GIVEN).complete(QUESTION).text


@check
async def asynchronous() -> None:
    assert (await llm.achat(MESSAGES)).message.content


@check
def several_turns() -> None:
    first = llm.chat(MESSAGES).message
    assert llm.chat([*MESSAGES, first, ChatMessage(role="user", content="And?")]).message.role == "assistant"


@check
def tool_loop() -> None:
    tool = FunctionTool.from_defaults(get_weather)
    answer = llm.chat_with_tools([tool], chat_history=MESSAGES, tool_required=True)
    calls = llm.get_tool_calls_from_response(answer)
    outputs = [
        ChatMessage(
            role="tool", content=str(tool(**call.tool_kwargs)), additional_kwargs={"tool_call_id": call.tool_id}
        )
        for call in calls
    ]
    assert outputs and llm.chat([*MESSAGES, answer.message, *outputs]).message.role == "assistant"


@check
def structured_output() -> None:
    """By a schema, and by a call."""
    for model in (structured, llm):
        answer = model.as_structured_llm(Weather).complete("What is the weather?")
        assert isinstance(answer.raw, Weather)


if EMBEDDING_MODEL:

    @check
    def embeddings() -> None:
        model = OpenAILikeEmbedding(model_name=EMBEDDING_MODEL, api_base=API, api_key=KEY)
        assert len(model.get_text_embedding_batch(["one", "two"])) == 2


run()
