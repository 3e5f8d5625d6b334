"""Where a turn's time went, and which trace it belongs to.

Every turn carries a `TurnTrace`: a list of stages and the moments at which they ended. That is all that is recorded
while a turn runs; metrics, the overhead header and spans (`gateway.pipeline.tracing`) are made from it afterwards, so
that a turn costs the same whether anybody looks or not.

Which trace a turn belongs to comes from W3C's `traceparent`: the HTTP header, or on a WebSocket the key of that name in
`metadata` of `response.create`.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from time import monotonic

from msgspec import Struct
from opentelemetry.trace import Span, SpanContext, format_span_id, format_trace_id, get_current_span
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

TRACEPARENT = "traceparent"
"""Header of HTTP, key of a turn's `metadata`."""

_extract = TraceContextTextMapPropagator().extract


class Stage(enum.StrEnum):
    """What a turn does, in this order; `ENGINE` is the only one that is not the gateway's own time."""

    PARSE = "parse"
    """From the request's arrival: authenticate, decode, check. Not known for a turn on a WebSocket."""
    ADMIT = "admit"
    """Resolve the model's name, count the request against limits."""
    PREPARE = "prepare"
    """Filter, apply the chat template, tokenise."""
    RESERVE = "reserve"
    """Reserve what the turn may use at most."""
    CACHE = "cache_lookup"
    ROUTE = "route"
    ENGINE = "engine"
    """The engine's answer, streamed."""
    SETTLE = "settle"
    """Settle limits to what was used."""
    STORE = "store"
    """Admit the answer to the response cache."""


class Origin(Struct, frozen=True):
    """What turns of a request or connection belong to."""

    parent: SpanContext | None = None
    """Span that caused them."""
    link: SpanContext | None = None
    """Span of the connection on which they came: a connection outlives its turns, so that it is no parent."""


NO_ORIGIN = Origin()
arrived: ContextVar[float | None] = ContextVar("roundhouse_arrived", default=None)
"""When the request came in, on the monotonic clock."""
origin: ContextVar[Origin] = ContextVar("roundhouse_origin", default=NO_ORIGIN)


class TurnTrace:
    """The moments of one turn."""

    __slots__ = ("began", "decoded", "link", "marks", "parent", "span")

    def __init__(self, metadata: Mapping[str, str]) -> None:
        """Begin at the arrival of the request in whose context this is called."""
        now = monotonic()
        came, came_from = arrived.get(), origin.get()
        self.began = now if came is None else came
        self.marks: list[tuple[Stage, float]] = [] if came is None else [(Stage.PARSE, now)]
        self.parent = (remote_parent(metadata.get(TRACEPARENT)) if metadata else None) or came_from.parent
        self.link = came_from.link
        self.decoded: tuple[float, float, float] | None = None
        """The engine's part of an answer: seconds in its queue, moments of the first and the last token."""
        self.span: Span | None = None
        """The turn's own span, if it is traced."""

    def mark(self, stage: Stage) -> None:
        """What ran since the last mark was this stage; it has ended now."""
        self.marks.append((stage, monotonic()))

    def stages(self) -> Iterator[tuple[Stage, float, float]]:
        """Stage, beginning and end of each, in order."""
        begin = self.began
        for stage, end in self.marks:
            yield stage, begin, end
            begin = end

    @property
    def overhead(self) -> float:
        """Seconds that the gateway took so far beside waiting for an engine."""
        return sum(end - begin for stage, begin, end in self.stages() if stage is not Stage.ENGINE)

    @property
    def context(self) -> SpanContext | None:
        """The span that stands for this turn in other systems: its own, or, untraced, the one that caused it."""
        return self.parent if self.span is None else self.span.get_span_context()

    @property
    def traceparent(self) -> str:
        """What engines are told; empty if the turn belongs to no trace."""
        context = self.context
        if context is None:
            return ""
        trace, span = format_trace_id(context.trace_id), format_span_id(context.span_id)
        return f"00-{trace}-{span}-{int(context.trace_flags):02x}"

    @property
    def ids(self) -> dict[str, str]:
        """For logs."""
        context = self.context
        if context is None:
            return {}
        return {"trace_id": format_trace_id(context.trace_id), "span_id": format_span_id(context.span_id)}

    @property
    def exemplar(self) -> dict[str, str] | None:
        """For histograms, if the turn's trace is kept."""
        return self.ids if self.span is not None and self.span.is_recording() else None


def remote_parent(traceparent: str | None) -> SpanContext | None:
    """The caller's span, or None if there is none or what it says of it is malformed."""
    if not traceparent:
        return None
    context = get_current_span(_extract({TRACEPARENT: traceparent})).get_span_context()
    return context if context.is_valid else None
