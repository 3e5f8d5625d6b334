"""The `[router]` section."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from gateway.records.section import Positive, Seconds, Section


class RouterSettings(Section, frozen=True):
    """How a tier and one of its engines are picked."""

    medium_from: Annotated[float, Meta(ge=0, le=1, description="Complexity from which the medium tier answers.")] = 0.2
    large_from: Annotated[float, Meta(ge=0, le=1, description="Complexity from which the large tier answers.")] = 0.45
    by_complexity: Annotated[
        bool,
        Meta(
            description="Choose tiers by complexity where nothing is learnt of a request, instead of giving each tier "
            "a fixed share; see [routing.md](routing.md#the-complexity-score)."
        ),
    ] = False
    learnt: Annotated[
        bool,
        Meta(
            description="Choose tiers by the model of success, for requests like those that it was learnt from, if it "
            "was learnt from the pools' models."
        ),
    ] = True
    model: Annotated[
        str | None,
        Meta(
            description="Model file of success; empty: what `roundhouse route calibrate` has installed for the pools' "
            "models, or what this release has for them."
        ),
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
            description="Probability of a good answer that the router gives up for a queue that is shorter by 1,000 "
            "tokens; 0: queues do not count.",
        ),
    ] = 0.0
    sticky_seconds: Annotated[
        float, Meta(ge=0, description="Seconds in which a conversation gets no smaller tier; 0: it may.")
    ] = 1800.0
    explore: Annotated[
        float, Meta(ge=0, le=0.2, description="Share of `auto` whose tier is drawn, to learn about others.")
    ] = 0.0
    log_entries: Annotated[
        int,
        Meta(
            ge=0,
            le=1_000_000,
            description="Decisions of each tenant that are kept in Redis (about); 0: none. They hold no text.",
        ),
    ] = 10_000
    breaker_failures: Annotated[Positive, Meta(description="Failures in a row that exclude an engine.")] = 3
    breaker_seconds: Annotated[Seconds, Meta(description="Seconds after which such an engine is tried again.")] = 10.0
    replica_beta: Annotated[
        float, Meta(ge=0, le=100, description="Weight of a replica's load against its cached prompt tokens.")
    ] = 0.5
    replica_window: Annotated[
        float,
        Meta(ge=0, le=100, description="Most load above the least loaded replica's, in mean loads."),
    ] = 2.0
    zone: Annotated[
        str,
        Meta(description="Zone of this gateway: of equal replicas, those that announce the same `--zone` come first."),
    ] = ""
