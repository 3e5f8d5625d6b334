"""The `[router]` section."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from gateway.records.section import Positive, Seconds, Section


class RouterSettings(Section, frozen=True):
    """How a tier and one of its engines are picked."""

    medium_from: Annotated[float, Meta(ge=0, le=1, description="Complexity from which the medium tier answers.")] = 0.2
    large_from: Annotated[float, Meta(ge=0, le=1, description="Complexity from which the large tier answers.")] = 0.45
    learnt: Annotated[
        bool,
        Meta(
            description="Use the model of success for requests like those it was learnt from; the rest goes by "
            "complexity."
        ),
    ] = True
    model: Annotated[
        str | None,
        Meta(description="Model file of success, such as `roundhouse route refit` writes; empty: this release's."),
    ] = None
    quality: Annotated[
        int,
        Meta(
            ge=0,
            le=100,
            description="What quality may cost: 0 all small, 100 all large, between them that part of the difference.",
        ),
    ] = 50
    quality_by_request: Annotated[
        bool, Meta(description="Whether a request's `roundhouse.quality` counts instead of `quality` and `budget`.")
    ] = True
    budget: Annotated[
        Annotated[float, Meta(gt=0, le=1)] | None,
        Meta(
            description="Share of what the dearest tier would cost that `auto` may spend; takes the place of "
            "`quality`. Empty: no budget.",
        ),
    ] = None
    queue_price: Annotated[
        float,
        Meta(
            ge=0,
            le=1,
            description="Probability of a good answer that is given up for 1,000 tokens less in front; 0: queues do "
            "not count.",
        ),
    ] = 0.0
    sticky_seconds: Annotated[
        float, Meta(ge=0, description="Seconds in which a conversation's tier does not fall; 0: it may.")
    ] = 1800.0
    escalate: Annotated[
        bool,
        Meta(
            description="Have the next tier answer as well, once, where an answer for `auto` looks bad and another one "
            "is worth its cost."
        ),
    ] = False
    escalate_hold: Annotated[
        int,
        Meta(
            ge=0,
            le=256,
            description="Tokens of an answer that those who read along wait for, so that one which ends within them "
            "can be given up, too; 0: none.",
        ),
    ] = 0
    escalate_logprob: Annotated[
        Annotated[float, Meta(le=0)] | None,
        Meta(
            description="Mean log-probability of its tokens below which an answer looks bad. Engines compute them for "
            "it. Empty: never by that."
        ),
    ] = None
    explore: Annotated[
        float, Meta(ge=0, le=0.2, description="Share of `auto` whose tier is drawn, so that others are known too.")
    ] = 0.0
    log_entries: Annotated[
        int,
        Meta(
            ge=0,
            le=1_000_000,
            description="Decisions of each tenant that are kept in Redis (about); 0: none are. They hold no text.",
        ),
    ] = 10_000
    breaker_failures: Annotated[Positive, Meta(description="Failures in a row that take an engine out.")] = 3
    breaker_seconds: Annotated[Seconds, Meta(description="Seconds until an engine taken out is tried again.")] = 10.0
    replica_beta: Annotated[
        float, Meta(ge=0, le=100, description="What a replica's load counts beside the prompt that it knows.")
    ] = 1.0
    replica_window: Annotated[
        float,
        Meta(ge=0, le=100, description="How much busier than the least loaded replica one may be, in mean loads."),
    ] = 2.0
