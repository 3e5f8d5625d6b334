"""Metrics of the engines that a gateway is connected to, from the load that each engine reports."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import islice

from engine.load_metrics import COUNTERS, GAUGES
from engine.registration import Lease
from engine.wire import Load
from gateway.telemetry.metrics.registry import MAX_SERIES, MetricRegistry


class EngineMetrics:
    """Engines by replica, tier and model, as they were when the page was last read."""

    def __init__(self, registry: MetricRegistry) -> None:
        self._engines: dict[tuple[str, str, str], tuple[bool, Load | None]] = {}
        self._lingered: dict[tuple[str, str, str], int] = {}
        registry.read_gauge(
            "roundhouse_engine_up",
            "Whether an engine is connected.",
            "replica tier model",
            read=lambda: ((engine, up) for engine, (up, _) in self._engines.items()),
        )
        registry.read_counter(
            "roundhouse_lingering_answers",
            "Answers that a server of another project went on with after their connection was closed, as far as it "
            "tells.",
            "replica tier model",
            read=lambda: self._lingered.items(),
        )
        self._announced: dict[str, Counter[tuple[str, str]]] = {}
        registry.read_gauge(
            "roundhouse_engine_leases",
            "Engines that have announced themselves, by tier, zone and state (ready, draining, asleep).",
            "tier zone state",
            read=lambda: islice(self._read_leases(), MAX_SERIES),
        )
        self._refused = registry.counter(
            "roundhouse_engine_leases_refused",
            "Leases of engines that were not believed, by reason (seal: it is missing or wrong; form; time: it is too "
            "old, or a clock is wrong).",
            "reason",
        )
        self._wanted = registry.gauge(
            "roundhouse_pool_wanted_turns",
            "Turns of this gateway that wait for a sleeping tier to have an engine.",
            "tier",
        )
        for fields, declare in ((GAUGES, registry.read_gauge), (COUNTERS, registry.read_counter)):
            for field, meaning in fields.items():
                declare(f"roundhouse_engine_{field}", meaning, "replica", read=partial(self._read, field))

    def seen(self, replica: str, tier: str, model: str, *, up: bool, load: Load | None, lingered: int = 0) -> None:
        """Take over the state of one engine; called when the page is read."""
        engine = (replica, tier, model)
        if engine in self._engines or len(self._engines) < MAX_SERIES:
            self._engines[engine], self._lingered[engine] = (up, load), lingered

    def announced(self, tier: str, leases: Iterable[Lease]) -> None:
        """Take over the leases of a tier; called when the page is read."""
        self._announced[tier] = Counter((lease.zone, lease.state) for lease in leases)

    def wanted(self, tier: str, turns: int) -> None:
        """Set how many turns wait for a tier that may sleep; called when the page is read."""
        self._wanted(tier).set(turns)

    def refused(self, reason: str) -> None:
        """Count a lease that is not believed."""
        self._refused(reason).inc()

    def left(self, replica: str, tier: str, model: str) -> None:
        """Forget an engine that is not one of this gateway's any more."""
        self._engines.pop((replica, tier, model), None)
        self._lingered.pop((replica, tier, model), None)

    def _read_leases(self) -> Iterator[tuple[Sequence[str], float]]:
        for tier, counts in self._announced.items():
            for (zone, state), count in counts.items():
                yield (tier, zone, state), count

    def _read(self, field: str) -> Iterator[tuple[Sequence[str], float]]:
        for (replica, _, _), (up, load) in self._engines.items():
            if up and load:
                yield (replica,), getattr(load, field)
