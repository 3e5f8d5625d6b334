"""The parts that all turns of a process share, whatever configuration they began under."""

from __future__ import annotations

from dataclasses import dataclass

from cache.embedding.client import EmbedderClient
from cache.response import ResponseCache
from cache.statistics import CacheCounter
from gateway.access.directory.view import View
from gateway.billing.ledger import Ledger
from gateway.engines.adapters import AdapterNames
from gateway.engines.pools import Engines
from gateway.engines.wanted import WantedPools
from gateway.limits.limiter import Limiter
from gateway.pipeline.routing.canaries import Canaries
from gateway.pipeline.routing.decisions import DecisionLog
from gateway.pipeline.routing.judge import Judge
from gateway.pipeline.routing.tiers import TierMemory
from gateway.pipeline.sources.semantic_cache import SimilarAnswers
from gateway.pipeline.sources.single_flight import Flights
from gateway.pipeline.tracing import Tracing
from gateway.safety.anomaly import Anomalies
from gateway.safety.violations import Violations
from gateway.telemetry.metrics.process import Metrics


@dataclass(frozen=True, kw_only=True)
class Services:
    """The parts that a `Pipeline` works with. Made by `gateway.app`."""

    secret: bytes
    """Shared by all gateways of a Redis; digests of API keys are made with it."""
    view: View
    engines: Engines
    wanted: WantedPools
    adapters: AdapterNames
    limiter: Limiter
    response_cache: ResponseCache
    flights: Flights
    statistics: CacheCounter
    ledger: Ledger
    metrics: Metrics
    canaries: Canaries
    decisions: DecisionLog
    judge: Judge
    memory: TierMemory
    violations: Violations
    anomalies: Anomalies
    tracing: Tracing | None
    """None if no spans are exported."""
    embedder: EmbedderClient | None
    """The client of the embedder; None if the configuration has no embedder."""
    similar: SimilarAnswers | None
    """The semantic cache; None if there is none."""
