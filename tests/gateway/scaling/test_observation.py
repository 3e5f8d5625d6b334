"""The autoscaler's signal of a pool: what engines and their actuator tell, look by look."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from engine.registration import TTFT_BOUNDS, Lease, Work
from gateway.scaling.actuator import StartedReplica
from gateway.scaling.observation import (
    LATE_SECONDS,
    SILENT_SECONDS,
    PoolHistory,
    PoolLook,
    difference,
    drained,
    observe,
    percentile,
)
from scale.capacity import YOUNG
from scale.signals import PoolSignal, ReplicaPhase
from tests.engine.test_registration import LEASE

COST = (0.02, 0.0002, 0.0)


def lease(id: str, **fields: Any) -> Lease:
    return msgspec.structs.replace(LEASE, **{"id": id, "load": 0, "spot": False, **fields})


def started(name: str, state: Any, **fields: Any) -> StartedReplica:
    return StartedReplica(**{"name": name, "pool": "small", "state": state, "since": 0.0, **fields})


def look(time: float, *leases: Lease, **fields: Any) -> PoolLook:
    return PoolLook(time=time, leases=leases, **fields)


def phases(signal: PoolSignal) -> dict[str, str]:
    return {each.id: each.phase.value for each in signal.replicas}


def work(steps: int, prompt_tokens: int, rows: int, cost: tuple[float, float, float], outputs: int = 0) -> Work:
    """Return a report of steps that take what they cost; each row of them has one token beside those of prompts."""
    base, token, row = cost
    tokens = prompt_tokens + rows
    seconds = base * steps + token * tokens + row * rows
    none = (0,) * (len(TTFT_BOUNDS) + 1)
    return Work(steps=steps, seconds=seconds, tokens=tokens, rows=rows, outputs=outputs, first_tokens=none)


def times(count: int, one: Work) -> Work:
    values = {name: getattr(one, name) * count for name in ("steps", "seconds", "tokens", "rows", "outputs")}
    return Work(**values, first_tokens=tuple(count * each for each in one.first_tokens))


def sum_of(one: Work, other: Work) -> Work:
    """Return a report of all that two reports tell of."""
    names = ("steps", "seconds", "tokens", "rows", "outputs")
    firsts = tuple(a + b for a, b in zip(one.first_tokens, other.first_tokens, strict=True))
    return Work(**{name: getattr(one, name) + getattr(other, name) for name in names}, first_tokens=firsts)


def test_engines_are_known_by_their_leases_and_those_that_start_by_their_actuator() -> None:
    signal, _ = observe(
        look(
            100.0,
            lease("small-a", load=3, kv_share=0.5, adapter_share=0.25, spot=True),
            lease("small-b", state="draining"),
            lease("small-c"),
            started=[
                started("1", "ready", id="small-a"),
                started("2", "draining", id="small-c"),
                started("3", "starting", since=40.0),
                started("4", "failed"),
            ],
            acted=True,
        ),
        PoolHistory(),
    )
    assert phases(signal) == {"small-a": "ready", "small-b": "draining", "small-c": "draining", "3": "starting"}
    [ready] = signal.of(ReplicaPhase.READY)
    assert (ready.in_flight, ready.slots, ready.kv_share, ready.adapter_share, ready.spot) == (3, 64, 0.5, 0.25, True)
    [starting] = signal.of(ReplicaPhase.STARTING)
    assert starting.age == 60.0


def test_an_age_counts_from_when_the_phase_was_first_seen() -> None:
    history = PoolHistory()
    for now, state in ((100.0, "ready"), (110.0, "ready"), (120.0, "draining"), (130.0, "draining")):
        signal, history = observe(look(now, lease("small-a", state=state)), history)
    assert signal.replicas[0].age == 10.0


def reports(*works: Work) -> tuple[float, PoolHistory, Work]:
    """Have an engine report what it has done look by look; returns the time, what is remembered, and the last report.

    Each look comes when the engine is old enough.
    """
    now, done, history = 0.0, times(0, works[0]), PoolHistory()
    _, history = observe(look(now, lease("small-a", work=done)), history)
    for each in works:
        now += max(YOUNG, each.seconds)
        done = sum_of(done, each)
        _, history = observe(look(now, lease("small-a", work=done)), history)
    return now, history, done


MIX = LIGHT, PROMPTS, HALF = (
    work(400, 0, 2_000, COST, outputs=2_000),
    work(200, 80_000, 400, COST, outputs=400),
    work(400, 0, 12_000, COST, outputs=12_000),
)


def test_work_is_what_was_done_at_the_cost_of_a_full_replica() -> None:
    """A replica whose slots are all taken is busy with exactly one replica's work, one with few requests with less."""
    now, history, done = reports(*MIX)
    full = work(500, 0, 500 * LEASE.capacity, COST, outputs=500 * LEASE.capacity)
    signal, _ = observe(look(now + full.seconds, lease("small-a", work=sum_of(done, full))), history)
    assert signal.offered == pytest.approx(full.seconds, rel=0.02)
    signal, _ = observe(look(now + LIGHT.seconds, lease("small-a", work=sum_of(done, LIGHT))), history)
    assert signal.offered < 0.3 * LIGHT.seconds


def test_a_replica_is_full_when_its_kv_is() -> None:
    """Where each request takes a tenth of the KV blocks, eight and a half of them fill a replica."""
    now, history, done = reports(*MIX)
    rows = int(500 * 8.5)
    full = work(500, 0, rows, COST, outputs=rows)
    filled = lease("small-a", work=sum_of(done, full), load=4, kv_share=0.4)
    signal, _ = observe(look(now + full.seconds, filled), history)
    assert signal.offered == pytest.approx(full.seconds, rel=0.02)


def test_while_costs_are_unknown_requests_in_flight_count() -> None:
    _, history = observe(look(0.0, lease("small-a"), lease("small-b")), PoolHistory())
    signal, _ = observe(look(10.0, lease("small-a", load=48), lease("small-b", load=48)), history)
    assert signal.offered == pytest.approx(10.0 * 2)


def test_a_young_engine_teaches_nothing() -> None:
    one = work(500, 0, 2_000, COST)
    _, history = observe(look(0.0, lease("small-a", work=one)), PoolHistory())
    _, history = observe(look(YOUNG - 1, lease("small-a", work=times(2, one))), history)
    assert history.steps == ()
    _, history = observe(look(YOUNG, lease("small-a", work=times(3, one))), history)
    assert len(history.steps) == 1


def test_waiting_requests_are_a_backlog() -> None:
    """By the tokens of their prompts and the mean length of answers."""
    now, history, done = reports(*(replace(each, first_tokens=(each.outputs // 100, *[0] * 14)) for each in MIX))
    assert history.answer_tokens == 100
    waits = lease("small-a", work=done, load=10, waiting=10, waiting_tokens=1000)
    signal, _ = observe(look(now + 10, waits), history)
    base, token, _ = COST
    assert signal.waiting == 10
    assert signal.backlog == pytest.approx(1000 * token + 10 * 100 * (base / LEASE.capacity + token), rel=0.02)


def test_a_process_that_was_started_anew_has_done_nothing_since() -> None:
    one = replace(LIGHT, seconds=8.5)
    assert difference(one, times(2, one)) is None
    assert difference(times(3, one), one) == times(2, one)


def test_no_traffic_is_a_signal_and_no_leases_are_none() -> None:
    """Leases that vanish all at once are a Redis that has lost them; a minute later the engines count as gone."""
    signal, history = observe(look(0.0, lease("small-a")), PoolHistory())
    assert signal.known and signal.offered == 0
    signal, history = observe(look(10.0), history)
    assert not signal.known
    signal, _ = observe(look(SILENT_SECONDS + 10.0), history)
    assert signal.known and signal.replicas == ()


def test_engines_that_were_told_to_drain_are_not_missed() -> None:
    _, history = observe(look(0.0, lease("small-a")), PoolHistory())
    signal, _ = observe(look(10.0), drained(history, ["small-a"]))
    assert signal.known


def test_turns_that_wait_tell_that_there_is_no_engine() -> None:
    _, history = observe(look(0.0, lease("small-a")), PoolHistory())
    signal, _ = observe(look(10.0, wanted=3), history)
    assert signal.known and signal.wanted == 3


def test_a_ready_engine_without_a_lease_means_that_redis_lost_it() -> None:
    ready = started("1", "ready", id="small-a", since=100.0)
    late, early = (
        observe(look(100.0 + age, started=[ready], acted=True), PoolHistory())[0] for age in (LATE_SECONDS, 5.0)
    )
    assert not late.known
    assert early.known and phases(early) == {"1": "starting"}


@given(st.lists(st.integers(0, 1000), min_size=len(TTFT_BOUNDS) + 1, max_size=len(TTFT_BOUNDS) + 1))
def test_a_percentile_lies_in_the_bucket_that_has_it(counts: list[int]) -> None:
    found = percentile([(0.0, tuple(counts))], 0.95)
    if not sum(counts):
        assert found is None
        return
    assert found is not None
    bounds = (0.0, *TTFT_BOUNDS, float("inf"))
    at_most = sum(count for count, lower in zip(counts, bounds, strict=False) if lower < found or lower == found == 0)
    below = sum(count for count, upper in zip(counts, bounds[1:], strict=True) if upper < found)
    assert below <= 0.95 * sum(counts) <= at_most + counts[-1]


def test_the_ttft_is_that_of_the_last_minute() -> None:
    def firsts(*counts: int) -> Work:
        return Work(
            steps=1, seconds=1.0, tokens=1, rows=1, outputs=1, first_tokens=(*counts, *[0] * (15 - len(counts)))
        )

    _, history = observe(look(0.0, lease("small-a", work=firsts())), PoolHistory())
    signal, history = observe(look(10.0, lease("small-a", work=firsts(0, 0, 0, 0, 0, 0, 0, 0, 100))), history)
    assert signal.ttft_p95 is not None and 1.5 < signal.ttft_p95 <= 2.0
    signal, history = observe(look(40.0, lease("small-a", work=firsts(0, 0, 0, 0, 0, 0, 0, 0, 100))), history)
    assert signal.ttft_p95 is not None
    signal, history = observe(look(90.0, lease("small-a", work=firsts(100, 0, 0, 0, 0, 0, 0, 0, 100))), history)
    assert signal.ttft_p95 is not None and signal.ttft_p95 <= 0.05
