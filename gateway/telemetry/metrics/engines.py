"""Metrics of the engines that a gateway is connected to, from the load that each engine reports."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from engine.wire import Load
from gateway.telemetry.metrics.registry import MAX_SERIES, MetricRegistry

_GAUGES = {
    "running": "Requests in the engine's current step.",
    "waiting": "Requests waiting in the engine.",
    "waiting_tokens": "Prompt tokens not yet computed.",
    "total_blocks": "KV blocks of the engine.",
    "lent_blocks": "KV blocks that hold adapters.",
    "free_blocks": "KV blocks that hold nothing.",
    "cached_blocks": "KV blocks that are kept for prefix hits only.",
    "predicted_queue_seconds": "Predicted wait of a request behind all that wait in the engine.",
    "step_seconds": "Moving average of one step's duration.",
    "host_blocks": "KV blocks that fit into host memory.",
    "host_free_blocks": "KV blocks in host memory that hold nothing.",
    "host_cached_blocks": "KV blocks in host memory that no request is loading.",
}
_COUNTERS = {
    "adapter_loads": "Adapters copied to the device.",
    "adapter_evictions": "Adapters evicted from the device.",
    "preemptions": "Requests preempted.",
    "prefix_hit_tokens": "Prompt tokens found in the prefix cache.",
    "host_hit_tokens": "Prompt tokens found in the prefix cache that came from host memory.",
    "host_saved_bytes": "Bytes of KV copied to host memory.",
    "host_loaded_bytes": "Bytes of KV copied back to the device.",
    "drafted_tokens": "Tokens drafted by speculative decoding.",
    "accepted_tokens": "Drafted tokens that the model accepted.",
}
"""Counted by the engine since it started, so that they begin at 0 again when it restarts."""


class EngineMetrics:
    """Engines by replica, tier and model, as they were when the page was last read."""

    def __init__(self, registry: MetricRegistry) -> None:
        self._engines: dict[tuple[str, str, str], tuple[bool, Load | None]] = {}
        registry.read_gauge(
            "roundhouse_engine_up",
            "Whether an engine is connected.",
            "replica tier model",
            read=lambda: ((engine, up) for engine, (up, _) in self._engines.items()),
        )
        for fields, declare in ((_GAUGES, registry.read_gauge), (_COUNTERS, registry.read_counter)):
            for field, meaning in fields.items():
                declare(f"roundhouse_engine_{field}", meaning, "replica", read=partial(self._read, field))

    def seen(self, replica: str, tier: str, model: str, *, up: bool, load: Load | None) -> None:
        """Take over the state of one engine; called when the page is read."""
        engine = (replica, tier, model)
        if engine in self._engines or len(self._engines) < MAX_SERIES:
            self._engines[engine] = (up, load)

    def left(self, replica: str, tier: str, model: str) -> None:
        """Forget an engine that is not one of this gateway's any more."""
        self._engines.pop((replica, tier, model), None)

    def _read(self, field: str) -> Iterator[tuple[Sequence[str], float]]:
        for (replica, _, _), (up, load) in self._engines.items():
            if up and load:
                yield (replica,), getattr(load, field)
