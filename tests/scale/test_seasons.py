"""What yesterday says about today."""

from __future__ import annotations

import math
import random

import msgspec
import pytest

from scale.seasons import BUCKET_SECONDS, BUCKETS, Season, observe, ratio


def after(days: float, work: list[float]) -> Season:
    """A season that has seen so many days, with the work of each bucket of a day."""
    season = Season()
    for bucket in range(round(days * BUCKETS)):
        for look in range(2):
            season = observe(season, (bucket + look / 2) * BUCKET_SECONDS, work[bucket % len(work)])
    return season


WAVE = [10 + 8 * math.sin(2 * math.pi * at / BUCKETS) for at in range(BUCKETS)]


def test_days_that_are_alike_foretell_the_rise() -> None:
    season = after(3, WAVE)
    assert season.believed
    # The last bucket is being filled: bucket 0 of the wave comes next, and 1 after it.
    assert ratio(season, BUCKET_SECONDS) == pytest.approx(WAVE[0] / WAVE[-1])


def test_a_fall_is_no_reason_to_expect_less() -> None:
    assert ratio(after(3 + 0.4, WAVE), BUCKET_SECONDS) == 1.0


def test_two_days_are_not_enough_to_judge() -> None:
    assert ratio(after(1.9, WAVE), BUCKET_SECONDS) == 1.0


def test_days_that_differ_are_not_believed() -> None:
    chance = random.Random(1)
    season = after(6, [10 * math.exp(chance.gauss(0, 0.5)) for _ in range(5 * BUCKETS)])
    assert season.judged > BUCKETS
    assert not season.believed
    assert ratio(season, BUCKET_SECONDS) == 1.0


def test_a_pause_counts_as_more_of_the_same() -> None:
    season = observe(after(1, WAVE), 1.5 * 86400, 3.0)
    assert season.means[-1] == season.means[-10] == WAVE[-1]


def test_it_stays_as_small_as_a_day() -> None:
    season = after(9, WAVE)
    assert len(season.means) == BUCKETS + 1
    assert len(msgspec.msgpack.encode(season)) < 2000
