"""The metrics page, read as Prometheus reads it."""

from __future__ import annotations

from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from engine.wire import Load
from gateway.telemetry.metrics import Metrics

LOAD = Load(
    running=2,
    waiting=3,
    waiting_tokens=40,
    total_blocks=100,
    free_blocks=60,
    cached_blocks=30,
    prefix_hit_tokens=5,
    prompt_tokens=50,
    output_tokens=20,
    preemptions=1,
    step_seconds=0.01,
)


def value(metrics: Metrics, name: str, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(name, labels)


def test_a_turn_counts_once_and_leaves_none_running() -> None:
    metrics = Metrics()
    metrics.turn_started()
    assert value(metrics, "roundhouse_turns_running") == 1
    metrics.turn_finished("small", "completed", 0.2)
    assert value(metrics, "roundhouse_turns_running") == 0
    assert value(metrics, "roundhouse_turns_total", tier="small", outcome="completed") == 1


def test_close_codes_of_clients_do_not_make_new_labels() -> None:
    metrics = Metrics()
    for code in (1000, 4400, 3333, 4999):
        metrics.connection_opened()
        metrics.connection_closed(code)
    assert value(metrics, "roundhouse_websocket_connections") == 0
    assert value(metrics, "roundhouse_websocket_closed_total", code="other") == 2


def test_an_engine_that_is_gone_shows_no_load() -> None:
    metrics = Metrics()
    metrics.engine("small-0", "small", "m", up=True, load=LOAD)
    assert value(metrics, "roundhouse_engine_waiting_tokens", replica="small-0") == 40
    metrics.engine("small-0", "small", "m", up=False, load=LOAD)
    assert value(metrics, "roundhouse_engine_up", replica="small-0", tier="small", model="m") == 0
    assert value(metrics, "roundhouse_engine_waiting_tokens", replica="small-0") is None


def test_no_label_can_name_a_tenant_key_or_user() -> None:
    for family in text_string_to_metric_families(exercised().page().decode()):
        for sample in family.samples:
            assert set(sample.labels) <= {
                "tier", "outcome", "cache", "model", "direction", "reason", "result", "code", "replica", "le", "stage",
            }  # fmt: skip


def test_every_metric_is_documented() -> None:
    documented = Path("docs/metrics.md").read_text("utf-8")
    for family in text_string_to_metric_families(Metrics().page().decode()):
        if not family.name.endswith("_created"):
            assert f"`{family.name}" in documented, family.name


def exercised() -> Metrics:
    metrics = Metrics()
    metrics.turn_started()
    metrics.routed("small", "complexity")
    metrics.cache("miss")
    metrics.first_token("small", "miss", 0.1)
    metrics.inter_token("small", 0.01)
    metrics.queued("small", 0.01)
    metrics.tokens("m", input=5, cached=2, output=3)
    metrics.error("invalid_request")
    metrics.limited()
    metrics.resumed()
    metrics.turn_finished("small", "completed", 0.2)
    metrics.engine("small-0", "small", "m", up=True, load=LOAD)
    metrics.redis(up=True)
    return metrics
