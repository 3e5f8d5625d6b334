"""What an engine answers to plain HTTP on its own port: probes for orchestrators, and its load as metrics."""

from __future__ import annotations

from collections.abc import Iterator
from http import HTTPStatus

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from websockets.asyncio.server import ServerConnection
from websockets.http11 import Request, Response

from engine.load_metrics import COUNTERS, GAUGES
from engine.wire import Load


def respond(connection: ServerConnection, request: Request, load: Load) -> Response | None:
    """Answer a request for a probe or for metrics; None: it is none, and may open a WebSocket.

    `/healthz` is 200 while the event loop runs: a core that failed or hangs ends the process. `/readyz` is 503 while
    the engine drains. Web pages get neither: browsers name their origin.
    """
    if "Origin" in request.headers:
        return None
    match request.path.partition("?")[0]:
        case "/healthz":
            return connection.respond(HTTPStatus.OK, "ok\n")
        case "/readyz" if load.draining:
            return connection.respond(HTTPStatus.SERVICE_UNAVAILABLE, "draining: it takes no new requests\n")
        case "/readyz":
            return connection.respond(HTTPStatus.OK, "ok\n")
        case "/metrics":
            registry = CollectorRegistry()
            registry.register(_LoadCollector(load))
            response = connection.respond(HTTPStatus.OK, generate_latest(registry).decode())
            del response.headers["Content-Type"]
            response.headers["Content-Type"] = CONTENT_TYPE_LATEST
            return response
    return None


class _LoadCollector(Collector):
    def __init__(self, load: Load) -> None:
        self._load = load

    def collect(self) -> Iterator[Metric]:
        for field, meaning in GAUGES.items():
            yield GaugeMetricFamily(f"roundhouse_engine_{field}", meaning, getattr(self._load, field))
        for field, meaning in COUNTERS.items():
            yield CounterMetricFamily(f"roundhouse_engine_{field}", meaning, getattr(self._load, field))
