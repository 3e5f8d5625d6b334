"""Prometheus metrics of one gateway process, served at `/metrics`.

No label ever names a tenant, key or user: their number has no bound, and numbers per tenant live in Redis. Labels that
do exist are bounded whatever they are given: beyond `MAX_SERIES` combinations of one metric, new ones count as "other".
`docs/metrics.md` is generated from what is declared here and in the modules beside this one.
"""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client.exposition import choose_encoder

from gateway.telemetry.activity import Activity
from gateway.telemetry.metrics.background import BackgroundMetrics
from gateway.telemetry.metrics.budgets import BudgetMetrics
from gateway.telemetry.metrics.engines import EngineMetrics
from gateway.telemetry.metrics.escalations import EscalationMetrics
from gateway.telemetry.metrics.placements import PlacementMetrics
from gateway.telemetry.metrics.registry import OTHER, Registry
from gateway.telemetry.metrics.semantic import SemanticMetrics
from gateway.telemetry.metrics.trials import TrialMetrics
from gateway.telemetry.trace import Stage, TurnTrace
from router.health import Circuit

_LATENCY = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 240)
_TOKEN_LATENCY = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1, 2.5)
_ROUND_TRIP = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1)
_OVERHEAD = (
    *(0.00005, 0.0001, 0.0002, 0.0003, 0.0005, 0.00075, 0.001, 0.0015, 0.002, 0.003, 0.005),
    *(0.01, 0.02, 0.05, 0.1, 0.5, 1),
)


_CIRCUITS = {Circuit.CLOSED: 0, Circuit.HALF_OPEN: 1, Circuit.OPEN: 2}


class Metrics:
    """All metrics of a process, in a registry of their own, so that tests and several apps do not collide."""

    def __init__(self) -> None:
        self.registry = registry = Registry()
        self.activity = Activity()
        """Per tenant, and therefore not on the page."""
        self.background = BackgroundMetrics(registry)
        self.placements = PlacementMetrics(registry)
        self.escalations = EscalationMetrics(registry)
        self.engines = EngineMetrics(registry)
        self.budgets = BudgetMetrics(registry)
        self.trials = TrialMetrics(registry)
        self._turns = registry.counter(
            "roundhouse_turns",
            "Turns ended, by tier and outcome (completed, incomplete, blocked, cancelled, failed, refused).",
            "tier",
            "outcome",
        )
        self._running = registry.gauge("roundhouse_turns_running", "Turns running now.")()
        self._duration = registry.histogram("roundhouse_turn_seconds", "Duration of a turn.", "tier", buckets=_LATENCY)
        self._first_token = registry.histogram(
            "roundhouse_time_to_first_token_seconds",
            "From the arrival of a turn to its first text.",
            "tier",
            "cache",
            buckets=_LATENCY,
        )
        self._inter_token = registry.histogram(
            "roundhouse_inter_token_seconds",
            "Mean time between output tokens of one turn.",
            "tier",
            buckets=_TOKEN_LATENCY,
        )
        self._queue = registry.histogram(
            "roundhouse_engine_queue_seconds",
            "From the arrival of a request in an engine to its first step.",
            "tier",
            buckets=_LATENCY,
        )
        self._tokens = registry.counter(
            "roundhouse_tokens",
            "Tokens by model and direction (input, cached, output); cached ones are part of input.",
            "model",
            "direction",
        )
        self._routes = registry.counter(
            "roundhouse_route_decisions", "Routing decisions by tier and reason.", "tier", "reason"
        )
        self._cache = registry.counter(
            "roundhouse_response_cache_requests", "Turns by what the response cache did (hit, miss, bypass).", "result"
        )
        self.semantic = SemanticMetrics(registry)
        self._errors = registry.counter("roundhouse_errors", "Errors told to clients, by code.", "code")
        self._limited = registry.counter(
            "roundhouse_limit_rejections", "Turns refused because a limit was reached, by limit.", "limit"
        )
        self._reservations = registry.gauge(
            "roundhouse_reservations_held", "Reservations of limits that have not been settled."
        )()
        self._slow = registry.counter("roundhouse_slow_consumers", "Clients cut off because they did not read.")()
        self._breakers = registry.gauge(
            "roundhouse_breaker_state",
            "Circuit breakers (0 closed, 1 on trial, 2 open): one per engine, and limits, for their Redis.",
            "target",
        )
        self._redis_seconds = registry.histogram(
            "roundhouse_redis_seconds", "Round trips to Redis, of one command or many.", buckets=_ROUND_TRIP
        )()
        self._ledger_lag = registry.gauge(
            "roundhouse_ledger_lag_seconds",
            "Since Redis last took every entry of the usage ledger, while some wait for it.",
        )()
        self._ledger_dropped: Callable[[], float] = lambda: 0
        registry.read_counter(
            "roundhouse_ledger_dropped_entries",
            "Entries of the usage ledger lost because neither Redis nor the disk could take them.",
            read=lambda: [((), self._ledger_dropped())],
        )
        self._redis_errors = registry.counter(
            "roundhouse_redis_errors", "Round trips to Redis that failed or took too long."
        )()
        self._followed = registry.gauge("roundhouse_turns_followed", "Turns of other gateways that are shown here.")()
        self._feeds = registry.gauge("roundhouse_turn_feeds", "Other gateways to which turns of this one are shown.")()
        self._unstored = registry.gauge(
            "roundhouse_turns_unstored", "Turns that have ended and wait to be stored in Redis."
        )()
        self._safety = registry.counter(
            "roundhouse_safety_findings",
            "What safety rules have found, by rule, action (redact, block, flag) and direction (input, output).",
            "rule",
            "action",
            "direction",
        )
        self._config_reloads = registry.counter(
            "roundhouse_config_reloads",
            "Times that the configuration was read again, by outcome (changed, unchanged, refused).",
            "outcome",
        )
        self._config_valid = registry.gauge(
            "roundhouse_config_valid", "Whether the configuration could be used when last read."
        )()
        self._config_valid.set(1)
        self._config_changed = registry.gauge(
            "roundhouse_config_changed_timestamp_seconds", "Unix time since which the configuration is in force."
        )()
        self._config_changed.set_to_current_time()
        self._connections = registry.gauge("roundhouse_websocket_connections", "Open WebSockets.")()
        self._closed = registry.counter("roundhouse_websocket_closed", "WebSockets closed, by close code.", "code")
        self._resumed = registry.counter("roundhouse_resumes", "Viewers that resumed a turn.")()
        overhead = registry.histogram(
            "roundhouse_overhead_seconds",
            "Time of a turn in the gateway itself, by stage; all: together.",
            "stage",
            buckets=_OVERHEAD,
        )
        self._stages = {stage: overhead(stage) for stage in Stage if stage is not Stage.ENGINE}
        self._all_stages = overhead("all")
        self._redis_up = registry.gauge("roundhouse_redis_up", "Whether Redis answered the last time it was asked.")()
        self._directory_age = registry.gauge(
            "roundhouse_directory_age_seconds",
            "Since tenants, keys and prices in Redis were last known to be as this gateway sees them.",
        )()

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

    def configuration(self, outcome: str) -> None:
        """It was read again."""
        self._config_reloads(outcome).inc()
        self._config_valid.set(outcome != "refused")
        if outcome == "changed":
            self._config_changed.set_to_current_time()

    def directory(self, *, age: float) -> None:
        """Set the age of the view of the directory, in seconds; called when the page is read."""
        self._directory_age.set(age)

    def watch_ledger(self, lag: Callable[[], float], dropped: Callable[[], float]) -> None:
        """Ask these when the page is read."""
        self._ledger_lag.set_function(lag)
        self._ledger_dropped = dropped

    def redis(self, *, up: bool) -> None:
        self._redis_up.set(up)

    def page(self, accept: str = "") -> tuple[bytes, str]:
        """The page and its content type: Prometheus' text format, or OpenMetrics if accepted."""
        encode, content_type = choose_encoder(accept)
        return encode(self.registry), content_type
