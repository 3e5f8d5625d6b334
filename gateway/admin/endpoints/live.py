"""What all gateways do now, once a second, as `roundhouse top` shows it."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator
from typing import Annotated

from msgspec import Meta, Struct
from redis.exceptions import RedisError
from starlette.responses import Response

from gateway.admin.call import Access, Call, admit
from gateway.admin.kit.endpoints import Endpoints, Input
from gateway.engines.heartbeat import GatewayState, ReplicaStatus, overview
from gateway.errors import ApiError, RateLimited, Unavailable
from gateway.http.exchange import ServerSentEvents, sse_event
from gateway.storage import presence
from gateway.telemetry.activity import Sums, TenantActivity

endpoints = Endpoints("live", "What happens now.")

EVENT_STREAM = "text/event-stream"
MOST = 32
"""Most streams of one gateway."""
MOST_OF_TENANT = 4
"""Most of them that admins of one tenant may have."""
_INTERVAL = 1.0


class LiveQuery(Input, frozen=True):
    """How long to look."""

    events: Annotated[int, Meta(ge=1, le=600, description="End after so many events: one a second.")] = 600


class GatewaySummary(Struct, frozen=True):
    """One gateway."""

    id: str
    host: str
    process: int
    version: str
    started: Annotated[float, Meta(description="Seconds since 1970.")]
    turns: int
    connections: int
    draining: bool


class Snapshot(Struct, frozen=True, kw_only=True):
    """What happens at one moment; the sums are those of the last minute."""

    at: float
    turns: int
    connections: int | None
    minute: Sums
    tenants: list[TenantActivity]
    replicas: list[ReplicaStatus]
    gateways: list[GatewaySummary]
    unreadable: list[str]


class LiveStreams:
    """Counts the open streams of one gateway, so that pages left open do not take all its connections."""

    def __init__(self) -> None:
        self._open: Counter[str] = Counter()

    @property
    def open(self) -> int:
        return self._open.total()

    def enter(self, name: str, most: int) -> None:
        """Count a stream of somebody who may have `most`.

        Raises:
            RateLimited: there are too many already.
        """
        if self.open >= MOST or self._open[name] >= most:
            raise RateLimited(
                "too many live streams are open; close one, or wait", retry_after=5, code="too_many_streams"
            )
        self._open[name] += 1

    def leave(self, name: str) -> None:
        self._open[name] -= 1


@endpoints.get("/live", access=Access.FILTERED, produces=EVENT_STREAM)
async def watch_live(call: Call, query: LiveQuery) -> Response:
    """Stream what happens now as events named `snapshot`, one a second; to its admins what concerns their tenant.

    The stream ends after ten minutes, when the gateway drains, or when the key is no longer valid. While Redis does not
    answer, events are named `problem`. A gateway has 32 such streams at most, and 4 for admins of one tenant.
    """
    streams: LiveStreams = call.request.app.state.live
    name, most = ("operators", MOST) if call.principal.operator else (f"tenant:{call.principal.tenant}", MOST_OF_TENANT)
    streams.enter(name, most)
    return ServerSentEvents(
        _events(call, query.events),
        close=lambda: streams.leave(name),
        send_timeout=call.gateway.settings.server.send_timeout,
    )


async def _events(call: Call, count: int) -> AsyncIterator[bytes]:
    yield b"retry: 1000\n\n"
    for number in range(count):
        try:
            if number:
                await asyncio.sleep(_INTERVAL)
                await admit(endpoints.all[0], call.request)
            if call.gateway.turns.draining:
                return
            yield sse_event(await _snapshot(call), "snapshot")
        except (RedisError, OSError, Unavailable):
            yield sse_event({"detail": "Redis does not answer"}, "problem")
        except ApiError:
            return


async def _snapshot(call: Call) -> Snapshot:
    seen = overview(await presence.read(call.gateway.redis))
    if call.principal.operator:
        return Snapshot(
            at=time.time(),
            turns=seen.turns,
            connections=seen.connections,
            minute=seen.minute,
            tenants=seen.tenants,
            replicas=seen.replicas,
            gateways=[_summary(gateway) for gateway in seen.gateways],
            unreadable=seen.unreadable,
        )
    own = [tenant for tenant in seen.tenants if tenant.name == call.principal.tenant]
    return Snapshot(
        at=time.time(),
        turns=sum(tenant.running for tenant in own),
        connections=None,
        minute=own[0].minute if own else Sums(),
        tenants=own,
        replicas=[],
        gateways=[],
        unreadable=[],
    )


def _summary(gateway: GatewayState) -> GatewaySummary:
    return GatewaySummary(*(getattr(gateway, name) for name in GatewaySummary.__struct_fields__))
