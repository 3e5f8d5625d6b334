"""Prometheus metrics of one gateway process, served at `/metrics`.

No label ever names a tenant, key or user: their number has no bound, and numbers per tenant live in Redis. Labels that
do exist are bounded whatever they are given: beyond `MAX_SERIES` combinations of one metric, new ones count as "other".
`docs/metrics.md` is generated from this module.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Generic, TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics import MetricWrapperBase

from engine.wire import Load
from gateway.telemetry.activity import Activity
from gateway.telemetry.metrics.background import BackgroundMetrics
from gateway.telemetry.metrics.budgets import BudgetMetrics
from gateway.telemetry.metrics.escalations import EscalationMetrics
from gateway.telemetry.metrics.placements import PlacementMetrics
from gateway.telemetry.metrics.semantic import SemanticMetrics
from gateway.telemetry.metrics.trials import TrialMetrics
from gateway.telemetry.trace import Stage, TurnTrace
from router.health import Circuit

MAX_SERIES = 200
"""Most combinations of label values of one metric."""
OTHER = "other"

M = TypeVar("M", bound=MetricWrapperBase)

_LATENCY = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 240)
_TOKEN_LATENCY = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1, 2.5)
_ROUND_TRIP = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1)
_OVERHEAD = (
    *(0.00005, 0.0001, 0.0002, 0.0003, 0.0005, 0.00075, 0.001, 0.0015, 0.002, 0.003, 0.005),
    *(0.01, 0.02, 0.05, 0.1, 0.5, 1),
)


_CIRCUITS = {Circuit.CLOSED: 0, Circuit.HALF_OPEN: 1, Circuit.OPEN: 2}


class Series(Generic[M]):
    """The time series of one metric, by label values: `series("small", "completed").inc()`."""

    def __init__(self, metric: M) -> None:
        self._metric = metric
        self._known: dict[tuple[str, ...], M] = {}

    def __call__(self, *values: str) -> M:
        found = self._known.get(values)
        if found is None:
            if len(self._known) >= MAX_SERIES:
                values = (OTHER,) * len(values)
            found = self._known[values] = self._metric.labels(*values)
        return found


class Metrics:
    """All metrics of a process, in a registry of their own, so that tests and several apps do not collide."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self.activity = Activity()
        """Per tenant, and therefore not on the page."""
        self.background = BackgroundMetrics(registry)
        self.placements = PlacementMetrics(registry)
        self.escalations = EscalationMetrics(registry)
        self.budgets = BudgetMetrics(registry)
        self.trials = TrialMetrics(registry)
        self._turns = Series(
            Counter(
                "roundhouse_turns",
                "Turns ended, by tier and outcome (completed, incomplete, blocked, cancelled, failed, refused).",
                ["tier", "outcome"],
                registry=registry,
            )
        )
        self._running = Gauge("roundhouse_turns_running", "Turns running now.", registry=registry)
        self._duration = Series(
            Histogram("roundhouse_turn_seconds", "Duration of a turn.", ["tier"], buckets=_LATENCY, registry=registry)
        )
        self._first_token = Series(
            Histogram(
                "roundhouse_time_to_first_token_seconds",
                "From the arrival of a turn to its first text.",
                ["tier", "cache"],
                buckets=_LATENCY,
                registry=registry,
            )
        )
        self._inter_token = Series(
            Histogram(
                "roundhouse_inter_token_seconds",
                "Mean time between output tokens of one turn.",
                ["tier"],
                buckets=_TOKEN_LATENCY,
                registry=registry,
            )
        )
        self._queue = Series(
            Histogram(
                "roundhouse_engine_queue_seconds",
                "From the arrival of a request in an engine to its first step.",
                ["tier"],
                buckets=_LATENCY,
                registry=registry,
            )
        )
        self._tokens = Series(
            Counter(
                "roundhouse_tokens",
                "Tokens by model and direction (input, cached, output); cached ones are part of input.",
                ["model", "direction"],
                registry=registry,
            )
        )
        self._routes = Series(
            Counter(
                "roundhouse_route_decisions",
                "Routing decisions by tier and reason.",
                ["tier", "reason"],
                registry=registry,
            )
        )
        self._cache = Series(
            Counter(
                "roundhouse_response_cache_requests",
                "Turns by what the response cache did (hit, miss, bypass).",
                ["result"],
                registry=registry,
            )
        )
        self.semantic = SemanticMetrics(registry)
        self._errors = Series(
            Counter("roundhouse_errors", "Errors told to clients, by code.", ["code"], registry=registry)
        )
        self._limited = Series(
            Counter(
                "roundhouse_limit_rejections",
                "Turns refused because a limit was reached, by limit.",
                ["limit"],
                registry=registry,
            )
        )
        self._reservations = Gauge(
            "roundhouse_reservations_held", "Reservations of limits that have not been settled.", registry=registry
        )
        self._slow = Counter(
            "roundhouse_slow_consumers", "Clients cut off because they did not read.", registry=registry
        )
        self._breakers = Series(
            Gauge(
                "roundhouse_breaker_state",
                "Circuit breakers (0 closed, 1 on trial, 2 open): one per engine, and limits, for their Redis.",
                ["target"],
                registry=registry,
            )
        )
        self._redis_seconds = Histogram(
            "roundhouse_redis_seconds",
            "Round trips to Redis, of one command or many.",
            buckets=_ROUND_TRIP,
            registry=registry,
        )
        self._ledger_lag = Gauge(
            "roundhouse_ledger_lag_seconds",
            "Since Redis last took every entry of the usage ledger, while some wait for it.",
            registry=registry,
        )
        self._ledger_dropped = Gauge(
            "roundhouse_ledger_dropped_entries",
            "Entries of the usage ledger lost because neither Redis nor the disk could take them.",
            registry=registry,
        )
        self._redis_errors = Counter(
            "roundhouse_redis_errors", "Round trips to Redis that failed or took too long.", registry=registry
        )
        self._followed = Gauge(
            "roundhouse_turns_followed", "Turns of other gateways that are shown here.", registry=registry
        )
        self._feeds = Gauge(
            "roundhouse_turn_feeds", "Other gateways to which turns of this one are shown.", registry=registry
        )
        self._unstored = Gauge(
            "roundhouse_turns_unstored", "Turns that have ended and wait to be stored in Redis.", registry=registry
        )
        self._safety = Series(
            Counter(
                "roundhouse_safety_findings",
                "What safety rules have found, by rule, action (redact, block, flag) and direction (input, output).",
                ["rule", "action", "direction"],
                registry=registry,
            )
        )
        self._config_reloads = Counter(
            "roundhouse_config_reloads",
            "Times that the configuration was read again, by outcome (changed, unchanged, refused).",
            ["outcome"],
            registry=registry,
        )
        self._config_valid = Gauge(
            "roundhouse_config_valid", "Whether the configuration could be used when last read.", registry=registry
        )
        self._config_valid.set(1)
        self._config_changed = Gauge(
            "roundhouse_config_changed_timestamp_seconds",
            "Unix time since which the configuration is in force.",
            registry=registry,
        )
        self._config_changed.set_to_current_time()
        self._connections = Gauge("roundhouse_websocket_connections", "Open WebSockets.", registry=registry)
        self._closed = Series(
            Counter("roundhouse_websocket_closed", "WebSockets closed, by close code.", ["code"], registry=registry)
        )
        self._resumed = Counter("roundhouse_resumes", "Viewers that resumed a turn.", registry=registry)
        self._replicas: set[str] = set()
        self._engine_up = Gauge(
            "roundhouse_engine_up", "Whether an engine is connected.", ["replica", "tier", "model"], registry=registry
        )
        self._engine = {
            name: Gauge(f"roundhouse_engine_{name}", meaning, ["replica"], registry=registry)
            for name, meaning in {
                "running": "Requests in the engine's current step.",
                "waiting": "Requests waiting in the engine.",
                "waiting_tokens": "Prompt tokens not yet computed.",
                "total_blocks": "KV blocks of the engine.",
                "lent_blocks": "KV blocks that hold adapters.",
                "adapter_loads": "Adapters copied to the device since the engine started.",
                "adapter_evictions": "Adapters that have lost their place on the device since the engine started.",
                "free_blocks": "KV blocks that hold nothing.",
                "cached_blocks": "KV blocks that are kept for prefix hits only.",
                "predicted_queue_seconds": "Predicted wait of a request behind all that wait in the engine.",
                "step_seconds": "Moving average of one step's duration.",
                "preemptions": "Requests preempted since the engine started.",
                "prefix_hit_tokens": "Prompt tokens found in the prefix cache since the engine started.",
                "host_blocks": "KV blocks that fit into host memory.",
                "host_free_blocks": "KV blocks in host memory that hold nothing.",
                "host_cached_blocks": "KV blocks in host memory that nobody loads just now.",
                "host_hit_tokens": "Those of the prefix hits that came from host memory.",
                "host_saved_bytes": "KV copied to host memory since the engine started.",
                "host_loaded_bytes": "KV copied back to the device since the engine started.",
                "drafted_tokens": "Tokens guessed by speculative decoding since the engine started.",
                "accepted_tokens": "Guessed tokens that were right since the engine started.",
            }.items()
        }
        overhead = Histogram(
            "roundhouse_overhead_seconds",
            "Time of a turn in the gateway itself, by stage; all: together.",
            ["stage"],
            buckets=_OVERHEAD,
            registry=registry,
        )
        self._stages = {stage: overhead.labels(stage) for stage in Stage if stage is not Stage.ENGINE}
        self._all_stages = overhead.labels("all")
        self._redis_up = Gauge(
            "roundhouse_redis_up", "Whether Redis answered the last time it was asked.", registry=registry
        )
        self._directory_age = Gauge(
            "roundhouse_directory_age_seconds",
            "Since tenants, keys and prices in Redis were last known to be as this gateway sees them.",
            registry=registry,
        )

    def turn_started(self) -> None:
        self._running.inc()

    def turn_finished(self, tier: str, outcome: str, seconds: float, exemplar: dict[str, str] | None = None) -> None:
        """Once per `turn_started`. `tier` is empty for a turn that was never routed."""
        self._running.dec()
        self._turns(tier, outcome).inc()
        self._duration(tier).observe(seconds, exemplar)

    def overhead(self, trace: TurnTrace) -> None:
        """Where the time of a turn that has ended went."""
        total = 0.0
        for stage, begin, end in trace.stages():
            if stage is not Stage.ENGINE:
                self._stages[stage].observe(end - begin)
                total += end - begin
        self._all_stages.observe(total, trace.exemplar)

    def routed(self, tier: str, reason: str) -> None:
        self._routes(tier, reason).inc()

    def cache(self, result: str) -> None:
        self._cache(result).inc()

    def first_token(self, tier: str, cache: str, seconds: float, exemplar: dict[str, str] | None = None) -> None:
        self._first_token(tier, cache).observe(seconds, exemplar)

    def inter_token(self, tier: str, seconds: float) -> None:
        self._inter_token(tier).observe(seconds)

    def queued(self, tier: str, seconds: float) -> None:
        self._queue(tier).observe(seconds)

    def tokens(self, model: str, *, input: int, cached: int, output: int) -> None:
        for direction, amount in (("input", input), ("cached", cached), ("output", output)):
            self._tokens(model, direction).inc(amount)

    def error(self, code: str) -> None:
        """`code` comes from `gateway.errors`, never from a client."""
        self._errors(code).inc()

    def limited(self, limit: str) -> None:
        """`limit` is one of the fields of `gateway.records.quota.Quota`."""
        self._limited(limit).inc()

    def shared(self, *, followed: int, feeds: int, unstored: int) -> None:
        """What turns have to do with other gateways, just now."""
        self._followed.set(followed)
        self._feeds.set(feeds)
        self._unstored.set(unstored)

    def reservations(self, held: int) -> None:
        self._reservations.set(held)

    def breaker(self, target: str, circuit: Circuit) -> None:
        self._breakers(target).set(_CIRCUITS[circuit])

    def safety_finding(self, rule: str, action: str, direction: str) -> None:
        """`rule` comes from the configuration."""
        self._safety(rule, action, direction).inc()

    def connection_opened(self) -> None:
        self._connections.inc()

    def connection_closed(self, code: int) -> None:
        self._connections.dec()
        # A client may close with any code; those that say nothing to an operator share one label.
        known = 1000 <= code <= 1014 or code in (4400, 4408, 4503)
        self._closed(str(code) if known else OTHER).inc()

    def slow_consumer(self) -> None:
        self._slow.inc()

    def resumed(self) -> None:
        self._resumed.inc()

    def redis_answered(self, seconds: float, failed: bool) -> None:
        """One round trip has ended."""
        self._redis_seconds.observe(seconds)
        if failed:
            self._redis_errors.inc()

    def engine(self, replica: str, tier: str, model: str, *, up: bool, load: Load | None) -> None:
        """Set the gauges of one engine; called when the page is read."""
        self._replicas.add(replica)
        if len(self._replicas) > MAX_SERIES:
            self._replicas.discard(replica)
            return
        self._engine_up.labels(replica, tier, model).set(up)
        for name, gauge in self._engine.items():
            if up and load:
                gauge.labels(replica).set(getattr(load, name))
            else:
                gauge.remove(replica)

    def engine_left(self, replica: str, tier: str, model: str) -> None:
        """It is not one of this gateway's any more."""
        with contextlib.suppress(KeyError):  # it was never shown
            self._engine_up.remove(replica, tier, model)
        for gauge in self._engine.values():
            with contextlib.suppress(KeyError):
                gauge.remove(replica)

    def configuration(self, outcome: str) -> None:
        """It was read again."""
        self._config_reloads.labels(outcome).inc()
        self._config_valid.set(outcome != "refused")
        if outcome == "changed":
            self._config_changed.set_to_current_time()

    def directory(self, *, age: float) -> None:
        """Set the age of the view of the directory, in seconds; called when the page is read."""
        self._directory_age.set(age)

    def watch_ledger(self, lag: Callable[[], float], dropped: Callable[[], float]) -> None:
        """Ask these when the page is read."""
        self._ledger_lag.set_function(lag)
        self._ledger_dropped.set_function(dropped)

    def redis(self, *, up: bool) -> None:
        self._redis_up.set(up)

    def page(self, accept: str = "") -> tuple[bytes, str]:
        """The page and its content type: Prometheus' text format, or OpenMetrics if accepted."""
        encode, content_type = choose_encoder(accept)
        return encode(self.registry), content_type
