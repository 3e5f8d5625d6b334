"""What a pool's configuration, its windows and operators allow together."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from gateway.config.settings import PoolSettings
from gateway.config.windows import PoolWindow
from gateway.records.directory import PoolControl
from gateway.scaling.bounds import effective, effective_at

MORNING = datetime(2026, 11, 26, 9, tzinfo=UTC).timestamp()
NIGHT = datetime(2026, 11, 26, 23, tzinfo=UTC).timestamp()
POOL = PoolSettings(
    tier="small",
    name="tiny",
    model="none",
    min_replicas=2,
    max_replicas=6,
    windows=[
        PoolWindow(start="08:00", end="18:00", min_replicas=4, max_replicas=8),
        PoolWindow(start="22:00", end="06:00", max_replicas=3),
    ],
)


@pytest.mark.parametrize(
    ("control", "always", "morning", "night"),
    [
        ({}, (2, 6), (4, 8), (2, 3)),
        ({"min_replicas": 5}, (5, 6), (5, 8), (5, 5)),
        ({"max_replicas": 3}, (2, 3), (3, 3), (2, 3)),
        ({"min_replicas": 3, "max_replicas": 5}, (3, 5), (3, 5), (3, 5)),
    ],
    ids=str,
)
def test_what_operators_set_goes_before_windows(
    control: dict[str, Any], always: tuple[int, int], morning: tuple[int, int], night: tuple[int, int]
) -> None:
    set_since = PoolControl(name="small", **control)
    found = effective(POOL, set_since), effective_at(POOL, set_since, MORNING), effective_at(POOL, set_since, NIGHT)
    assert [(each.min_replicas, each.max_replicas) for each in found] == [always, morning, night]


def test_without_operators_windows_hold() -> None:
    found = effective_at(POOL, None, MORNING)
    assert (found.min_replicas, found.max_replicas) == (4, 8)


def test_what_does_not_fit_the_configuration_is_refused_at_all_times() -> None:
    with pytest.raises(ValueError, match="max_replicas"):
        effective_at(POOL, PoolControl(name="small", min_replicas=9), MORNING)
