"""The metrics page, read as Prometheus reads it."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import msgspec
from prometheus_client.openmetrics import parser as openmetrics
from prometheus_client.parser import text_string_to_metric_families

from engine.registration import Lease
from engine.wire import Load
from gateway.telemetry.metrics.process import Metrics, content_type
from gateway.telemetry.metrics.registry import MAX_SERIES
from gateway.telemetry.trace import Stage, TurnTrace
from router.health import Circuit

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


LEASE = Lease(
    id="small-0a1b2c",
    pool="small",
    address="ws://127.0.0.1:1",
    model="m",
    revision="",
    protocol=2,
    protocol_min=1,
    state="ready",
    zone="eu-1a",
    capacity=8,
    load=0,
    time=0.0,
)


def value(metrics: Metrics, name: str, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(name, labels)


def test_a_turn_counts_once_and_leaves_none_running() -> None:
    metrics = Metrics()
    metrics.turns.started()
    assert value(metrics, "roundhouse_turns_running") == 1
    metrics.turns.finished("small", "completed", 0.2)
    assert value(metrics, "roundhouse_turns_running") == 0
    assert value(metrics, "roundhouse_turns_total", tier="small", outcome="completed") == 1


def test_close_codes_of_clients_do_not_make_new_labels() -> None:
    metrics = Metrics()
    for code in (1000, 4400, 3333, 4999):
        metrics.connections.opened()
        metrics.connections.closed(code)
    assert value(metrics, "roundhouse_websocket_connections") == 0
    assert value(metrics, "roundhouse_websocket_closed_total", code="other") == 2


def test_an_engine_that_is_gone_shows_no_load() -> None:
    metrics = Metrics()
    metrics.engines.seen("small-0", "small", "m", up=True, load=LOAD)
    assert value(metrics, "roundhouse_engine_waiting_tokens", replica="small-0") == 40
    metrics.engines.seen("small-0", "small", "m", up=False, load=LOAD)
    assert value(metrics, "roundhouse_engine_up", replica="small-0", tier="small", model="m") == 0
    assert value(metrics, "roundhouse_engine_waiting_tokens", replica="small-0") is None


def test_an_engine_that_has_left_is_not_shown() -> None:
    metrics = Metrics()
    metrics.engines.seen("small-0", "small", "m", up=True, load=LOAD)
    metrics.engines.left("small-0", "small", "m")
    metrics.engines.left("never-seen", "small", "m")
    assert b'replica="' not in metrics.page()


def test_leases_are_counted_by_zone_and_state_as_they_are_now() -> None:
    metrics = Metrics()
    elsewhere = msgspec.structs.replace(LEASE, zone="eu-1b", state="draining")
    metrics.engines.announced("small", [LEASE, LEASE, elsewhere])
    assert value(metrics, "roundhouse_engine_leases", tier="small", zone="eu-1a", state="ready") == 2
    assert value(metrics, "roundhouse_engine_leases", tier="small", zone="eu-1b", state="draining") == 1
    metrics.engines.announced("small", [elsewhere])
    assert value(metrics, "roundhouse_engine_leases", tier="small", zone="eu-1a", state="ready") is None


def test_what_an_engine_counts_is_a_counter_that_starts_again_with_the_engine() -> None:
    metrics = Metrics()
    metrics.engines.seen("small-0", "small", "m", up=True, load=LOAD)
    assert value(metrics, "roundhouse_engine_prefix_hit_tokens_total", replica="small-0") == 5
    restarted = msgspec.structs.replace(LOAD, prefix_hit_tokens=0)
    metrics.engines.seen("small-0", "small", "m", up=True, load=restarted)
    assert value(metrics, "roundhouse_engine_prefix_hit_tokens_total", replica="small-0") == 0
    types = {family.name: family.type for family in text_string_to_metric_families(metrics.page().decode())}
    assert types["roundhouse_engine_prefix_hit_tokens"] == "counter"
    assert types["roundhouse_engine_waiting"] == "gauge"


def test_entries_that_the_ledger_lost_are_counted() -> None:
    metrics = Metrics()
    metrics.redis.watch_ledger(lambda: 0.0, lambda: 3)
    assert value(metrics, "roundhouse_ledger_dropped_entries_total") == 3


def test_whatever_the_labels_are_the_series_stay_bounded() -> None:
    """Thousands of models, adapters, codes, replicas, tiers and outcomes, as no configuration would have them."""
    metrics = Metrics()
    for number in range(3000):
        name = f"name-{number}"
        metrics.turns.started()
        metrics.turns.routed(name, name, name)
        metrics.turns.moved(name, 1)
        metrics.turns.cache(name)
        metrics.answers.first_token(name, name, 0.1)
        metrics.answers.inter_token(name, 0.01)
        metrics.answers.queued(name, 0.01)
        metrics.answers.tokens(name, input=5, cached=2, output=3)
        metrics.turns.error(name)
        metrics.limits.limited(name)
        metrics.limits.breaker(name, Circuit.OPEN)
        metrics.turns.safety_finding(name, name, name)
        metrics.turns.finished(name, name, 0.2)
        metrics.engines.seen(name, name, name, up=True, load=LOAD)
        metrics.engines.announced(name, [msgspec.structs.replace(LEASE, zone=name)])
        metrics.connections.opened()
        metrics.connections.closed(number)
    series: dict[str, set[tuple[str, ...]]] = defaultdict(set)
    for family in text_string_to_metric_families(metrics.page().decode()):
        for sample in family.samples:
            labels = sorted(f"{name}={value}" for name, value in sample.labels.items() if name != "le")
            series[family.name].add(tuple(labels))
    assert max(len(each) for each in series.values()) <= MAX_SERIES + 1
    assert value(metrics, "roundhouse_errors_total", code="other") == 3000 - MAX_SERIES
    assert value(metrics, "roundhouse_turns_running") == 0


def test_no_label_can_name_a_tenant_key_or_user() -> None:
    for family in text_string_to_metric_families(exercised().page().decode()):
        for sample in family.samples:
            assert set(sample.labels) <= {
                "tier", "outcome", "cache", "model", "direction", "reason", "result", "code", "replica", "le", "stage",
                "limit", "target", "rule", "action", "how", "kind", "signal", "followed",
                "work", "zone", "state",
            }  # fmt: skip


def test_every_metric_is_documented() -> None:
    documented = Path("docs/metrics.md").read_text("utf-8")
    for family in text_string_to_metric_families(Metrics().page().decode()):
        if not family.name.endswith("_created"):
            assert f"`{family.name}" in documented, family.name


def exercised() -> Metrics:
    metrics = Metrics()
    metrics.turns.started()
    metrics.turns.routed("small", "tiny", "complexity")
    metrics.turns.moved("small", 1)
    metrics.turns.cache("miss")
    metrics.answers.first_token("small", "miss", 0.1)
    metrics.answers.inter_token("small", 0.01)
    metrics.answers.queued("small", 0.01)
    metrics.answers.tokens("m", input=5, cached=2, output=3)
    metrics.turns.error("invalid_request")
    metrics.limits.limited("tokens")
    metrics.connections.resumed()
    metrics.turns.finished("small", "completed", 0.2)
    metrics.engines.seen("small-0", "small", "m", up=True, load=LOAD)
    metrics.engines.announced("small", [LEASE])
    metrics.engines.refused("seal")
    metrics.engines.wanted("small", 1)
    metrics.redis.asked(answered=True)
    metrics.connections.slow_consumer()
    metrics.redis.answered(0.001, True)
    metrics.limits.reservations(1)
    metrics.limits.breaker("small-0", Circuit.HALF_OPEN)
    metrics.turns.safety_finding("email", "redact", "input")
    metrics.connections.shared(followed=1, feeds=1, unstored=1)
    metrics.redis.directory(age=1.0, set_back=False)
    metrics.redis.watch_ledger(lambda: 0.0, lambda: 0.0)
    metrics.background.failed("view")
    metrics.trials.canary_out("error")
    metrics.trials.shadow_copy("answered")
    metrics.judge.ended("tie")
    metrics.semantic.asked("serve", 0.01)
    metrics.semantic.embedder("m", up=True)
    metrics.placements.answered("small", "prefix", prompt=9, expected=5, found=5)
    metrics.placements.index("small", 7)
    trace = TurnTrace({})
    for stage in Stage:
        trace.mark(stage)
    metrics.turns.overhead(trace)
    return metrics


def test_openmetrics_has_exemplars_that_name_a_trace() -> None:
    metrics = Metrics()
    metrics.turns.started()
    metrics.turns.finished("small", "completed", 0.2, {"trace_id": "0af7651916cd43dd8448eb211c80319c"})
    wanted = "application/openmetrics-text; version=1.0.0"
    plain, page = metrics.page("text/plain"), metrics.page(wanted)
    assert content_type(wanted).startswith("application/openmetrics-text")
    assert content_type("text/plain").startswith("text/plain")
    assert b"trace_id" not in plain
    exemplars = [
        sample.exemplar.labels
        for family in openmetrics.text_string_to_metric_families(page.decode())
        for sample in family.samples
        if sample.exemplar
    ]
    assert exemplars == [{"trace_id": "0af7651916cd43dd8448eb211c80319c"}]
