"""Requests are OpenAI's, and have what the user adds."""

from __future__ import annotations

from load.bodies import request_body
from tests.load.samples import planned


def test_a_chat_completion_asks_for_its_usage() -> None:
    assert request_body(planned(seed=7), {}) == {
        "model": "one",
        "messages": [{"role": "user", "content": "Hello?"}],
        "max_tokens": 64,
        "stream": True,
        "stream_options": {"include_usage": True},
        "seed": 7,
    }


def test_a_response_streams_and_a_socket_need_not_say_so() -> None:
    asked = {"model": "one", "input": "Hello?", "max_output_tokens": 64}
    assert request_body(planned(protocol="responses"), {}) == asked
    assert request_body(planned(protocol="responses-http"), {}) == {**asked, "stream": True}


def test_fields_are_added_replaced_and_taken_away() -> None:
    body = request_body(planned(), {"max_tokens": None, "max_completion_tokens": 9, "model": "two"})
    assert "max_tokens" not in body
    assert (body["max_completion_tokens"], body["model"]) == (9, "two")
