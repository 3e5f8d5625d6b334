"""Lines of batches, without Redis and engines."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.batches.lines import (
    ATTEMPTS,
    LONGEST_PAUSE,
    MAX_ERRORS,
    FileCheck,
    LineAnswer,
    LineSplitter,
    abandoned_line,
    answered_line,
    pause,
    usage_of,
)
from gateway.protocol.stream import TokenUsage
from tests.gateway.batches.use import line

ENDPOINT = "/v1/chat/completions"


def check(*lines: bytes | dict[str, Any], max_bytes: int = 1000) -> FileCheck:
    checked = FileCheck(ENDPOINT, max_bytes)
    for each in lines:
        checked.line(each if isinstance(each, bytes) else json.dumps(each).encode())
    return checked


@given(st.binary(max_size=200), st.lists(st.integers(0, 200), max_size=10))
def test_lines_are_those_of_the_file_however_it_is_cut(content: bytes, cuts: list[int]) -> None:
    splitter, lines = LineSplitter(), list[bytes]()
    places = sorted({0, len(content), *(cut for cut in cuts if cut < len(content))})
    for begin, end in itertools.pairwise(places):
        lines += splitter.push(content[begin:end])
    lines += splitter.end()
    whole = content.split(b"\n")
    assert lines == (whole if whole[-1] else whole[:-1])


def test_good_lines_are_counted_with_the_empty_ones_left_out() -> None:
    checked = check(line("a"), b"", line("b"), b"  \r", line("c"))
    assert (checked.errors, checked.total, checked.lines) == ((), 3, 5)


@pytest.mark.parametrize(
    ("bad", "code", "param"),
    [
        (b"{", "invalid_json_line", None),
        (b"[]", "invalid_json_line", None),
        (b"\xff", "invalid_json_line", None),
        (b"[" * 900, "invalid_json_line", None),
        (b'"' + b"a" * 1000 + b'"', "invalid_request", None),
        ({**line("b"), "custom_id": ""}, "invalid_value", "custom_id"),
        ({**line("b"), "custom_id": 7}, "invalid_value", "custom_id"),
        (line("a"), "duplicate_custom_id", "custom_id"),
        ({**line("b"), "method": "GET"}, "invalid_value", "method"),
        ({**line("b"), "url": "/v1/responses"}, "invalid_value", "url"),
        ({**line("b"), "url": "/v1/models"}, "invalid_value", "url"),
        ({**line("b"), "body": []}, "invalid_value", "body"),
        ({**line("b"), "headers": {}}, "unknown_parameter", "headers"),
        ({"custom_id": "b", "method": "POST", "url": ENDPOINT}, "missing_required_parameter", "body"),
    ],
)
def test_a_bad_line_is_named(bad: bytes | dict[str, Any], code: str, param: str | None) -> None:
    [error] = check(line("a"), b"", bad, line("c")).errors
    assert (error.line, error.code, error.param) == (3, code, param)
    assert error.message


def test_an_empty_file_is_an_error_and_there_is_an_end_to_errors() -> None:
    [error] = check(b"", b" ").errors
    assert (error.code, error.line) == ("empty_file", None)
    many = check(*[b"x"] * MAX_ERRORS)
    assert many.full and len(many.errors) == MAX_ERRORS
    assert not check(*[b"x"] * (MAX_ERRORS - 1)).full


def answer(status: int, code: str | None = None, retry_after: float | None = None) -> LineAnswer:
    return LineAnswer(status, b"{}", "req_1", code, retry_after)


@pytest.mark.parametrize(
    ("given", "earlier", "seconds"),
    [
        (answer(200), 0, None),
        (answer(400, "invalid_value"), 0, None),
        (answer(401, "invalid_api_key"), 0, None),
        (answer(404, "model_not_found"), 0, None),
        (answer(429, "rate_limit_exceeded", 7), 50, 7),
        (answer(429, "anomalous_request", 7), 0, None),
        (answer(429, "insufficient_quota", 3600), 0, None),
        (answer(429, "insufficient_quota", 1), 0, 1),
        (answer(503, "unavailable"), 0, 1),
        (answer(503, "unavailable"), 3, 8),
        (answer(503, "unavailable"), 5000, LONGEST_PAUSE),
        (answer(503, "draining", 1), 9, 1),
        (answer(503, "adapter_drained"), 0, None),
        (answer(502, "engine_failed"), ATTEMPTS - 2, 2),
        (answer(502, "engine_failed"), ATTEMPTS - 1, None),
        (answer(500, "internal_error"), ATTEMPTS - 1, None),
        (answer(502, "answer_redacted"), 0, None),
    ],
)
def test_what_is_tried_again_and_when(given: LineAnswer, earlier: int, seconds: float | None) -> None:
    assert pause(given, earlier) == seconds


def test_results_are_openais() -> None:
    body = b'{"object": "x", "usage": null}'
    answered = answered_line("batch_req_1", "a\n", LineAnswer(200, body, "req_1"))
    assert answered.count(b"\n") == 1 and answered.endswith(b"\n")
    assert json.loads(answered) == {
        "id": "batch_req_1",
        "custom_id": "a\n",
        "response": {"status_code": 200, "request_id": "req_1", "body": json.loads(body)},
        "error": None,
    }
    assert json.loads(abandoned_line("batch_req_1", "a", "batch_expired", "too late")) == {
        "id": "batch_req_1",
        "custom_id": "a",
        "response": None,
        "error": {"code": "batch_expired", "message": "too late"},
    }


@pytest.mark.parametrize(
    ("body", "usage"),
    [
        ({"usage": {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7}}, TokenUsage(5, 0, 2)),
        ({"usage": {"prompt_tokens": 5, "prompt_tokens_details": {"cached_tokens": 4}}}, TokenUsage(5, 4, 0)),
        (
            {"usage": {"input_tokens": 5, "input_tokens_details": {"cached_tokens": 1}, "output_tokens": 3}},
            TokenUsage(5, 1, 3),
        ),
        ({"error": {"message": "no"}}, TokenUsage()),
        ({"usage": None}, TokenUsage()),
    ],
)
def test_tokens_are_counted_in_the_words_of_every_endpoint(body: dict[str, Any], usage: TokenUsage) -> None:
    assert usage_of(LineAnswer(200, json.dumps(body).encode(), "req_1")) == usage
