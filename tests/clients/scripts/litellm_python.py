"""LiteLLM: its completion, text, embedding and responses functions, and how it understands errors."""

import json
from typing import Any, Literal

import litellm
from checks import API, CITY, EMBEDDING_MODEL, KEY, MODEL, QUESTION, TOO_LONG, URL, check, run
from pydantic import BaseModel

GIVEN: Any = {"api_base": API, "api_key": KEY, "max_retries": 0}
MESSAGES: Any = [{"role": "user", "content": QUESTION}]
PROVIDERS = ("openai", "hosted_vllm", "litellm_proxy")
FUNCTION: Any = {"name": "get_weather", "description": "Tells the weather.", "parameters": CITY}


class Weather(BaseModel):
    """A document that any model can fill in."""

    city: Literal["Berlin", "Rome"]
    rain: bool


@check
def completion() -> None:
    for provider in PROVIDERS:
        answer = litellm.completion(model=f"{provider}/{MODEL}", messages=MESSAGES, max_tokens=16, **GIVEN)
        assert answer.choices[0].message.content and answer.usage.total_tokens, provider


@check
def stream() -> None:
    for provider in PROVIDERS:
        chunks = list(
            litellm.completion(
                model=f"{provider}/{MODEL}",
                messages=MESSAGES,
                max_tokens=16,
                stream=True,
                stream_options={"include_usage": True},
                **GIVEN,
            )
        )
        whole = litellm.stream_chunk_builder(chunks, messages=MESSAGES)
        assert whole and whole.choices[0].message.content and whole.usage.completion_tokens, provider


@check
async def asynchronous() -> None:
    answer = await litellm.acompletion(model=f"openai/{MODEL}", messages=MESSAGES, max_tokens=16, **GIVEN)
    assert answer.choices[0].message.content


@check
def tool_loop() -> None:
    tools = [{"type": "function", "function": FUNCTION}]
    asked: Any = {"model": f"openai/{MODEL}", "tools": tools, "max_tokens": 200, **GIVEN}
    message = litellm.completion(messages=MESSAGES, tool_choice="required", **asked).choices[0].message
    assert json.loads(message.tool_calls[0].function.arguments)["city"] in ("Berlin", "Rome")
    outputs = [
        {"role": "tool", "tool_call_id": call.id, "name": call.function.name, "content": "rain"}
        for call in message.tool_calls
    ]
    assert litellm.completion(messages=[*MESSAGES, message, *outputs], tool_choice="none", **asked).choices


@check
def structured_output() -> None:
    answer = litellm.completion(model=f"openai/{MODEL}", messages=MESSAGES, response_format=Weather, **GIVEN)
    Weather.model_validate_json(answer.choices[0].message.content)


@check
def responses() -> None:
    """Continued by id; LiteLLM wraps the id in one of its own."""
    asked: Any = {"model": f"openai/{MODEL}", "max_output_tokens": 16, "api_base": API, "api_key": KEY}
    first = litellm.responses(input=QUESTION, **asked)
    assert litellm.responses(input="And?", previous_response_id=first.id, **asked).output
    kinds = [event.type for event in litellm.responses(input=QUESTION, stream=True, **asked)]
    assert "response.output_text.delta" in kinds


@check
async def anthropic_messages() -> None:
    """Anthropic's API by a bridge to chat completions, and as it is."""
    for model, base in ((f"openai/{MODEL}", API), (f"anthropic/{MODEL}", URL)):
        answer: Any = await litellm.anthropic.messages.acreate(
            model=model, messages=MESSAGES, max_tokens=16, api_base=base, api_key=KEY
        )
        assert answer["content"][0]["text"], model


@check
def text_completion() -> None:
    answer = litellm.text_completion(
        model=f"text-completion-openai/{MODEL}", prompt=QUESTION, max_tokens=8, api_base=API, api_key=KEY
    )
    assert answer.choices[0].text


@check
def ollama() -> None:
    """Ollama's API."""
    headers = {"authorization": f"Bearer {KEY}"}
    answer = litellm.completion(
        model=f"ollama_chat/{MODEL}", messages=MESSAGES, max_tokens=16, api_base=URL, extra_headers=headers
    )
    assert answer.choices[0].message.content


if EMBEDDING_MODEL:

    @check
    def embeddings() -> None:
        assert len(litellm.embedding(model=f"openai/{EMBEDDING_MODEL}", input=["one", "two"], **GIVEN).data) == 2


@check
def errors() -> None:
    """Each as the class by which LiteLLM chooses what to do next."""
    long: Any = [{"role": "user", "content": TOO_LONG}]
    for model, messages, key, expected in (
        (MODEL, long, KEY, litellm.ContextWindowExceededError),
        ("nothing", MESSAGES, KEY, litellm.NotFoundError),
        (MODEL, MESSAGES, "wrong", litellm.AuthenticationError),
    ):
        try:
            litellm.completion(model=f"openai/{model}", messages=messages, api_base=API, api_key=key, max_retries=0)
        except expected:
            continue
        raise AssertionError(f"no {expected.__name__}")


run()
