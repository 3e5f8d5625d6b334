"""Metrics of clients' connections, and of turns that other gateways show."""

from __future__ import annotations

from gateway.telemetry.metrics.registry import OTHER, MetricRegistry


class ConnectionMetrics:
    """WebSockets, resumed viewers, and turns that cross gateways."""

    def __init__(self, registry: MetricRegistry) -> None:
        self._connections = registry.gauge("roundhouse_websocket_connections", "Open WebSockets.")()
        self._closed = registry.counter("roundhouse_websocket_closed", "WebSockets closed, by close code.", "code")
        self._resumed = registry.counter("roundhouse_resumes", "Viewers that resumed a turn.")()
        self._slow = registry.counter("roundhouse_slow_consumers", "Clients cut off because they did not read.")()
        self._followed = registry.gauge("roundhouse_turns_followed", "Turns of other gateways that are shown here.")()
        self._feeds = registry.gauge("roundhouse_turn_feeds", "Other gateways to which turns of this one are shown.")()
        self._unstored = registry.gauge(
            "roundhouse_turns_unstored", "Turns that have ended and wait to be stored in Redis."
        )()

    def opened(self) -> None:
        self._connections.inc()

    def closed(self, code: int) -> None:
        self._connections.dec()
        # A client may close with any code; those that say nothing to an operator share one label.
        known = 1000 <= code <= 1014 or code in (4400, 4408, 4503)
        self._closed(str(code) if known else OTHER).inc()

    def slow_consumer(self) -> None:
        self._slow.inc()

    def resumed(self) -> None:
        self._resumed.inc()

    def shared(self, *, followed: int, feeds: int, unstored: int) -> None:
        """What turns have to do with other gateways, just now."""
        self._followed.set(followed)
        self._feeds.set(feeds)
        self._unstored.set(unstored)
