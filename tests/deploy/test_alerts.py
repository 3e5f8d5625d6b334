"""Alert rules, run by Prometheus' own tests of rules: each fires for what it is about, and nothing else does."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy.test_monitoring import ALERTS, promtool

Series = dict[str, str]
"""Values by series, one a minute, in promtool's notation: `0+6x20` begins with 0 and grows by 6, 20 times."""


def slow(metric: str, labels: str, bound: float) -> Series:
    """Sixty observations a minute that all lie above a bound."""
    buckets = {f"{bound}": "0x20", f"{2 * bound}": "0+60x20", "+Inf": "0+60x20"}
    return {f'{metric}_bucket{{{labels},le="{le}"}}': values for le, values in buckets.items()}


FIRING: dict[str, list[tuple[Series, int]]] = {
    "RoundhouseGatewayDown": [({'up{job="roundhouse",instance="a"}': "0x20"}, 2)],
    "RoundhouseTierWithoutEngine": [({'roundhouse_engine_up{tier="small",instance="a"}': "0x20"}, 2)],
    "RoundhouseTurnsFail": [
        (
            {
                'roundhouse_turns_total{outcome="failed"}': "0+6x20",
                'roundhouse_turns_total{outcome="completed"}': "0+60x20",
            },
            12,
        )
    ],
    "RoundhouseRedisAway": [
        ({'roundhouse_redis_up{instance="a"}': "0x20"}, 2),
        ({'roundhouse_breaker_state{target="limits",instance="a"}': "2x20"}, 2),
    ],
    "RoundhouseRedisSlow": [(slow("roundhouse_redis_seconds", 'instance="a"', 0.025), 16)],
    "RoundhouseFirstTokenSlow": [(slow("roundhouse_time_to_first_token_seconds", 'tier="small"', 5), 16)],
    "RoundhouseOverheadHigh": [(slow("roundhouse_overhead_seconds", 'stage="all",instance="a"', 0.05), 16)],
    "RoundhouseEngineFull": [({'roundhouse_engine_predicted_queue_seconds{replica="small-0"}': "40x20"}, 6)],
    "RoundhouseBreakerOpen": [({'roundhouse_breaker_state{target="small-0"}': "2x20"}, 3)],
    "RoundhouseSlowConsumers": [({'roundhouse_slow_consumers_total{instance="a"}': "0+120x40"}, 22)],
    "RoundhouseLedgerBehind": [
        ({'roundhouse_ledger_lag_seconds{instance="a"}': "400x20"}, 2),
        ({'roundhouse_ledger_dropped_entries_total{instance="a"}': "1x20"}, 2),
    ],
    "RoundhouseBackgroundWorkFails": [
        ({'roundhouse_background_failures_total{instance="a",work="configuration"}': "0x2 5x20"}, 6)
    ],
    "RoundhouseDirectoryStale": [({'roundhouse_directory_age_seconds{instance="a"}': "90x20"}, 2)],
    "RoundhouseDirectorySetBack": [({'roundhouse_directory_set_back{instance="a"}': "1x20"}, 2)],
    "RoundhouseConfigurationInvalid": [({'roundhouse_config_valid{instance="a"}': "0x20"}, 6)],
}
"""By alert, what fires it, and by which minute."""
HEALTHY: Series = {
    'up{job="roundhouse",instance="a"}': "1x40",
    'roundhouse_engine_up{tier="small",replica="small-0",instance="a"}': "0x40",
    'roundhouse_engine_up{tier="small",replica="small-1",instance="a"}': "1x40",
    'roundhouse_turns_total{outcome="failed"}': "0+1x40",
    'roundhouse_turns_total{outcome="completed"}': "0+60x40",
    'roundhouse_redis_up{instance="a"}': "1x40",
    'roundhouse_breaker_state{target="limits",instance="a"}': "0x40",
    'roundhouse_breaker_state{target="small-0",instance="a"}': "1x40",
    'roundhouse_engine_predicted_queue_seconds{replica="small-0"}': "20x40",
    'roundhouse_slow_consumers_total{instance="a"}': "0+6x40",
    'roundhouse_ledger_lag_seconds{instance="a"}': "2x40",
    'roundhouse_ledger_dropped_entries_total{instance="a"}': "0x40",
    'roundhouse_background_failures_total{instance="a",work="configuration"}': "0x2 1x40",
    'roundhouse_directory_age_seconds{instance="a"}': "5x40",
    'roundhouse_directory_set_back{instance="a"}': "0x40",
    'roundhouse_config_valid{instance="a"}': "1x40",
    **slow("roundhouse_redis_seconds", 'instance="a"', 0.005),
    **slow("roundhouse_time_to_first_token_seconds", 'tier="small"', 0.5),
    **slow("roundhouse_overhead_seconds", 'stage="all",instance="a"', 0.005),
}


def check(tmp_path: Path, series: Series, minutes: int, alerts: list[str]) -> None:
    """Check that exactly these alerts are firing after so many minutes of these series."""
    expression: dict[str, Any] = {
        "expr": 'count by (alertname) (ALERTS{alertstate="firing"})',
        "eval_time": f"{minutes}m",
        "exp_samples": [{"labels": f'{{alertname="{alert}"}}', "value": 1} for alert in alerts],
    }
    given = [{"series": name, "values": values} for name, values in series.items()]
    test = {"interval": "1m", "input_series": given, "promql_expr_test": [expression]}
    file = tmp_path / "test.yml"
    file.write_text(yaml.safe_dump({"rule_files": [str(ALERTS)], "evaluation_interval": "1m", "tests": [test]}))
    promtool("test", "rules", str(file))


def test_every_alert_is_tried() -> None:
    rules = [rule for group in yaml.safe_load(ALERTS.read_text("utf-8"))["groups"] for rule in group["rules"]]
    assert {rule["alert"] for rule in rules} == set(FIRING)


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed: apt-get install prometheus")
class TestWithPrometheus:
    @pytest.mark.parametrize(
        ("alert", "series", "minutes"), [(alert, *each) for alert, cases in FIRING.items() for each in cases]
    )
    def test_an_alert_fires_alone(self, tmp_path: Path, alert: str, series: Series, minutes: int) -> None:
        check(tmp_path, series, minutes, [alert])

    def test_none_fires_while_all_is_well(self, tmp_path: Path) -> None:
        """One engine of a tier may be away, one turn in sixty fail, and background work fail once."""
        for minutes in (2, 16, 30):
            check(tmp_path, HEALTHY, minutes, [])
