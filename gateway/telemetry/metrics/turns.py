"""Metrics of turns: how many, how they ended, and where their time went."""

from __future__ import annotations

from gateway.telemetry.metrics.registry import LATENCY, MetricRegistry
from gateway.telemetry.trace import Stage, TurnTrace

_OVERHEAD_SECONDS = (
    *(0.00005, 0.0001, 0.0002, 0.0003, 0.0005, 0.00075, 0.001, 0.0015, 0.002, 0.003, 0.005),
    *(0.01, 0.02, 0.05, 0.1, 0.5, 1),
)


_UNROUTED = ("refused", "unavailable")
"""Outcomes of turns that no tier has answered."""
_OUTCOMES = ("completed", "incomplete", "blocked", "cancelled", "failed", *_UNROUTED)


class TurnMetrics:
    """From a turn's arrival to its end."""

    def __init__(self, registry: MetricRegistry) -> None:
        self._turns = registry.counter(
            "roundhouse_turns",
            f"Turns ended, by tier and outcome ({', '.join(_OUTCOMES)}: no engine could answer in time).",
            "tier outcome",
        )
        self._running = registry.gauge("roundhouse_turns_running", "Turns running now.")()
        self._duration = registry.histogram("roundhouse_turn_seconds", "Duration of a turn.", "tier", buckets=LATENCY)
        self._routes = registry.counter(
            "roundhouse_route_decisions", "Routing decisions by tier, model and reason.", "tier model reason"
        )
        self._moves = registry.counter(
            "roundhouse_answer_moves", "Answers taken up by another engine after the one that began was lost.", "tier"
        )
        self._cache = registry.counter(
            "roundhouse_response_cache_requests", "Turns by what the response cache did (hit, miss, bypass).", "result"
        )
        self._errors = registry.counter("roundhouse_errors", "Errors told to clients, by code.", "code")
        self._safety = registry.counter(
            "roundhouse_safety_findings",
            "What safety rules have found, by rule, action (redact, block, flag) and direction (input, output).",
            "rule action direction",
        )
        overhead = registry.histogram(
            "roundhouse_overhead_seconds",
            "Time that the gateway itself adds to a turn, by stage; `all` is their sum.",
            "stage",
            buckets=_OVERHEAD_SECONDS,
        )
        self._stages = {stage: overhead(stage) for stage in Stage if stage is not Stage.ENGINE}
        self._all_stages = overhead("all")

    def expect(self, tier: str) -> None:
        """Begin the series of a tier that serves at 0, so that the first failure is a rise."""
        for outcome in _OUTCOMES:
            self._turns("" if outcome in _UNROUTED else tier, outcome)
        self._moves(tier)

    def started(self) -> None:
        self._running.inc()

    def finished(self, tier: str, outcome: str, seconds: float, exemplar: dict[str, str] | None = None) -> None:
        """Count a turn that has ended; `tier` is empty for one that was never routed."""
        self._running.dec()
        self._turns(tier, outcome).inc()
        self._duration(tier).observe(seconds, exemplar)

    def overhead(self, trace: TurnTrace) -> None:
        """Observe where the time of a turn that has ended went."""
        total = 0.0
        for stage, begin, end in trace.stages():
            if stage is not Stage.ENGINE:
                self._stages[stage].observe(end - begin)
                total += end - begin
        self._all_stages.observe(total, trace.exemplar)

    def routed(self, tier: str, model: str, reason: str) -> None:
        self._routes(tier, model, reason).inc()

    def moved(self, tier: str, times: int) -> None:
        """Count the engines that took up an answer that another one began."""
        if times:
            self._moves(tier).inc(times)

    def cache(self, result: str) -> None:
        self._cache(result).inc()

    def error(self, code: str) -> None:
        """`code` comes from `gateway.errors`, never from a client."""
        self._errors(code).inc()

    def safety_finding(self, rule: str, action: str, direction: str) -> None:
        """`rule` comes from the configuration."""
        self._safety(rule, action, direction).inc()
