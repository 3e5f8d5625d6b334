"""Alert rules, run by Prometheus' own tests of rules: each fires for what it is about, and nothing else does."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy.test_monitoring import ALERTS, promtool, rules

Series = dict[str, str]
"""Values by series, one a minute, in promtool's notation: `0+6x20` begins with 0 and grows by 6, 20 times."""


def slow(metric: str, labels: str, bound: float) -> Series:
    """Sixty observations a minute that all lie above a bound."""
    buckets = {f"{bound}": "0x20", f"{2 * bound}": "0+60x20", "+Inf": "0+60x20"}
    return {f'{metric}_bucket{{{labels},le="{le}"}}': values for le, values in buckets.items()}


def growing(phases: Sequence[tuple[int, float]]) -> str:
    """A counter that grows by so much a minute, for so many minutes, one phase after the other."""
    words, value = [], 0.0
    for minutes, by in phases:
        words.append(f"{value:g}+{by:g}x{minutes - 1}")
        value += by * minutes
    return " ".join(words)


def turns(*phases: tuple[int, float, float]) -> Series:
    """Turns. Args: phases: minutes, turns that are answered and turns that find no engine a minute."""
    return {
        'roundhouse_turns_total{outcome="completed"}': growing([(minutes, good) for minutes, good, _ in phases]),
        'roundhouse_turns_total{outcome="unavailable"}': growing([(minutes, lost) for minutes, _, lost in phases]),
    }


def first_texts(*phases: tuple[int, float, float]) -> Series:
    """Answers. Args: phases: minutes, answers that begin in time and answers that begin late a minute."""
    metric = "roundhouse_time_to_first_token_seconds"
    return {
        f'{metric}_bucket{{le="2.5"}}': growing([(minutes, good) for minutes, good, _ in phases]),
        f"{metric}_count": growing([(minutes, good + late) for minutes, good, late in phases]),
    }


def reasons(*kinds: str) -> Series:
    """Reasons for the size of a pool, as the leading controller tells them."""
    return {f'roundhouse_pool_reason{{pool="small",reason="{kind}",instance="c"}}': "1x40" for kind in kinds}


def pool_of(desired: int, *, least: int = 1, most: int) -> Series:
    """The size of a pool, and its bounds."""
    sizes = {"desired": desired, "min": least, "max": most}
    return {
        f'roundhouse_pool_{name}_replicas{{pool="small",instance="c"}}': f"{size}x40" for name, size in sizes.items()
    }


OUTAGE = [(60, 60.0, 0.0), (30, 0.0, 60.0)]
"""Half an hour in which all is bad, after a busy hour."""
FIRING: dict[str, list[tuple[Series, int]]] = {
    "RoundhouseGatewayDown": [({'up{job="roundhouse",instance="a"}': "0x20"}, 2)],
    "RoundhouseTierWithoutEngine": [({'roundhouse_engine_up{tier="small",instance="a"}': "0x20"}, 2)],
    # The second case of each is one that no hour alone shows.
    "RoundhouseAvailabilityBurnFast": [(turns(*OUTAGE), 70), (turns((130, 10, 0.1)), 125)],
    "RoundhouseAvailabilityBurnSlow": [(turns((200, 10, 0.03)), 190)],
    "RoundhouseFirstTextBurnFast": [(first_texts(*OUTAGE), 70), (first_texts((70, 10, 1)), 65)],
    "RoundhouseFirstTextBurnSlow": [(first_texts((70, 10, 0.3)), 65)],
    "RoundhouseRedisAway": [
        ({'roundhouse_redis_up{instance="a"}': "0x20"}, 2),
        ({'roundhouse_breaker_state{target="limits",instance="a"}': "2x20"}, 2),
    ],
    "RoundhouseRedisSlow": [(slow("roundhouse_redis_seconds", 'instance="a"', 0.025), 16)],
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
    "RoundhouseBackupOld": [({'roundhouse_backup_timestamp_seconds{instance="a"}': "1x1500"}, 1455)],
    "RoundhousePoolBelowDesired": [(reasons(kind), 2) for kind in ("stuck", "starts_fail")],
    "RoundhousePoolAtMax": [(reasons("bounds") | pool_of(4, most=4), 12), (reasons("budget"), 12)],
    "RoundhouseNoPoolLeader": [
        ({f'roundhouse_scaling_leader{{instance="{each}"}}': "0x20" for each in ("c", "d")}, 2),
        ({'up{job="roundhouse-controller",instance="c"}': "0x20"}, 2),
    ],
    "RoundhousePoolWithoutSignal": [
        (reasons("no_signal"), 3),
        ({'roundhouse_pool_decided_timestamp_seconds{pool="small"}': "0x20"}, 6),
    ],
    "RoundhousePoolDoesNotWake": [({'roundhouse_pool_wanted_turns{tier="large",instance="a"}': "3x20"}, 6)],
    "RoundhouseDrainLong": [({'roundhouse_pool_drain_seconds{pool="small"}': "1000x20"}, 2)],
    "RoundhouseAnswersMove": [({'roundhouse_answer_moves_total{tier="small",instance="a"}': "0+10x40"}, 22)],
}
"""By alert, what fires it, and by which minute."""
IMPLIED = {
    "RoundhouseAvailabilityBurnFast": "RoundhouseAvailabilityBurnSlow",
    "RoundhouseFirstTextBurnFast": "RoundhouseFirstTextBurnSlow",
}
"""By alert, another one that fires whenever it does."""
HEALTHY: Series = {
    'up{job="roundhouse",instance="a"}': "1x40",
    'roundhouse_engine_up{tier="small",replica="small-0",instance="a"}': "0x40",
    'roundhouse_engine_up{tier="small",replica="small-1",instance="a"}': "1x40",
    **turns((20, 60, 0), (1, 60, 1), (20, 60, 0)),
    **first_texts((20, 60, 0), (1, 60, 1), (20, 60, 0)),
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
    'roundhouse_backup_timestamp_seconds{instance="a"}': "0x40",
    'up{job="roundhouse-controller",instance="c"}': "0x40",
    'up{job="roundhouse-controller",instance="d"}': "1x40",
    'roundhouse_scaling_leader{instance="c"}': "0x40",
    'roundhouse_scaling_leader{instance="d"}': "1x40",
    # Less work than for the fewest engines is no reason to act.
    **reasons("load", "hold", "bounds"),
    **pool_of(2, least=2, most=4),
    'roundhouse_pool_decided_timestamp_seconds{pool="small"}': "0+60x40",
    'roundhouse_pool_drain_seconds{pool="small"}': "60x40",
    'roundhouse_pool_wanted_turns{tier="large",instance="a"}': "0 2 2 0x40",
    'roundhouse_answer_moves_total{tier="small",instance="a"}': "0+1x40",
    **slow("roundhouse_redis_seconds", 'instance="a"', 0.005),
    **slow("roundhouse_overhead_seconds", 'stage="all",instance="a"', 0.005),
}


def check(tmp_path: Path, series: Series, firing: Mapping[int, Sequence[str]]) -> None:
    """Check that exactly these alerts are firing after so many minutes of these series."""
    expressions: list[dict[str, Any]] = [
        {
            "expr": 'count by (alertname) (ALERTS{alertstate="firing"})',
            "eval_time": f"{minutes}m",
            "exp_samples": [{"labels": f'{{alertname="{alert}"}}', "value": 1} for alert in alerts],
        }
        for minutes, alerts in firing.items()
    ]
    given = [{"series": name, "values": values} for name, values in series.items()]
    test = {"interval": "1m", "input_series": given, "promql_expr_test": expressions}
    file = tmp_path / "test.yml"
    file.write_text(yaml.safe_dump({"rule_files": [str(ALERTS)], "evaluation_interval": "1m", "tests": [test]}))
    promtool("test", "rules", str(file))


def test_every_alert_is_tried() -> None:
    assert {rule["alert"] for rule in rules() if "alert" in rule} == set(FIRING)


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed: apt-get install prometheus")
class TestWithPrometheus:
    @pytest.mark.parametrize(
        ("alert", "series", "minutes"), [(alert, *each) for alert, cases in FIRING.items() for each in cases]
    )
    def test_an_alert_fires_alone(self, tmp_path: Path, alert: str, series: Series, minutes: int) -> None:
        check(tmp_path, series, {minutes: sorted({alert, IMPLIED.get(alert, alert)})})

    def test_none_fires_while_all_is_well(self, tmp_path: Path) -> None:
        """One engine of a tier may be away, one turn fail, one answer be late, and background work fail once."""
        check(tmp_path, HEALTHY, dict.fromkeys((2, 16, 30), ()))

    def test_half_of_the_few_turns_of_a_night_wake_nobody(self, tmp_path: Path) -> None:
        """Four in six hours are too few to tell."""
        quiet = (420, 0.01, 0.01)
        check(tmp_path, {**turns(quiet), **first_texts(quiet)}, {400: []})

    def test_with_little_traffic_an_outage_is_a_matter_of_hours(self, tmp_path: Path) -> None:
        """One turn every ten minutes, none of which is answered."""
        fast, slow = "RoundhouseAvailabilityBurnFast", "RoundhouseAvailabilityBurnSlow"
        check(tmp_path, turns((60, 0.1, 0), (140, 0, 0.1)), {105: [], 125: [slow], 180: [fast, slow]})

    def test_a_page_ends_when_turns_are_answered_again(self, tmp_path: Path) -> None:
        """The last half hour was well; what the outage cost stays in the budget of days."""
        fast, slow = "RoundhouseAvailabilityBurnFast", "RoundhouseAvailabilityBurnSlow"
        check(tmp_path, turns(*OUTAGE, (60, 60, 0)), {90: [fast, slow], 130: [slow]})

    def test_what_clients_cause_themselves_burns_nothing(self, tmp_path: Path) -> None:
        refused = {'roundhouse_turns_total{outcome="refused"}': "0+60x90"}
        check(tmp_path, {**turns((90, 60, 0)), **refused}, {80: []})
