"""Haystack: generators of its chat and responses components, pipelines, tools, embedders."""

from typing import Any, Literal

from checks import API, CITY, EMBEDDING_MODEL, KEY, MODEL, QUESTION, check, run
from haystack import Pipeline
from haystack.components.builders import ChatPromptBuilder
from haystack.components.embedders import OpenAITextEmbedder
from haystack.components.generators.chat import OpenAIChatGenerator, OpenAIResponsesChatGenerator
from haystack.components.generators.utils import print_streaming_chunk
from haystack.dataclasses import ChatMessage
from haystack.tools import Tool
from haystack.utils import Secret
from pydantic import BaseModel

GIVEN: Any = {"model": MODEL, "api_base_url": API, "api_key": Secret.from_token(KEY)}
SHORT: Any = {"max_completion_tokens": 16}
MESSAGES = [ChatMessage.from_system("Be brief."), ChatMessage.from_user(QUESTION, name="Ann")]


class Weather(BaseModel):
    """A document that any model can fill in."""

    city: Literal["Berlin", "Rome"]
    rain: bool


TOOL = Tool(
    name="get_weather", description="Tells the weather.", parameters=CITY, function=lambda city: f"rain in {city}"
)


@check
def chat() -> None:
    [reply] = OpenAIChatGenerator(generation_kwargs=SHORT, **GIVEN).run(MESSAGES)["replies"]
    assert reply.text and reply.meta["usage"]


@check
def streamed_chat() -> None:
    made = OpenAIChatGenerator(generation_kwargs=SHORT, streaming_callback=print_streaming_chunk, **GIVEN)
    [reply] = made.run(MESSAGES)["replies"]
    assert reply.text


@check
def responses() -> None:
    made = OpenAIResponsesChatGenerator(generation_kwargs={"max_output_tokens": 16}, **GIVEN)
    question = [ChatMessage.from_system("Be brief."), ChatMessage.from_user(QUESTION)]
    [reply] = made.run(question)["replies"]
    assert reply.text
    assert made.run([*question, reply, ChatMessage.from_user("And?")])["replies"]


@check
def tool_loop() -> None:
    made = OpenAIChatGenerator(generation_kwargs={"tool_choice": "required"}, tools=[TOOL], **GIVEN)
    [reply] = made.run(MESSAGES)["replies"]
    assert reply.tool_calls
    results = [
        ChatMessage.from_tool(tool_result=TOOL.invoke(**call.arguments), origin=call) for call in reply.tool_calls
    ]
    assert OpenAIChatGenerator(generation_kwargs=SHORT, **GIVEN).run([*MESSAGES, reply, *results])["replies"]


@check
def typed_output() -> None:
    made = OpenAIChatGenerator(generation_kwargs={"response_format": Weather, "max_completion_tokens": 200}, **GIVEN)
    Weather.model_validate_json(made.run(MESSAGES)["replies"][0].text or "")


@check
def pipeline() -> None:
    made = Pipeline()
    made.add_component("prompt", ChatPromptBuilder(template=[ChatMessage.from_user("{{question}}")]))
    made.add_component("chat", OpenAIChatGenerator(generation_kwargs=SHORT, **GIVEN))
    made.connect("prompt.prompt", "chat.messages")
    assert made.run({"prompt": {"question": QUESTION}})["chat"]["replies"][0].text


if EMBEDDING_MODEL:

    @check
    def embeddings() -> None:
        made = OpenAITextEmbedder(**{**GIVEN, "model": EMBEDDING_MODEL})
        assert len(made.run("one")["embedding"]) > 100


run()
