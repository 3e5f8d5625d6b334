"""LangChain: chat models over chat completions and over responses, agents, completions, embeddings."""

from typing import Any, Literal

from checks import API, EMBEDDING_MODEL, KEY, MODEL, QUESTION, TOO_LONG, check, run
from langchain.agents import create_agent
from langchain_core.exceptions import ContextOverflowError
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAI, OpenAIEmbeddings
from pydantic import BaseModel

GIVEN: Any = {"model": MODEL, "base_url": API, "api_key": KEY, "max_retries": 0, "temperature": 0}
chat = ChatOpenAI(max_completion_tokens=200, stream_usage=True, **GIVEN)
responses = ChatOpenAI(max_completion_tokens=200, use_responses_api=True, output_version="responses/v1", **GIVEN)
both = {"chat": chat, "responses": responses}


class Weather(BaseModel):
    """The weather in a city."""

    city: Literal["Berlin", "Rome"]
    rain: bool


@tool
def get_weather(city: Literal["Berlin", "Rome"]) -> str:
    """Tell the weather."""
    return f"rain in {city}"


@check
def invoke() -> None:
    for name, model in both.items():
        answer = model.invoke([SystemMessage("Be brief.", name="rules"), HumanMessage(QUESTION, name="Ann")])
        assert answer.text and answer.usage_metadata, name


@check
def stream() -> None:
    for name, model in both.items():
        whole = None
        for chunk in model.stream(QUESTION):
            whole = chunk if whole is None else whole + chunk
        assert whole is not None and whole.text and whole.usage_metadata, name


@check
async def asynchronous() -> None:
    answers = await ChatOpenAI(max_completion_tokens=8, **GIVEN).abatch(["one?", "two?", "three?"])
    assert len([answer for answer in answers if answer.text]) == 3


@check
def several_turns() -> None:
    for name, model in both.items():
        first = model.invoke(QUESTION)
        second = model.invoke([HumanMessage(QUESTION), first, HumanMessage("And?")])
        assert first.usage_metadata and second.usage_metadata, name
        assert second.usage_metadata["input_tokens"] > first.usage_metadata["input_tokens"], name


@check
def previous_response() -> None:
    kept = ChatOpenAI(max_completion_tokens=16, use_responses_api=True, use_previous_response_id=True, **GIVEN)
    first = kept.invoke(QUESTION)
    assert kept.invoke([HumanMessage(QUESTION), first, HumanMessage("And?")]).text


@check
def tool_loop() -> None:
    """What a tool returned carries the tool's name."""
    for name, model in both.items():
        question = HumanMessage("What is the weather in Rome?")
        called = model.bind_tools([get_weather], tool_choice="any", strict=True).invoke([question])
        assert isinstance(called, AIMessage), name
        outputs = [get_weather.invoke(call) for call in called.tool_calls]
        assert isinstance(outputs[0], ToolMessage) and outputs[0].name, name
        assert model.bind_tools([get_weather], tool_choice="none").invoke([question, called, *outputs]).text, name


@check
def structured_output() -> None:
    for name, model in both.items():
        for method in ("json_schema", "function_calling"):
            answer = model.with_structured_output(Weather, method=method, strict=True).invoke("The weather?")
            assert isinstance(answer, Weather), (name, method)


@check
def agent() -> None:
    for name, model in both.items():
        result = create_agent(model, [get_weather], system_prompt="Be brief.").invoke(
            {"messages": [{"role": "user", "content": QUESTION}]}
        )
        assert result["messages"][-1].text, name


@check
def parameters() -> None:
    varied = ChatOpenAI(
        model=MODEL,
        base_url=API,
        api_key=KEY,
        max_completion_tokens=8,
        top_p=0.5,
        seed=1,
        logprobs=True,
        top_logprobs=2,
    )
    answer = varied.invoke(QUESTION, stop=["\n\n"])
    assert answer.response_metadata["logprobs"]["content"]
    assert chat.invoke(QUESTION, reasoning_effort="low", verbosity="low").text
    assert responses.invoke(QUESTION, truncation="auto").text


@check
def context_overflow() -> None:
    """A prompt that is too long is the exception that programs catch to shorten it."""
    for name, model in both.items():
        try:
            model.invoke(TOO_LONG)
        except ContextOverflowError:
            continue
        raise AssertionError(f"{name}: no ContextOverflowError")


@check
def completion() -> None:
    model = OpenAI(max_tokens=8, **GIVEN)
    assert model.invoke(QUESTION)
    assert "".join(model.stream(QUESTION))


if EMBEDDING_MODEL:

    @check
    def embeddings() -> None:
        """Without counting tokens, for which the client would fetch a file of OpenAI's."""
        model = OpenAIEmbeddings(model=EMBEDDING_MODEL, base_url=API, api_key=KEY, check_embedding_ctx_length=False)
        assert len(model.embed_documents(["one", "two"])) == 2


run()
