"""A turn's log as OpenAI's events: valid in the `openai` package's own types, whatever became of the turn."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace
from openai.types.responses import Response, ResponsesServerEvent
from pydantic import TypeAdapter

from engine.text.processor import SamplingDefaults
from gateway.errors import EngineFailed, RateLimited, Unavailable
from gateway.protocol.events import Event, ResponseView, error_event, with_stream_id
from gateway.protocol.log import TurnLog
from gateway.protocol.requests import Message, Sampling, TurnRequest
from gateway.protocol.response_create import parse_response_create
from gateway.protocol.stream import (
    ArgumentsDelta,
    CallBegun,
    CallEnded,
    Finished,
    LimitReading,
    LimitState,
    Routed,
    TextDelta,
    TokenLogprob,
    TokenUsage,
    TurnEvent,
)
from router.options import TierOption
from router.replica import Score

ADAPTER: TypeAdapter[Any] = TypeAdapter(ResponsesServerEvent)
ROUTED = Routed(tier="small", model="m", replica="small-0", reason="complexity", complexity=0.5, reasons=("long",))
USAGE = TokenUsage(input_tokens=7, cached_tokens=3, output_tokens=2)


def events(*appended: TurnEvent, **fields: Any) -> tuple[list[Event], ResponseView]:
    """All events of a turn, validated, and its view."""
    request = TurnRequest(model="auto", messages=(Message("user", "hi"),), **fields)
    log = TurnLog(with_item=request.generate)
    for event in appended:
        log.append(event)
    view = ResponseView("resp_1", 1_700_000_000, request, log)
    shown = [with_stream_id(view.event(entry), "lane") for entry in log.read(-1)]
    for event in shown:
        if not event["type"].startswith("roundhouse."):
            ADAPTER.validate_python(event, strict=True)
    Response.model_validate(view.response(), strict=True)
    return shown, view


@pytest.mark.parametrize(
    ("reason", "type_", "status"),
    [
        ("stop", "response.completed", "completed"),
        ("length", "response.incomplete", "incomplete"),
        ("cancelled", "response.incomplete", "cancelled"),
    ],
)
def test_an_answer_ends_with_its_whole_response(reason: Any, type_: str, status: str) -> None:
    """Text, usage and status."""
    shown, view = events(ROUTED, TextDelta("a"), TextDelta("b"), Finished(reason, USAGE))
    assert (shown[-1]["type"], shown[-1]["response"]["status"]) == (type_, status)
    assert shown[-1]["response"] == view.response()
    response = Response.model_validate(view.response())
    assert response.output_text == "ab"
    assert response.usage is not None
    assert response.usage.input_tokens_details.cached_tokens == 3
    assert response.usage.total_tokens == 9
    assert (response.incomplete_details is not None) == (status == "incomplete")


def test_a_failure_is_told_in_the_response() -> None:
    """With OpenAI's coarse code and our precise one; the partial text stays."""
    shown, _ = events(ROUTED, TextDelta("a"), Finished("error", USAGE, EngineFailed("gone")))
    response = shown[-1]["response"]
    assert (shown[-1]["type"], response["status"]) == ("response.failed", "failed")
    assert (response["error"]["code"], response["error"]["type"]) == ("server_error", "engine_failed")
    assert response["output"][0]["status"] == "incomplete"


def test_a_failure_without_text_has_no_output() -> None:
    """Nothing was begun."""
    shown, _ = events(ROUTED, Finished("error", TokenUsage(), Unavailable("no")))
    assert [event["type"] for event in shown] == [
        "response.created",
        "response.in_progress",
        "roundhouse.route",
        "response.failed",
    ]
    assert shown[-1]["response"]["output"] == []


def test_a_warm_up_is_a_completed_response_without_output() -> None:
    """`generate: false`."""
    shown, _ = events(ROUTED, Finished("stop", USAGE), generate=False)
    assert (shown[-1]["type"], shown[-1]["response"]["output"]) == ("response.completed", [])


def test_a_running_response_shows_its_text_so_far() -> None:
    """For `GET /v1/responses/{id}`."""
    _, view = events(ROUTED, TextDelta("so far"))
    response = Response.model_validate(view.response())
    assert (response.status, response.output_text, response.usage) == ("in_progress", "so far", None)


def test_logprobs_come_with_deltas_and_with_the_part() -> None:
    """In the two shapes that OpenAI gives them."""
    entry = TokenLogprob("é", (0xC3, 0xA9), -0.5, (TokenLogprob("e", (101,), -1.5),))
    shown, view = events(ROUTED, TextDelta("é", (1,), (entry,)), Finished("stop", USAGE), sampling=Sampling(logprobs=1))
    (delta,) = (event for event in shown if event["type"] == "response.output_text.delta")
    assert delta["logprobs"] == [{"token": "é", "logprob": -0.5, "top_logprobs": [{"token": "e", "logprob": -1.5}]}]
    part = view.response()["output"][0]["content"][0]
    assert part["logprobs"][0]["bytes"] == [0xC3, 0xA9]
    assert part["logprobs"][0]["top_logprobs"][0]["bytes"] == [101]


def test_our_own_events_name_the_response() -> None:
    """And carry what the page shows."""
    shown, _ = events(
        ROUTED,
        TextDelta("a"),
        LimitState((LimitReading("output_tokens_per_minute", "tenant", 100, 90, 6.0),)),
        Finished("stop", USAGE),
    )
    (route,) = (event for event in shown if event["type"] == "roundhouse.route")
    assert (route["response_id"], route["tier"], route["reasons"], route["cache"]) == (
        "resp_1",
        "small",
        ["long"],
        "miss",
    )
    (limits,) = (event for event in shown if event["type"] == "roundhouse.limits")
    assert limits["tokens"] == {"limit": 100, "remaining": 90, "reset_seconds": 6.0}


def test_a_route_tells_how_many_scores_it_leaves_out() -> None:
    score = Score(0.5, 0.1, 0.0, 0.0, 0.4)
    many = replace(ROUTED, scores={"small-7": score}, scores_left_out=992)
    shown = [event for route in (many, ROUTED) for event in events(route)[0] if event["type"] == "roundhouse.route"]
    assert (shown[0]["scores"]["small-7"]["total"], shown[0]["scores_left_out"]) == (0.4, 992)
    assert "scores_left_out" not in shown[1]


def test_what_the_tiers_came_to_is_told() -> None:
    """Rounded; nothing if the request named its tier."""
    compared = (
        TierOption("small", 0.123456, 0.02, 0.0, 0.103456, True),
        TierOption("medium", 0.2, 0.1, 0.0, 0.1, False, "is full"),
    )
    shown, _ = events(replace(ROUTED, options=compared), Finished("stop", USAGE))
    assert shown[2]["options"] == [
        {
            "tier": "small",
            "value": 0.1235,
            "cost": 0.02,
            "queue": 0.0,
            "total": 0.1035,
            "chosen": True,
            "unavailable": None,
        },
        {
            "tier": "medium",
            "value": 0.2,
            "cost": 0.1,
            "queue": 0.0,
            "total": 0.1,
            "chosen": False,
            "unavailable": "is full",
        },
    ]
    shown, _ = events(ROUTED, Finished("stop", USAGE))
    assert shown[2]["options"] == []


def test_what_was_asked_for_is_repeated() -> None:
    """Instructions, metadata, limits and lineage."""
    _, view = events(
        ROUTED,
        instructions="be brief",
        metadata={"a": "b"},
        max_output_tokens=5,
        previous_response_id="resp_0",
        store=False,
    )
    shown = view.response()
    assert (shown["instructions"], shown["metadata"], shown["max_output_tokens"]) == ("be brief", {"a": "b"}, 5)
    assert (shown["previous_response_id"], shown["store"], shown["model"]) == ("resp_0", False, "m")


def test_what_was_not_asked_for_has_openais_defaults() -> None:
    """And where the model decides, its own; what has no effect is repeated only if it was sent."""
    _, view = events(ROUTED)
    shown = view.response()
    assert (shown["tool_choice"], shown["parallel_tool_calls"], shown["truncation"]) == ("auto", True, "disabled")
    assert (shown["temperature"], shown["top_p"]) == (0.0, 1.0)
    assert "user" not in shown
    body = {
        "user": "ann",
        "prompt_cache_key": "k",
        "safety_identifier": "s",
        "max_tool_calls": 3,
        "tool_choice": "none",
    }
    request, _ = parse_response_create({"input": "hi", "temperature": 0.5, **body})
    _, view = events(
        replace(ROUTED, defaults=SamplingDefaults(temperature=1, top_p=0.9)),
        sampling=request.sampling,
        echo=request.echo,
    )
    shown = view.response()
    assert {name: shown[name] for name in body} == body
    assert (shown["temperature"], shown["top_p"]) == (0.5, 0.9)


def test_an_error_event_is_openais() -> None:
    """With status, headers and lane."""
    event = error_event(RateLimited("slow down", retry_after=2.0), "lane")
    ADAPTER.validate_python(event, strict=True)
    assert (event["status"], event["stream_id"]) == (429, "lane")
    assert event["error"]["headers"] == {"retry-after": "2"}


def test_calls_are_items_of_their_own() -> None:
    """Arguments stream, and stand whole at the end; every item has an id and a place of its own."""
    shown, view = events(
        ROUTED,
        TextDelta("I look."),
        CallBegun("call_1", "f"),
        ArgumentsDelta('{"a"'),
        ArgumentsDelta(": 1}"),
        CallEnded(True),
        CallBegun("call_2", "g"),
        ArgumentsDelta("{"),
        Finished("stop", USAGE),
    )
    about = [event for event in shown if "output_index" in event]
    assert [(event["type"].removeprefix("response."), event["output_index"]) for event in about] == [
        ("output_item.added", 0),
        ("content_part.added", 0),
        ("output_text.delta", 0),
        ("output_text.done", 0),
        ("content_part.done", 0),
        ("output_item.done", 0),
        ("output_item.added", 1),
        ("function_call_arguments.delta", 1),
        ("function_call_arguments.done", 1),
        ("output_item.done", 1),
        ("output_item.added", 2),
        ("function_call_arguments.delta", 2),
        ("function_call_arguments.done", 2),
        ("output_item.done", 2),
    ]
    added = [event["item"] for event in about if event["type"].endswith("item.added")]
    done = [event["item"] for event in about if event["type"].endswith("item.done")]
    assert [item["id"] for item in added] == [item["id"] for item in done] == ["msg_1", "fc_1_1", "fc_1_2"]
    assert [(item["status"], item["arguments"]) for item in added[1:]] == [("in_progress", "")] * 2
    assert [(item["call_id"], item["name"], item["status"], item["arguments"]) for item in done[1:]] == [
        ("call_1", "f", "completed", '{"a": 1}'),
        ("call_2", "g", "incomplete", "{"),
    ]
    in_items = [event for event in about if "item_id" in event]
    assert all(event["item_id"] == added[event["output_index"]]["id"] for event in in_items)
    assert view.response()["output"] == done
    assert Response.model_validate(view.response()).output_text == "I look."


def test_a_running_response_shows_its_calls_so_far() -> None:
    """Also one whose arguments are still coming."""
    _, view = events(ROUTED, CallBegun("call_1", "f"), ArgumentsDelta('{"a"'))
    (item,) = view.response()["output"]
    assert (item["type"], item["status"], item["arguments"]) == ("function_call", "in_progress", '{"a"')
