"""Spans as a real exporter sends them to a collector."""

from __future__ import annotations

import io
import itertools
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status
from opentelemetry.semconv._incubating.attributes import gen_ai_attributes

from gateway.config.settings import LogSettings, TelemetrySettings
from gateway.pipeline import tracing
from gateway.telemetry import logs
from tests.gateway.conftest import Serve, receive, send, until_end
from tests.gateway.telemetry.collector import Collector, attributes

pytestmark = pytest.mark.anyio

TRACE, CALLER = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
TRACEPARENT = f"00-{TRACE}-{CALLER}-01"
SPOKEN = "What do the owls of Canary Wharf say"
LATER_THAN_THE_PACKAGE = {"gen_ai.request.previous_response.id"}
"""Names of the conventions that the installed package does not know yet."""


@pytest.fixture
def collector() -> Iterator[Collector]:
    with Collector() as collector:
        yield collector


def traced(collector: Collector, **options: Any) -> TelemetrySettings:
    return TelemetrySettings(otlp_endpoint=collector.endpoint, **options)


async def test_a_turn_is_a_span_of_its_request_with_its_stages_below(serve: Serve, collector: Collector) -> None:
    async with serve(telemetry=traced(collector)) as served:
        response = await served.client.responses.create(
            model="small", input=SPOKEN, max_output_tokens=8, extra_headers={"traceparent": TRACEPARENT}
        )
    [request], [turn] = collector.named("POST /v1/responses"), collector.named("chat small")
    assert (request.trace_id.hex(), request.parent_span_id.hex()) == (TRACE, CALLER)
    assert (turn.trace_id.hex(), turn.parent_span_id) == (TRACE, request.span_id)
    assert (request.kind, turn.kind) == (Span.SPAN_KIND_SERVER, Span.SPAN_KIND_CLIENT)
    assert attributes(request)["http.response.status_code"] == 200
    about = attributes(turn)
    assert response.usage is not None
    assert about["gen_ai.operation.name"] == "chat"
    assert about["gen_ai.provider.name"] == "roundhouse"
    assert about["gen_ai.request.model"] == "small"
    assert about["gen_ai.request.max_tokens"] == 8
    assert about["gen_ai.response.id"] == response.id
    assert about["gen_ai.response.model"] == response.model == "tiny-small"
    assert about["gen_ai.usage.input_tokens"] == response.usage.input_tokens
    assert about["gen_ai.usage.output_tokens"] == response.usage.output_tokens
    assert about["roundhouse.replica"] == "small-0"
    children = collector.children(turn)
    assert [child.name for child in children] == [
        *("parse", "admit", "prepare", "reserve", "cache_lookup", "route"),
        *("engine queue", "prefill", "decode", "settle", "store"),
    ]  # fmt: skip
    for before, after in itertools.pairwise(children):
        # Moments are kept as floating-point seconds: about a microsecond is lost.
        assert before.end_time_unix_nano <= after.start_time_unix_nano + 100_000
    assert turn.start_time_unix_nano <= children[0].start_time_unix_nano + 100_000


async def test_every_name_is_one_of_the_conventions_or_ours(serve: Serve, collector: Collector) -> None:
    async with serve(telemetry=traced(collector)) as served:
        first = await served.client.responses.create(
            model="small", input="a", max_output_tokens=2, temperature=0.5, top_p=0.9
        )
        await served.client.responses.create(
            model="small", input="b", max_output_tokens=2, previous_response_id=first.id
        )
    known = {getattr(gen_ai_attributes, name) for name in dir(gen_ai_attributes) if name.startswith("GEN_AI_")}
    known |= {"error.type", "http.request.method", "http.response.status_code", "http.route", "url.scheme"}
    names = {name for span in collector.spans for name in attributes(span)}
    assert "gen_ai.request.temperature" in names
    assert {name for name in names if not name.startswith("roundhouse.")} <= known | LATER_THAN_THE_PACKAGE


async def test_turns_of_a_websocket_are_linked_to_its_span(serve: Serve, collector: Collector) -> None:
    async with serve(telemetry=traced(collector)) as served, served.connect() as socket:
        await send(socket, type="response.create", model="small", input="a", max_output_tokens=2)
        await until_end(lambda: receive(socket))
        metadata = {"traceparent": TRACEPARENT}
        await send(socket, type="response.create", model="small", input="b", max_output_tokens=2, metadata=metadata)
        await until_end(lambda: receive(socket))
    [connection] = collector.named("GET /v1/responses")
    own, caused = sorted(collector.named("chat small"), key=lambda span: span.start_time_unix_nano)
    assert [link.span_id for turn in (own, caused) for link in turn.links] == [connection.span_id] * 2
    assert not own.parent_span_id
    assert own.trace_id != connection.trace_id
    assert (caused.trace_id.hex(), caused.parent_span_id.hex()) == (TRACE, CALLER)


async def test_a_refused_turn_says_why_and_names_no_unknown_model(serve: Serve, collector: Collector) -> None:
    async with serve(telemetry=traced(collector)) as served:
        answer = await served.client._client.post(
            f"{served.base_url}/responses",
            json={"model": "no-such-model", "input": SPOKEN},
            headers={"authorization": "Bearer roundhouse-demo"},
        )
    assert answer.status_code == 404
    [turn] = collector.named("chat")
    assert attributes(turn)["error.type"] == "model_not_found"
    assert turn.status.code == Status.STATUS_CODE_ERROR
    assert [child.name for child in collector.children(turn)][:2] == ["parse", "admit"]


@pytest.mark.parametrize("capture", [False, True])
async def test_text_is_in_spans_only_if_an_operator_wants_it(serve: Serve, collector: Collector, capture: bool) -> None:
    telemetry = traced(collector, capture_content=capture, content_characters=12)
    async with serve(telemetry=telemetry) as served:
        response = await served.client.responses.create(model="small", input=SPOKEN, max_output_tokens=8)
    exported = b"".join(request.SerializeToString() for request in collector.requests)
    assert (SPOKEN[:12].encode() in exported) is capture
    assert SPOKEN[:13].encode() not in exported
    if capture:
        about = attributes(collector.named("chat small")[0])
        [said] = json.loads(about["gen_ai.input.messages"])
        assert said == {"role": "user", "parts": [{"type": "text", "content": SPOKEN[:12]}]}
        [answered] = json.loads(about["gen_ai.output.messages"])
        assert answered["parts"][0]["content"] == response.output_text[:12]


async def test_only_the_configured_share_is_kept_whatever_strangers_ask(serve: Serve, collector: Collector) -> None:
    async with serve(telemetry=traced(collector, sample_ratio=0.0)) as served:
        await served.client.responses.create(
            model="small", input="a", max_output_tokens=2, extra_headers={"traceparent": TRACEPARENT}
        )
    assert collector.spans == []


async def test_a_trusted_caller_decides_what_is_kept(serve: Serve, collector: Collector) -> None:
    async with serve(telemetry=traced(collector, sample_ratio=0.0, follow_caller=True)) as served:
        for flags in ("01", "00"):
            header = f"00-{TRACE}-{CALLER}-{flags}"
            await served.client.responses.create(
                model="small", input="a", max_output_tokens=2, extra_headers={"traceparent": header}
            )
    assert len(collector.named("chat small")) == 1


async def test_untraced_a_callers_ids_are_still_in_the_logs(serve: Serve) -> None:
    stream = io.StringIO()
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    try:
        async with serve() as served:
            logs.configure(LogSettings(format="json"), stream)
            await served.client.responses.create(
                model="small", input="a", max_output_tokens=2, extra_headers={"traceparent": TRACEPARENT}
            )
            gateway = served.gateway.presence.id
    finally:
        root.handlers[:] = before
        root.setLevel(level)
        logging.getLogger("uvicorn.access").disabled = False
    [line] = [each for each in map(json.loads, stream.getvalue().splitlines()) if each["message"] == "turn ended"]
    assert (line["trace_id"], line["span_id"], line["gateway"]) == (TRACE, CALLER, gateway)
    assert line["response_id"].startswith("resp_")
    assert line["request_id"].startswith("req_")


@pytest.mark.parametrize(
    ("environment", "endpoint", "expected"),
    [
        ({}, None, False),
        ({}, "http://127.0.0.1:4318", True),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4318"}, None, True),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://127.0.0.1:4318/v1/traces"}, None, True),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4318", "OTEL_SDK_DISABLED": "true"}, None, False),
        ({"OTEL_TRACES_EXPORTER": "none"}, "http://127.0.0.1:4318", False),
    ],
)
def test_traces_are_exported_where_a_collector_is_named(
    environment: dict[str, str], endpoint: str | None, expected: bool
) -> None:
    assert tracing.wanted(TelemetrySettings(otlp_endpoint=endpoint), environment) is expected
