"""The `[log]` and `[telemetry]` sections: logs and traces."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from gateway.records.section import Positive, Section


class LogSettings(Section, frozen=True):
    """Structured logs on standard error."""

    level: Annotated[Literal["debug", "info", "warning", "error"], Meta(description="Least level logged.")] = "info"
    format: Annotated[
        Literal["auto", "json", "console"],
        Meta(description="JSON lines for machines, or text for people; auto is text where a terminal shows it."),
    ] = "auto"


class TelemetrySettings(Section, frozen=True):
    """OpenTelemetry traces, see [observability.md](observability.md). Standard `OTEL_*` variables are read too."""

    otlp_endpoint: Annotated[
        str | None, Meta(description="Base address of a collector (OTLP over HTTP), for example http://127.0.0.1:4318.")
    ] = None
    sample_ratio: Annotated[float, Meta(ge=0, le=1, description="Share of traces that are kept.")] = 1.0
    follow_caller: Annotated[
        bool,
        Meta(description="Keep the traces that a caller's `traceparent` asks to keep; only for trusted callers."),
    ] = False
    capture_content: Annotated[
        bool, Meta(description="Write texts of clients and models into spans; without it no trace holds text.")
    ] = False
    content_characters: Annotated[
        Positive, Meta(description="Characters of each side of a turn that a span holds, if it holds them.")
    ] = 16_384
