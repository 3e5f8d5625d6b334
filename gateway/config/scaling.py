"""The `[scaling]` section: how the number of a pool's replicas follows its load."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from gateway.records.section import Seconds, Section


class ScalingSettings(Section, frozen=True):
    """The controller that decides how many replicas pools with `max_replicas` have, see
    [operating.md](operating.md#how-many-engines)."""

    period: Annotated[Seconds, Meta(description="Seconds between two looks at the pools.")] = 10.0
    lease: Annotated[
        Seconds, Meta(description="Seconds after which another controller takes over from one that has died.")
    ] = 10.0
    listen: Annotated[
        str | None,
        Meta(
            description="Address (`host:port`) at which the controller answers `/metrics`, `/healthz` and `/readyz`; "
            "empty: none in `serve`, 127.0.0.1:9110 for `roundhouse scale run`."
        ),
    ] = None
    utilisation: Annotated[
        float, Meta(gt=0, le=1, description="Share of a pool's replicas that work keeps busy in the mean.")
    ] = 0.85
    backlog_seconds: Annotated[
        Seconds, Meta(description="Seconds in which a pool is to work off the requests that wait.")
    ] = 60.0
    hold_seconds: Annotated[
        Seconds, Meta(description="Seconds over which a pool's largest target counts before it shrinks.")
    ] = 300.0
    sleep_seconds: Annotated[
        Seconds, Meta(description="Seconds without a request after which a pool with `min_replicas = 0` has no engine.")
    ] = 600.0
    drain_timeout: Annotated[
        Seconds,
        Meta(
            description="Seconds that an engine which is no longer needed has to end its requests; the rest goes on in "
            "other engines."
        ),
    ] = 30.0
    retry_seconds: Annotated[
        Seconds,
        Meta(description="Seconds after a start that failed before the next one; the pause doubles, up to 300."),
    ] = 10.0
