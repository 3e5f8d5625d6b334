"""A simulated pool of replicas, each with the real scheduler."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import count

import pytest

from engine.scheduling.config import SchedulerConfig
from scale.capacity import StepCost
from scale.fleet import Fleet, FleetConfig, Sizer
from scale.policy import PoolMemory, ScaleDecision, decide
from scale.signals import PoolBounds, PoolSignal, ReplicaPhase
from scale.simulation import Arrival, simulate

SCHEDULER = SchedulerConfig(blocks=512, step_tokens=256, max_running=16, max_waiting=10_000)
CONFIG = FleetConfig(
    SCHEDULER,
    StepCost(base=0.02, token=5e-4, row=1e-3, kv_byte=1e-9),
    kv_token_bytes=1000,
    prompt_tokens=64,
    output_tokens=16,
)
SLOW = replace(CONFIG, cost=StepCost(base=0.2, token=5e-3, row=1e-2))
"""A tenth as fast, so that minutes take few steps."""
_fresh = count(1)


def arrivals(number: int, rate: float, output: int = 16, prompt: int = 64) -> list[Arrival]:
    return [Arrival(at / rate, "", [next(_fresh)] + [0] * (prompt - 1), output) for at in range(number)]


def policy(most: int = 20, **bounds: int) -> Sizer:
    memory = PoolMemory()

    def sizer(signal: PoolSignal, busy: float) -> ScaleDecision:
        nonlocal memory
        decision, memory = decide(signal, memory, PoolBounds(max_replicas=most, **bounds))
        return decision

    return sizer


def test_one_replica_serves_as_the_simulation_of_one_engine_does() -> None:
    coming = arrivals(60, rate=20.0)
    alone = simulate(coming, SCHEDULER, CONFIG.cost, kv_token_bytes=CONFIG.kv_token_bytes)
    run = Fleet(CONFIG).serve(coming)
    firsts = [outcome.first_token for outcome in alone.outcomes]
    assert [outcome.first_token for outcome in run.outcomes] == pytest.approx(firsts)
    assert run.mean_replicas == pytest.approx(1.0)


def test_two_replicas_share_what_one_cannot_serve() -> None:
    coming = arrivals(400, rate=1.5 / CONFIG.capacity.work(64, 16))
    one, two = (Fleet(replace(CONFIG, replicas=replicas)).serve(coming) for replicas in (1, 2))
    assert max(outcome.ttft for outcome in two.outcomes) < 1.0 < max(outcome.ttft for outcome in one.outcomes)


def test_a_request_goes_where_its_prefix_is() -> None:
    prompts = [[number] * 128 for number in range(1, 9)]
    coming = [Arrival(float(at), "", prompts[at % 8] + [0] * 16, 4) for at in range(80)]
    run = Fleet(replace(CONFIG, replicas=4)).serve(coming)
    repeated = [outcome.ttft for outcome in run.outcomes[8:]]
    assert max(repeated) < min(outcome.ttft for outcome in run.outcomes[:8])


def test_a_pool_grows_when_replicas_have_started_and_shrinks_by_drains() -> None:
    rate = 3.0 / SLOW.capacity.work(64, 16)
    coming = arrivals(round(600 * rate), rate)
    coming += [replace(each, at=each.at + 600) for each in arrivals(90, rate=0.1)]
    run = Fleet(replace(SLOW, start_seconds=60.0), policy()).serve(coming)
    at_once = [size for size in run.sizes if size.time <= 60]
    assert {size.ready for size in at_once} == {1}
    assert 5 <= max(size.ready for size in run.sizes) <= 9
    assert run.sizes[-1].ready == 1
    assert {outcome.tokens for outcome in run.outcomes} == {16}


def test_requests_of_lost_replicas_go_on_with_the_tokens_that_they_have() -> None:
    coming = arrivals(200, rate=5.0, output=100)
    run = Fleet(replace(CONFIG, replicas=3)).serve(coming, losses=(10.0, 20.0))
    assert all(outcome.tokens == 100 for outcome in run.outcomes)
    moved = [outcome for outcome in run.outcomes if outcome.moves]
    assert 0 < len(moved) <= 100
    assert run.replica_seconds == pytest.approx(10.0 + 20.0 + run.seconds)


def test_replicas_that_stay_answer_while_spot_machines_are_taken_away() -> None:
    """Load for three replicas, of which all but those that stay are lost at once, and come back a minute later."""
    rate = 3.0 / SLOW.capacity.work(64, 16)
    coming = arrivals(round(360 * rate), rate)
    answered = {}
    for stay in (0, 2):
        config = replace(SLOW, replicas=4, start_seconds=60.0, on_demand=stay)
        run = Fleet(config, policy(on_demand=stay)).serve(coming, reclaims=(200.0,))
        assert {outcome.tokens for outcome in run.outcomes} == {16}
        assert min(size.ready for size in run.sizes if size.time > 200) == stay
        assert run.sizes[-1].ready >= 4
        answered[stay] = sum(200 < (outcome.first_token or 0.0) < 260 for outcome in run.outcomes)
    assert answered[0] == 0 and answered[2] > 60


def test_a_pool_shrinks_to_the_replicas_that_stay() -> None:
    rate = 3.0 / SLOW.capacity.work(64, 16)
    coming = arrivals(round(120 * rate), rate)
    coming += [replace(each, at=each.at + 120) for each in arrivals(90, rate=0.1)]
    seen: list[PoolSignal] = []
    sizer = policy(on_demand=2)

    def watch(signal: PoolSignal, busy: float) -> ScaleDecision:
        seen.append(signal)
        return sizer(signal, busy)

    Fleet(replace(SLOW, replicas=4, start_seconds=60.0, on_demand=2), watch).serve(coming)
    assert [each.spot for each in seen[0].replicas] == [False] * 2 + [True] * 2
    assert [each.spot for each in seen[-1].replicas] == [False] * 2


def test_what_does_not_end_before_the_drain_moves() -> None:
    config = replace(CONFIG, replicas=2, drain_seconds=5.0)

    def drain_one(signal: PoolSignal, busy: float) -> ScaleDecision:
        ready = signal.of(ReplicaPhase.READY)
        return ScaleDecision(desired=1, victims=tuple(each.id for each in ready[1:]))

    run = Fleet(config, drain_one).serve(arrivals(80, rate=4.0, output=1000))
    assert sum(outcome.moves for outcome in run.outcomes) > 0
    assert all(outcome.tokens == 1000 for outcome in run.outcomes)
    assert run.replica_seconds == pytest.approx(run.seconds + 15.0)


def test_a_pool_without_replicas_holds_requests_until_the_first_is_ready() -> None:
    def wake(signal: PoolSignal, busy: float) -> ScaleDecision:
        return ScaleDecision(desired=1 if signal.wanted or signal.of(ReplicaPhase.READY) else 0)

    config = replace(CONFIG, replicas=0, start_seconds=30.0)
    run = Fleet(config, wake).serve(arrivals(60, rate=1.0))
    assert run.outcomes[0].ttft == pytest.approx(40.0, abs=0.2)
    assert all(outcome.ended is not None for outcome in run.outcomes)


def test_the_signal_counts_work_as_replicas_spend_it() -> None:
    """Near saturation the replicas are busy all the time, and their work is as much as they are."""
    seen: list[tuple[PoolSignal, float]] = []

    def watch(signal: PoolSignal, busy: float) -> ScaleDecision:
        seen.append((signal, busy))
        return ScaleDecision(desired=2)

    rate = 1.8 / SLOW.capacity.work(64, 16)
    Fleet(replace(SLOW, replicas=2), watch).serve(arrivals(round(120 * rate), rate))
    signal, busy = seen[5]
    assert signal.offered == pytest.approx(18.0, rel=0.05)
    assert busy > 0.95
    assert signal.ttft_p95 is not None and signal.ttft_p95 < 5.0
    assert math.isclose(signal.time, 60.0)
