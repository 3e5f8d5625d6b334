"""What is out of proportion to a key's habits is told, and habits are not learnt from an attack."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from gateway.safety.anomaly import MAX_KEYS, Anomalies, Kind


def observe(anomalies: Anomalies, sizes: list[int], start: float = 0.0, every: float = 60.0) -> list[tuple[Kind, ...]]:
    return [anomalies.observe("key", size, start + every * index) for index, size in enumerate(sizes)]


def usual(count: int) -> list[int]:
    draw = random.Random(7)
    return [int(draw.lognormvariate(5, 0.5)) for _ in range(count)]


def test_ordinary_requests_are_not_told() -> None:
    assert not any(observe(Anomalies(), usual(2000)))


def test_a_prompt_far_above_the_usual_is_told_at_once() -> None:
    anomalies = Anomalies()
    observe(anomalies, usual(200))
    assert anomalies.observe("key", 200_000, 20_000.0) == ("size",)


def test_an_attack_does_not_become_the_norm_in_a_few_requests() -> None:
    anomalies = Anomalies()
    observe(anomalies, usual(200))
    assert all("size" in told for told in observe(anomalies, [500_000] * 20, start=20_000.0))


def test_a_lasting_change_becomes_the_norm() -> None:
    anomalies = Anomalies()
    observe(anomalies, usual(200))
    assert not observe(anomalies, [5000] * 500, start=20_000.0)[-1]


def test_the_answer_does_not_flicker_between_the_thresholds() -> None:
    """Once it is out of proportion, it has to come down further than it had to rise."""
    anomalies, fresh = Anomalies(), Anomalies()
    observe(anomalies, usual(200))
    observe(fresh, usual(200))
    between = next(size for size in range(100, 100_000, 50) if _deviations(fresh, size) > 4)
    assert fresh.observe("key", between, 20_000.0) == ()
    assert anomalies.observe("key", 500_000, 20_000.0) == ("size",)
    assert anomalies.observe("key", between, 20_060.0) == ("size",)
    assert anomalies.observe("key", 150, 20_120.0) == ()


def _deviations(anomalies: Anomalies, size: int) -> float:
    import math

    level = anomalies._keys["key"].size
    return (math.log1p(size) - level.mean) / max(level.deviation, 0.25)


def test_a_burst_is_told_while_it_lasts() -> None:
    anomalies = Anomalies()
    observe(anomalies, usual(400), every=5.0)
    told = observe(anomalies, usual(100), start=2000.0, every=0.01)
    assert told[0] == ()
    assert "rate" in told[-1]


def test_nothing_is_judged_before_habits_are_known() -> None:
    assert not any(observe(Anomalies(), [1, 100_000] * 10))


@given(keys=st.lists(st.integers(0, 20), max_size=100))
def test_keys_do_not_influence_each_other(keys: list[int]) -> None:
    together, alone = Anomalies(), {key: Anomalies() for key in keys}
    for index, key in enumerate(keys):
        size = (key + 1) * (index % 7 + 1)
        assert together.observe(str(key), size, float(index)) == alone[key].observe(str(key), size, float(index))


def test_memory_is_bounded() -> None:
    anomalies = Anomalies()
    for key in range(MAX_KEYS + 10):
        anomalies.observe(str(key), 1, 0.0)
    assert len(anomalies._keys) == MAX_KEYS
