"""OpenTelemetry spans: one per request or connection, one per turn with its stages below it.

Off unless `telemetry.otlp_endpoint` or OpenTelemetry's own environment variables name a collector; then nothing of the
SDK is even imported. Names follow OpenTelemetry's conventions for generative AI (`gen_ai.*`, in development when this
was written: https://github.com/open-telemetry/semantic-conventions-genai); our own names begin with `roundhouse.`. A
turn's stages become spans once it has ended, from the moments that `TurnTrace` has kept.

No span holds what a client or a model has written, unless an operator turns `telemetry.capture_content` on.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator, Mapping
from time import monotonic
from typing import TYPE_CHECKING, Any

import msgspec
from opentelemetry.context import Context
from opentelemetry.trace import (
    Link,
    NonRecordingSpan,
    Span,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    Tracer,
    set_span_in_context,
)
from opentelemetry.util.types import AttributeValue
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway import __version__
from gateway.config.settings import SettingsError, TelemetrySettings
from gateway.errors import ApiError
from gateway.pipeline.values import Answered
from gateway.telemetry.trace import TRACEPARENT, Origin, Stage, TurnTrace, origin, remote_parent
from gateway.turns import Turn

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.sampling import Sampler

PROVIDER = "roundhouse"
_ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")


def wanted(settings: TelemetrySettings, environ: Mapping[str, str] = os.environ) -> bool:
    """Whether spans are exported."""
    if environ.get("OTEL_SDK_DISABLED", "").lower() == "true" or environ.get("OTEL_TRACES_EXPORTER") == "none":
        return False
    return bool(settings.otlp_endpoint) or any(environ.get(name) for name in _ENDPOINTS)


def create(settings: TelemetrySettings, gateway: str, environ: Mapping[str, str] = os.environ) -> Tracing | None:
    """Return the configured tracing; None if none is configured.

    Args:
        gateway: id of this process.

    Raises:
        SettingsError: the libraries for it are not installed.
    """
    if not wanted(settings, environ):
        return None
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        raise SettingsError(
            f"telemetry.otlp_endpoint: traces need more libraries ({error.name}); install them with: "
            "pip install 'roundhouse[otel]'"
        ) from error
    about: dict[str, AttributeValue] = {"service.instance.id": gateway, "service.version": __version__}
    if not environ.get("OTEL_SERVICE_NAME"):
        about["service.name"] = PROVIDER
    provider = TracerProvider(
        resource=Resource.create(about), sampler=_sampler(settings, environ), shutdown_on_exit=False
    )
    endpoint = settings.otlp_endpoint and settings.otlp_endpoint.rstrip("/") + "/v1/traces"
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint)))
    return Tracing(provider, settings)


def _sampler(settings: TelemetrySettings, environ: Mapping[str, str]) -> Sampler | None:
    from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased

    if environ.get("OTEL_TRACES_SAMPLER"):
        return None  # the SDK reads it
    ratio = TraceIdRatioBased(settings.sample_ratio)
    if settings.follow_caller:
        return ParentBased(ratio)
    # A stranger's flag does not decide what this installation has to store.
    return ParentBased(ratio, remote_parent_sampled=ratio, remote_parent_not_sampled=ratio)


class Tracing:
    """Makes the spans of this process."""

    def __init__(self, provider: TracerProvider, settings: TelemetrySettings) -> None:
        self._provider = provider
        self._settings = settings
        self.tracer: Tracer = provider.get_tracer("roundhouse", __version__)

    async def aclose(self) -> None:
        """Export the remaining spans."""
        await asyncio.to_thread(self._provider.shutdown)

    def begin(self, turn: Turn) -> None:
        """Begin the turn's span, whose children are made when it ends."""
        request, trace = turn.request, turn.trace
        attributes: dict[str, AttributeValue] = {
            "gen_ai.operation.name": _operation(turn),
            "gen_ai.provider.name": PROVIDER,
            "gen_ai.request.model": request.model,
            "gen_ai.response.id": turn.id,
            "roundhouse.tenant": turn.principal.tenant,
        }
        trace.span = self.tracer.start_span(
            _operation(turn),
            context=_context(trace.parent),
            kind=SpanKind.CLIENT,
            attributes=attributes,
            links=[Link(trace.link)] if trace.link else None,
            start_time=_epoch(trace.began),
        )

    def answered(self, answered: Answered) -> None:
        """Describe in the span who answered, once there is an answer or part of one."""
        turn, streamed = answered.admitted.turn, answered.streamed
        span = turn.trace.span
        if span is None or not span.is_recording():
            return
        # Only now: a model that nobody serves would make a name of its own for every typing mistake.
        span.update_name(f"{_operation(turn)} {turn.request.model}")
        span.set_attributes({**_request(turn), **_response(answered)})
        if self._settings.capture_content:
            span.set_attributes(_content(turn, self._settings.content_characters))
        if streamed.error is not None:
            _fail(span, streamed.error)
        if answered.cache != "hit" and streamed.first_token is not None and streamed.last_token is not None:
            turn.trace.decoded = (streamed.queue_seconds, streamed.first_token, streamed.last_token)

    def close(self, turn: Turn, error: BaseException | None) -> None:
        """End and export the turn's span; `error` if the turn was refused or broke off."""
        span = turn.trace.span
        if span is None:
            return
        if span.is_recording():
            self._children(turn.trace, span)
            if error is not None:
                _fail(span, error)
        span.end()

    def _children(self, trace: TurnTrace, span: Span) -> None:
        context = set_span_in_context(span)
        for name, begin, finish in _intervals(trace):
            child = self.tracer.start_span(name, context=context, start_time=_epoch(begin))
            child.end(end_time=_epoch(finish))


class TraceRequests:
    """ASGI middleware: a span for every request and connection, without addresses, queries or user agents."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self.app(scope, receive, send)
            return
        method = scope.get("method", "GET")
        tracing: Tracing = scope["app"].state.gateway.tracing
        span = tracing.tracer.start_span(
            method,
            context=_context(remote_parent(Headers(scope=scope).get(TRACEPARENT))),
            kind=SpanKind.SERVER,
            attributes={"http.request.method": method, "url.scheme": scope.get("scheme", "http")},
        )

        async def send_and_note(message: Message) -> None:
            if message["type"] in ("http.response.start", "websocket.http.response.start"):
                status: int = message["status"]
                span.set_attribute("http.response.status_code", status)
                if status >= 500:
                    span.set_attribute("error.type", str(status))
                    span.set_status(Status(StatusCode.ERROR))
            elif message["type"] == "websocket.close":
                span.set_attribute("roundhouse.websocket.close_code", message.get("code", 1000))
            await send(message)

        own = span.get_span_context()
        token = origin.set(Origin(parent=own) if scope["type"] == "http" else Origin(link=own))
        try:
            await self.app(scope, receive, send_and_note)
        except Exception as error:
            _fail(span, error)
            raise
        finally:
            origin.reset(token)
            route = getattr(scope.get("route"), "path", None)
            if route is not None:
                span.update_name(f"{method} {route}")
                span.set_attribute("http.route", route)
            span.end()


def _operation(turn: Turn) -> str:
    return "text_completion" if turn.request.prompt is not None else "chat"


def _context(parent: SpanContext | None) -> Context:
    """Return the context of a span with this parent: never an ambient one, which may be another request's."""
    return set_span_in_context(NonRecordingSpan(parent), Context()) if parent else Context()


def _request(turn: Turn) -> dict[str, AttributeValue]:
    request, sampling = turn.request, turn.request.sampling
    asked: dict[str, AttributeValue | None] = {
        "gen_ai.output.type": "text" if request.format is None else "json",
        "gen_ai.request.max_tokens": request.max_output_tokens,
        "gen_ai.request.temperature": sampling.temperature,
        "gen_ai.request.top_p": sampling.top_p,
        "gen_ai.request.top_k": sampling.top_k,
        "gen_ai.request.frequency_penalty": sampling.frequency_penalty or None,
        "gen_ai.request.presence_penalty": sampling.presence_penalty or None,
        "gen_ai.request.seed": sampling.seed,
        "gen_ai.request.previous_response.id": request.previous_response_id,
    }
    return {name: value for name, value in asked.items() if value is not None}


def _response(answered: Answered) -> dict[str, AttributeValue]:
    streamed, turn = answered.streamed, answered.admitted.turn
    routed = turn.log.routed
    told: dict[str, AttributeValue | None] = {
        "gen_ai.response.model": answered.model,
        "gen_ai.response.finish_reasons": [streamed.reason],
        "gen_ai.usage.input_tokens": streamed.usage.input_tokens,
        "gen_ai.usage.cache_read.input_tokens": streamed.usage.cached_tokens,
        "gen_ai.usage.output_tokens": streamed.usage.output_tokens,
        "gen_ai.response.time_to_first_chunk": streamed.first_token and streamed.first_token - turn.trace.began,
        "roundhouse.tier": answered.tier,
        "roundhouse.cache": answered.cache,
        "roundhouse.replica": routed.replica if routed else None,
        "roundhouse.route.reason": routed.reason if routed else None,
    }
    return {name: value for name, value in told.items() if value is not None}


def _content(turn: Turn, limit: int) -> dict[str, AttributeValue]:
    """Return what was said, in the conventions' JSON, at most `limit` characters each way."""
    request = turn.request
    if request.prompt is None:
        said = [(message.role, message.content) for message in turn.conversation]
    else:
        said = [("user", str(request.prompt))]
    messages, room = [], limit
    for role, text in reversed(said):  # the newest matter most
        messages.append(_message(role, text[:room]))
        room -= len(text)
        if room <= 0:
            break
    content: dict[str, AttributeValue] = {
        "gen_ai.input.messages": msgspec.json.encode(messages[::-1]).decode(),
        "gen_ai.output.messages": msgspec.json.encode([_message("assistant", turn.log.text[:limit])]).decode(),
    }
    return content


def _message(role: str, text: str) -> dict[str, Any]:
    return {"role": role, "parts": [{"type": "text", "content": text}]}


def _intervals(trace: TurnTrace) -> Iterator[tuple[str, float, float]]:
    """Yield name, beginning and end of the turn's stages, the engine's divided into queue, prefill and decode."""
    for stage, begin, finish in trace.stages():
        # Where there were two answers, times of tokens are known only for the one that was given.
        if stage is not Stage.ENGINE or trace.decoded is None or not begin <= trace.decoded[1] <= finish:
            yield str(stage), begin, finish
            continue
        queued, first, last = trace.decoded
        started = min(begin + queued, first)
        yield "engine queue", begin, started
        yield "prefill", started, first
        yield "decode", first, last


def _fail(span: Span, error: BaseException) -> None:
    """Describe a failure without its message, which may repeat what a client has sent."""
    kind = error.code if isinstance(error, ApiError) else type(error).__name__
    span.set_attribute("error.type", kind)
    span.set_status(Status(StatusCode.ERROR, kind))


def _epoch(at: float) -> int:
    """Return a moment of the monotonic clock in nanoseconds since the epoch."""
    return time.time_ns() + int((at - monotonic()) * 1e9)
