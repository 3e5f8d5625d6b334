"""A conversation with the real processes, through the clients that people use."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import msgspec
import openai
import pytest
from websockets.sync.client import connect

from tests.e2e.conftest import KEY, Installation

QUESTION = "What is Roundhouse?"


@pytest.fixture
def client(roundhouse: Installation) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=roundhouse.api, api_key=KEY) as client:
        yield client


def test_the_openai_client_talks_over_the_websocket(client: openai.OpenAI) -> None:
    """Two turns, the second continuing the first, with nothing changed but the base URL."""
    texts, previous = [], None
    with client.responses.connect() as connection:
        for question in (QUESTION, "Which licence does it have?"):
            create = {"model": "large", "input": question}
            if previous:
                create["previous_response_id"] = previous
            connection.response.create(**create)  # type: ignore[arg-type]
            text = ""
            for event in connection:
                if event.type == "response.output_text.delta":
                    text += event.delta
                elif event.type == "response.completed":
                    assert event.response.output_text == text
                    assert event.response.usage
                    assert event.response.usage.output_tokens > 0
                    previous = event.response.id
                    break
            texts.append(text)
    assert "gateway" in texts[0].lower()
    assert texts[1]


def test_the_openai_client_talks_over_http(client: openai.OpenAI) -> None:
    response = client.responses.create(model="large", input=QUESTION)
    assert "gateway" in response.output_text.lower()
    streamed = "".join(
        event.delta
        for event in client.responses.create(model="large", input=QUESTION, stream=True)
        if event.type == "response.output_text.delta"
    )
    assert streamed == response.output_text


def test_chat_completions_and_completions_answer_too(client: openai.OpenAI) -> None:
    messages: list[openai.types.chat.ChatCompletionMessageParam] = [{"role": "user", "content": QUESTION}]
    whole = client.chat.completions.create(model="large", messages=messages)
    chunks = client.chat.completions.create(model="large", messages=messages, stream=True)
    streamed = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert whole.choices[0].message.content == streamed
    assert client.completions.create(model="small", prompt="Hello", max_tokens=4).choices[0].text


def test_all_names_are_listed(client: openai.OpenAI) -> None:
    names = {model.id for model in client.models.list()}
    assert {"auto", "small", "medium", "large", "roundhouse-demo-2m", "roundhouse-demo-large"} <= names


def test_auto_goes_by_the_knob_and_says_that_it_is_not_calibrated(roundhouse: Installation) -> None:
    routes = []
    asked = {"Authorization": f"Bearer {KEY}", "x-roundhouse-events": "true"}
    with connect(roundhouse.socket, additional_headers=asked) as socket:
        for quality in (0, 100):
            body = {"model": "auto", "input": f"hello {quality}", "roundhouse": {"quality": quality}}
            socket.send(msgspec.json.encode({"type": "response.create", **body}).decode())
            for message in socket:
                event = msgspec.json.decode(message)
                if event["type"] == "roundhouse.route":
                    routes.append(event)
                if event["type"] == "response.completed":
                    break
    assert [(route["tier"], route["reason"]) for route in routes] == [("small", "mixture"), ("large", "mixture")]
    assert all("not calibrated for these models" in route["reasons"][0] for route in routes)


def test_the_same_question_is_answered_from_the_cache(client: openai.OpenAI) -> None:
    question = "Which caches does Roundhouse have?"
    answers = [client.responses.with_raw_response.create(model="medium", input=question) for _ in range(2)]
    assert answers[1].headers["x-roundhouse-cache"] == "hit"
    first, second = (answer.parse().output_text for answer in answers)
    assert first == second
    fresh = client.responses.with_raw_response.create(
        model="medium", input=question, extra_headers={"Cache-Control": "no-store"}
    )
    assert fresh.headers["x-roundhouse-cache"] == "bypass"
    assert fresh.parse().output_text == first


def test_messagepack_frames_carry_the_same_events(roundhouse: Installation) -> None:
    headers = {"Authorization": f"Bearer {KEY}"}
    with connect(roundhouse.socket, additional_headers=headers, subprotocols=["roundhouse.msgpack"]) as socket:  # type: ignore[list-item]
        socket.send(msgspec.msgpack.encode({"type": "response.create", "model": "small", "input": "hello"}))
        types = []
        for message in socket:
            assert isinstance(message, bytes)
            types.append(msgspec.msgpack.decode(message)["type"])
            if types[-1] == "response.completed":
                break
    assert types[0] == "response.created"
    assert "response.output_text.delta" in types


def test_the_terminal_chat_answers(roundhouse: Installation) -> None:
    command = [
        sys.executable,
        "-m",
        "gateway.cli",
        "chat",
        "--url",
        roundhouse.url,
        "--model",
        "large",
        "--once",
        QUESTION,
    ]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    assert "gateway" in answer.lower()
