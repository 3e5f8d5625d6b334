"""smolagents: its model for servers like OpenAI's, as its agents call it."""

from typing import Any

from checks import API, KEY, MODEL, QUESTION, check, run
from smolagents import ChatMessage, MessageRole, OpenAIServerModel, tool

model = OpenAIServerModel(model_id=MODEL, api_base=API, api_key=KEY, max_tokens=64, temperature=0)
MESSAGES: Any = [ChatMessage(role=MessageRole.USER, content=[{"type": "text", "text": QUESTION}])]


@tool
def get_weather(city: str) -> str:
    """Tells the weather.

    Args:
        city: a city
    """
    return f"rain in {city}"


@check
def generate() -> None:
    answer = model.generate(MESSAGES)
    assert answer.content and answer.token_usage


@check
def stream() -> None:
    assert "".join(part.content or "" for part in model.generate_stream(MESSAGES)) == model.generate(MESSAGES).content


@check
def stop_sequences() -> None:
    assert model.generate(MESSAGES, stop_sequences=["Observation:", "<end_code>"]).content


@check
def tool_call() -> None:
    """Which the model's class requires by itself."""
    calls = model.generate(MESSAGES, tools_to_call_from=[get_weather]).tool_calls
    assert calls and calls[0].function.name == "get_weather"


run()
