"""Dashboard and alerts: what they ask for exists, and Prometheus itself accepts it where it is installed."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from gateway.scaling.metrics import ScalingMetrics
from gateway.scaling.records import PoolReason, PoolRecord
from scale.signals import PoolSignal
from tests.gateway.telemetry.test_metrics import exercised

DEPLOY = Path(__file__).parents[2] / "deploy"
ALERTS = DEPLOY / "prometheus" / "alerts.yml"
DASHBOARDS = sorted((DEPLOY / "grafana").glob("*.json"))
LABELS_OF_PROMETHEUS = {"instance", "job"}


def rules() -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load(ALERTS.read_text("utf-8"))["groups"] for rule in group["rules"]]


def panels() -> Iterator[dict[str, Any]]:
    for dashboard in DASHBOARDS:
        yield from json.loads(dashboard.read_text("utf-8"))["panels"]


def expressions() -> Iterator[tuple[str, str]]:
    for panel in panels():
        for target in panel.get("targets", []):
            yield panel["title"], target["expr"]
    for rule in rules():
        yield rule.get("alert") or rule["record"], rule["expr"]


def pages() -> Iterator[Metric]:
    """Families of the page of a gateway, and of that of a controller."""
    for page in (exercised().page(), controlled().page()):
        yield from text_string_to_metric_families(page.decode())


def controlled() -> ScalingMetrics:
    """Metrics of a controller that leads, and has decided."""
    metrics = ScalingMetrics()
    metrics.leads(1)
    metrics.failed_starts("small", 1)
    record = PoolRecord(
        desired=2,
        min_replicas=1,
        max_replicas=3,
        ready=1,
        starting=1,
        draining=0,
        offered=1.5,
        reasons=(PoolReason("load", "work keeps 1.5 replicas busy"),),
        since=0.0,
        time=0.0,
    )
    metrics.decided("small", record, PoolSignal(time=0.0))
    return metrics


def served() -> dict[str, set[str]]:
    """Labels by name of every sample that a gateway or a controller serves."""
    labels: dict[str, set[str]] = {}
    for family in pages():
        for sample in family.samples:
            labels.setdefault(sample.name, set()).update(sample.labels)
    return labels


@pytest.mark.parametrize(("where", "expression"), sorted(set(expressions())))
def test_every_metric_and_label_that_is_asked_for_exists(where: str, expression: str) -> None:
    known = served()
    asked = set(re.findall(r"\broundhouse_\w+", expression))
    recorded = set(re.findall(r"\broundhouse:[\w:]+", expression))
    assert asked or recorded or expression.startswith(("up{", "vector(")), where
    assert asked <= set(known), where
    assert recorded <= {rule.get("record") for rule in rules()}, where
    selected = set(re.findall(r'(\w+)\s*(?:=~|!=|!~|=)\s*"', expression))
    grouped = {label.strip() for labels in re.findall(r"\bby\s*\(([^)]*)\)", expression) for label in labels.split(",")}
    may = LABELS_OF_PROMETHEUS.union(*(known[name] for name in asked), ["objective"] if recorded else [])
    assert selected | grouped <= may, where


def test_every_metric_is_on_the_dashboard_or_stated_to_be_left_out() -> None:
    """A new metric is shown, or somebody has decided that it is not."""
    left_out = {
        "roundhouse_backup_timestamp_seconds",
        "roundhouse_config_reloads", "roundhouse_config_valid",
        "roundhouse_directory_unconfirmed_changes",
        "roundhouse_engine_lent_blocks",
        "roundhouse_engine_preemptions",
        "roundhouse_engine_waiting_tokens",
        "roundhouse_pool_wanted_turns", "roundhouse_prefix_index_blocks",
        "roundhouse_websocket_closed",
    }  # fmt: skip
    shown = "".join(dashboard.read_text("utf-8") for dashboard in DASHBOARDS)
    families = {family.name for family in pages()}
    missing = {name for name in families if name not in shown and not name.endswith("_created")}
    assert missing == left_out


def test_a_panel_asks_how_fast_a_counter_grows_and_no_gauge() -> None:
    """A counter starts again at 0 with its process, which `rate` knows of and `deriv` does not."""
    types = {family.name: family.type for family in pages()}
    for panel in panels():
        for target in panel.get("targets", []):
            assert "deriv(" not in target["expr"], panel["title"]
            for name in re.findall(r"\b(?:rate|increase)\((roundhouse_\w+)", target["expr"]):
                family = re.sub(r"_(total|bucket|sum|count)$", "", name)
                assert types[family] in ("counter", "histogram"), panel["title"]


@pytest.mark.parametrize("dashboard", DASHBOARDS, ids=lambda dashboard: dashboard.stem)
def test_panels_have_numbers_of_their_own_and_do_not_overlap(dashboard: Path) -> None:
    cells: set[tuple[int, int]] = set()
    panels = json.loads(dashboard.read_text("utf-8"))["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    for panel in panels:
        at: dict[str, Any] = panel["gridPos"]
        own = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not own & cells, panel["title"]
        assert at["x"] + at["w"] <= 24
        cells |= own


def promtool(*arguments: str, given: bytes | None = None) -> None:
    """Run promtool, which must find nothing to complain about."""
    done = subprocess.run(["promtool", *arguments], input=given, capture_output=True)
    assert done.returncode == 0, (done.stdout + done.stderr).decode()


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed: apt-get install prometheus")
class TestWithPromtool:
    """The queries of the dashboard are run by `tests/gateway/telemetry/test_prometheus.py`."""

    def test_configuration_and_rules_are_accepted(self) -> None:
        promtool("check", "config", str(DEPLOY / "prometheus" / "prometheus.yml"))

    def test_names_and_types_of_metrics_are_as_prometheus_wants_them(self) -> None:
        promtool("check", "metrics", given=exercised().page())
